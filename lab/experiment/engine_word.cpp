#include "lab/experiment/engine_word.hpp"

#include <algorithm>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/names.hpp"
#include "lab/units.hpp"
#include "models/device_memory.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

bool is_version(std::string_view text) {
  const auto part = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '+' || c == '-';
  };
  const bool numbered = !text.empty() && ((text.front() >= '0' && text.front() <= '9') || text.front() == 'v');
  return numbered && text.size() <= 40 && std::ranges::all_of(text, part);
}

// Returns the name that a table of the experiment's GPU and engine has; empty if the hardware names no GPU.
std::string own_table(const Experiment& e, ServingEngine engine) {
  const std::string gpu = gpu_of(e);
  return gpu.empty() ? gpu : gpu + "/" + std::string(name_of(engine));
}

EngineWord word_of(const Experiment& e) { return engine_word(e.text(kEngineKey), e.where(kEngineKey)); }

// The tokens and requests of a pass, by the GPU. Keys count for all groups of attention; vLLM's flags for one.
void add_batch(const Experiment& e, ServingEngine engine, std::vector<EngineSetting>& settings) {
  BatchDefaults batch;
  try {
    const HardwareSpec hardware = hardware_with_memory(e);
    if (hardware.memory_bytes < kLeastGpuBytes) return;
    batch = batch_defaults(engine, hardware);
  } catch (const InputError&) {
    return;  // make_setup() refuses the hardware
  }
  const std::int64_t groups = engine == ServingEngine::vllm ? e.integer("parallel.attention_dp") : 1;
  const auto add = [&](const char* key, std::int64_t number) {
    if (number != 0) settings.push_back({key, std::to_string(number * groups)});
  };
  add("scheduler.chunk_tokens", batch.tokens);
  add("scheduler.max_running", batch.requests);
}

std::string times_text(const Experiment& e, ServingEngine engine) {
  if (!e.text("hardware.operators_file").empty()) return "operator times " + e.text("hardware.operators_file");
  const std::string& table = e.text("hardware.operators");
  if (!table.empty() && table != "none") return "operator times " + table;
  if (e.is_given("hardware.operators")) return "roofline";
  const std::string own = own_table(e, engine);
  if (!own.empty()) return "no operator table for " + own + ": roofline";
  return "no operator table for " + e.text("hardware.file") + ", which names no GPU: roofline";
}

}  // namespace

std::string gpu_of(const Experiment& e) {
  try {
    return hardware_of(e).gpu;
  } catch (const InputError&) {
    return "";  // make_setup() refuses the hardware
  }
}

EngineWord engine_word(std::string_view text, const std::string& where) {
  const std::size_t space = text.find(' ');
  const std::string_view name = text.substr(0, space);
  std::vector<std::string> known;
  for (const std::string_view one : names_of<ServingEngine>()) known.emplace_back(one);
  const std::optional<ServingEngine> engine = value_named<ServingEngine>(name);
  if (!engine) throw InputError(where + ": " + unknown_name("engine", name, known));
  EngineWord word{*engine, std::string(space == std::string_view::npos ? "" : text.substr(space + 1)), nullptr};
  const bool versioned = space != std::string_view::npos;
  if (versioned && (*engine == ServingEngine::none || !is_version(word.version))) {
    throw InputError(where + ": is \"" + std::string(text) +
                     "\"; it must be an engine, or one with a release, say \"sglang " +
                     std::string(sglang_releases().back().version) + "\"");
  }
  if (*engine != ServingEngine::sglang) return word;
  word.release = versioned ? find_sglang_release(word.version) : &sglang_releases().back();
  if (word.release == nullptr) {
    throw InputError(where + ": the rules of SGLang " + word.version + " are not known; known are those of " +
                     sglang_release_names());
  }
  return word;
}

BatchDefaults batch_defaults(ServingEngine engine, const HardwareSpec& hardware) {
  const double gib = hardware.memory_bytes / kGib;
  if (engine == ServingEngine::sglang) {
    if (gib >= 160) return {16384, 0};
    return {gib >= 60 ? 8192 : gib >= 20 ? 4096 : 2048, 0};
  }
  if (engine != ServingEngine::vllm) return {};
  if (gib >= 160) return {16384, 1024};
  const auto names = [&](const char* gpu) { return hardware.name.find(gpu) != std::string::npos; };
  const bool a100 = hardware.gpu.starts_with("a100") || names("a100") || names("A100");
  return gib >= 70 && !a100 ? BatchDefaults{8192, 1024} : BatchDefaults{2048, 256};
}

std::vector<EngineSetting> engine_settings(const Experiment& e) {
  const EngineWord word = word_of(e);
  std::vector<EngineSetting> settings;
  if (word.engine == ServingEngine::none) return settings;
  settings.push_back({"serving.engine", std::string(name_of(word.engine))});
  const std::string table = own_table(e, word.engine);
  const std::vector<std::string> tables = operators_preset_names();
  const bool there = std::ranges::find(tables, table) != tables.end();
  settings.push_back({"hardware.operators", there ? table : "none"});
  add_batch(e, word.engine, settings);
  if (word.release != nullptr) {
    settings.push_back({"scheduler.style", "sglang"});
    for (CacheRule& rule : sglang_cache_rules(*word.release, e.policy("cache.write_policy").name == "write_back")) {
      settings.push_back({std::move(rule.key), std::move(rule.value)});
    }
    return settings;
  }
  settings.push_back({"scheduler.style", "vllm"});  // TensorRT-LLM has one budget per step too (in-flight batching)
  settings.push_back({"cache.evict_unit", "page"});
  settings.push_back({"cache.state_points", "align"});
  if (word.engine == ServingEngine::vllm) settings.push_back({"cache.offload", "vllm"});
  settings.push_back({"cache.load_back_min_tokens", "0"});  // vLLM's OffloadingConnector has no shortest load
  return settings;
}

std::string engine_line(const Experiment& e) {
  const EngineWord word = word_of(e);
  if (word.engine == ServingEngine::none) return "";
  std::string line(name_of(word.engine));
  const std::string version = word.release != nullptr ? std::string(word.release->version) : word.version;
  if (!version.empty()) line += " " + version;
  line += "; " + times_text(e, word.engine);
  for (const EngineSetting& setting : engine_settings(e)) {
    if (setting.key != "scheduler.style" || e.text(setting.key) == setting.value) continue;
    line += "; scheduled as " + e.text(setting.key);
  }
  const std::string& serving = e.text("serving.engine");
  if (serving == name_of(word.engine)) return line;
  return line + (serving == "none" ? "; without the engine's host times" : "; host times of " + serving);
}

}  // namespace kvtwin
