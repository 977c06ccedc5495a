#include "lab/engine_arguments.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/engine_flags/server_log.hpp"
#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/vllm/vllm_flags.hpp"
#include "lab/vllm/vllm_table.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

// The key `engine` in the words of the user: of a later setting, or of the experiment. Empty if nobody gave it.
struct GivenEngine {
  std::string text, where;
};

GivenEngine given_engine(const Experiment& experiment, std::span<const std::string> set_later) {
  const std::string key(kEngineKey);
  GivenEngine given;
  if (experiment.is_given(key)) given = {experiment.text(key), experiment.where(key)};
  for (const std::string& text : set_later) {
    if (text.starts_with(key + "=")) given = {text.substr(key.size() + 1), key + " (--set)"};
  }
  const std::string_view text = given.text;
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') given.text = text.substr(1, text.size() - 2);
  return given;
}

// Returns the hardware that the experiment has after the later settings.
HardwareSpec later_hardware(const Experiment& experiment, std::span<const std::string> set_later) {
  Experiment later = experiment;
  for (const std::string& text : set_later) {
    if (text.starts_with("hardware.") && text.find('=') != std::string::npos) later.set(text);
  }
  return hardware_with_memory(later);
}

void apply_log(const std::string& file, std::span<const std::string> set_later, KeyList keys,
               const SglangRelease* release, Experiment& experiment) {
  const std::string where = "--from-server-log";
  std::string source = where + ": " + file;
  const ServerLog log = read_server_log(read_log_head(file, where), source);
  // The text becomes part of an origin, which is written as a TOML comment.
  std::ranges::replace_if(
      source, [](char c) { return c < 0x20 || c == 0x7F; }, '?');
  if (log.of_vllm) {
    apply_vllm_arguments(experiment, log.arguments, log.pool_tokens, source, later_hardware(experiment, set_later),
                         keys);
    if (!log.version.empty() && log.version != kVllmVersion) {
      experiment.note(source + ": the server is vLLM " + log.version + "; defaults are those of " +
                      std::string(kVllmVersion));
    }
  } else {
    Json info = log.arguments;
    if (log.pool_tokens != 0) info["max_total_num_tokens"] = log.pool_tokens;
    apply_sglang_fields(experiment, info, source, keys, release);
  }
  if (log.pool_tokens == 0) {
    experiment.note(source + ": has no line with the size of the KV cache (" +
                    (log.of_vllm ? "KV cache size: N tokens" : "max_total_num_tokens=N") +
                    "); the size follows from the GPU's memory");
  }
}

}  // namespace

void apply_engine_arguments(const EngineArguments& arguments, std::span<const std::string> set_later,
                            Experiment& experiment) {
  std::vector<std::string> keys;
  for (const std::string& text : set_later) keys.push_back(text.substr(0, text.find('=')));
  const GivenEngine given = given_engine(experiment, set_later);
  const EngineWord word = given.text.empty() ? EngineWord{} : engine_word(given.text, given.where);
  const bool of_sglang = !arguments.sglang_flags.empty() || arguments.sglang_server_info;
  const SglangRelease* release = word.version.empty() ? nullptr : word.release;
  const bool of_other =
      (of_sglang && word.release == nullptr) || (arguments.vllm_flags && word.engine != ServingEngine::vllm);
  if (of_other && given.where.ends_with("(--set)")) {
    throw InputError(given.where + ": is " + given.text + ", and the flags are of " + (of_sglang ? "SGLang" : "vLLM") +
                     "; leave it out, or give the keys of " + given.text + " without these flags");
  }
  if (!arguments.sglang_version.empty()) {
    const SglangRelease* const named = find_sglang_release(arguments.sglang_version);
    if (named == nullptr) {
      throw InputError("--sglang-version: the rules of SGLang " + arguments.sglang_version +
                       " are not known; known are those of " + sglang_release_names());
    }
    const bool other_engine = !of_sglang && !given.text.empty() && word.release == nullptr;
    if (other_engine || (release != nullptr && release != named)) {
      throw InputError("--sglang-version is " + arguments.sglang_version + ", and " + given.where + " is " +
                       given.text + "; give one of them");
    }
    release = named;
    const bool of_a_server = of_sglang || arguments.server_log;
    if (!of_a_server) experiment.set("engine=sglang " + arguments.sglang_version, "--sglang-version");
  }
  if (!arguments.sglang_flags.empty()) apply_sglang_lines(experiment, arguments.sglang_flags, keys, release);
  if (arguments.sglang_server_info) apply_sglang_server_info(experiment, *arguments.sglang_server_info, keys, release);
  if (arguments.vllm_flags) {
    apply_vllm_line(experiment, *arguments.vllm_flags, later_hardware(experiment, set_later), keys);
  }
  if (arguments.server_log) apply_log(*arguments.server_log, set_later, keys, release, experiment);
}

}  // namespace kvtwin
