#include "lab/plan/default_parts.hpp"

#include <algorithm>
#include <utility>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/setup_parts.hpp"
#include "models/engine_pools.hpp"
#include "models/presets.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

// Returns the engine whose operator times a GPU must have; empty if all GPUs have the roofline's times.
std::string engine_of_tables(const Experiment& base) {
  if (base.is_given("hardware.operators")) return "";
  const ServingEngine engine = engine_word(base.text(kEngineKey), base.where(kEngineKey)).engine;
  return engine == ServingEngine::none ? "" : std::string(name_of(engine));
}

// Returns why the GPU does not vary by default; empty if it does.
std::string reason_against(const std::string& name, const std::string& engine, const PriceList& prices) {
  const PriceFigure* price = prices.find("gpu." + name + ".hour");
  if (price == nullptr) price = prices.find("gpu." + name + ".price");
  if (price == nullptr) return "no price";
  if (price->is_assumed()) return "an assumed price";
  const HardwareSpec gpu = hardware_preset(name);
  constexpr double kServer = 8;  // GPUs
  if (gpu.domain_ranks > kServer) return "of a rack";
  if (gpu.peak_fp8 == 0) return "no fp8 units";
  const std::vector<std::string> tables = operators_preset_names();
  const bool measured = engine.empty() || std::ranges::find(tables, name + "/" + engine) != tables.end();
  return measured ? "" : "no operator times of " + engine;
}

}  // namespace

std::vector<std::string> comparable_gpus(const Experiment& base, const PriceList& prices) {
  const std::string engine = engine_of_tables(base);
  std::vector<std::string> names = hardware_preset_names();
  std::erase_if(names, [&](const std::string& name) { return !reason_against(name, engine, prices).empty(); });
  return names;
}

DefaultValues default_gpus(const Experiment& base, const PriceList& prices) {
  for (const char* key : {"hardware.name", "hardware.file"}) {
    if (base.is_given(key) && !base.text(key).empty()) return {{}, "GPU " + base.text(key) + ": given"};
  }
  const std::string one = base.text("hardware.name");
  const bool of_one = base.is_given("hardware.operators") && base.text("hardware.operators") != "none";
  if (of_one || !base.text("hardware.operators_file").empty()) {
    return {{}, "GPU " + one + ": the default, because the operator times are given, which are of one GPU"};
  }
  if (base.text("cluster.decode_set").find("hardware.") != std::string::npos) {
    return {{}, "GPU " + one + ": the default, because cluster.decode_set gives the GPU of the decode engines"};
  }
  const std::string engine = engine_of_tables(base);
  DefaultValues gpus;
  std::vector<std::pair<std::string, std::vector<std::string>>> left_out;  // reason, and the GPUs
  for (const std::string& name : hardware_preset_names()) {
    const std::string reason = reason_against(name, engine, prices);
    if (reason.empty()) {
      gpus.values.push_back(name);
      continue;
    }
    auto group = std::ranges::find(left_out, reason, &std::pair<std::string, std::vector<std::string>>::first);
    if (group == left_out.end()) group = left_out.insert(group, {reason, {}});
    group->second.push_back(name);
  }
  gpus.sentence =
      gpus.values.empty() ? "GPU " + one + ": the default" : "GPU: " + joined_words(gpus.values) + ", by default";
  for (const auto& [reason, names] : left_out) {
    gpus.sentence +=
        (&reason == &left_out.front().first ? "; left out: " : ", ") + joined_words(names) + " (" + reason + ")";
  }
  gpus.sentence += "; --vary hardware.name=... takes others";
  return gpus;
}

DefaultValues default_weights(const Experiment& base) {
  if (base.is_given("model.weights")) {
    const std::string& given = base.text("model.weights");
    return {{}, given == "auto" ? "weights: of the given checkpoint" : "weights " + given + ": given"};
  }
  DefaultValues weights;
  if (!base.text("model.config").empty()) {
    weights.sentence = "weights: as model.config says; no published checkpoint in another format is known";
    return weights;
  }
  const ModelGeometry model = model_preset(base.text("model.name"));
  if (model.checkpoints.empty()) {
    const WeightFormat& format = model.experts != 0 ? model.expert_format : model.linear_format;
    weights.sentence = "weights " + format.name + ": no published checkpoint in another format is known";
    return weights;
  }
  std::vector<std::string> named;
  for (const PublishedCheckpoint& checkpoint : model.checkpoints) {
    weights.values.emplace_back(name_of(checkpoint.weights));
    named.push_back(weights.values.back() + " (" + checkpoint.repository + ")");
  }
  weights.sentence = "weights: " + joined_words(named) +
                     ", by default; the answers of a model differ in quality between formats, which kvtwin does not "
                     "measure";
  return weights;
}

std::vector<DefaultPolicy> default_pools(const Experiment& base) {
  const std::string style = base.policy("scheduler.style").name;
  ModelGeometry model = model_of(base, kv_dtype_from_name(base.text("model.kv_dtype")));
  if (style == "vllm") {
    if (!has_block_pool(model) || base.text("model.draft.kind") != "none") return {};
    return {{"cache.state_points",
             "--prefix-cache-retention-interval",
             {"align", "align(retention=4096)", "align(retention=16384)", "align(retention=65536)"}}};
  }
  if (style != "sglang" || !has_several_pools(model)) return {};
  std::vector<DefaultPolicy> policies;
  const bool windows = std::ranges::any_of(model.layers, [](const LayerGeometry& layer) { return layer.window != 0; });
  if (windows && !sglang_keeps_whole_windows(model, true)) {
    policies.push_back({"tiers.device.window_ratio", "--swa-full-tokens-ratio", {"0", "0.05", "0.1", "0.3"}});
  }
  if (model.state_bytes != 0) {
    policies.push_back({"tiers.device.state_ratio", "--mamba-full-memory-ratio", {"0", "0.25", "0.5", "1.5"}});
  }
  return policies;
}

bool computes(const HardwareSpec& gpu, WeightChoice weights) {
  switch (weights) {
    case WeightChoice::automatic:
    case WeightChoice::bf16:
    case WeightChoice::mxfp4:
    case WeightChoice::int4:
    case WeightChoice::int8:
    case WeightChoice::awq: return true;
    case WeightChoice::fp8:
    case WeightChoice::fp8_block:
    case WeightChoice::w4a8: return gpu.peak_fp8 > 0;
    case WeightChoice::mxfp8: return gpu.peak_fp4 > 0;
    case WeightChoice::nvfp4: return gpu.peak_fp4 > 0 && !is_amd(gpu);  // AMD's units: mxfp4
  }
  return false;
}

}  // namespace kvtwin
