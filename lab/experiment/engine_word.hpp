// The key `engine`: one word for the serving engine of an experiment, with a release behind it if its rules depend on
// the release ("sglang", "sglang 0.5.20", "vllm", "trtllm"). The word sets other keys where the experiment does not:
// scheduler.style, serving.engine, the rules of the engine's prefix cache, hardware.operators, if there is a table of
// the hardware's GPU and of the engine, and the tokens and requests of a pass, by the GPU's memory. "none" sets
// nothing: passes by the hardware's figures, kvtwin's own rules. The default is "sglang". A recorded experiment without
// the key is of a kvtwin without the key, and has "none".
//
// Experiment applies the word after each change, so all readers see the keys that it sets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/sglang_releases.hpp"
#include "models/hardware.hpp"
#include "models/serving_times.hpp"

namespace kvtwin {

class Experiment;

inline constexpr std::string_view kEngineKey = "engine";
// Begin of the origin of a key that the word sets: "engine = sglang".
inline constexpr std::string_view kByEngine = "engine = ";

struct EngineWord {
  ServingEngine engine = ServingEngine::none;
  std::string version;                     // as given; empty: no release was named
  const SglangRelease* release = nullptr;  // of SGLang: the named release, or the latest; null for other engines
};

// `where`: key and origin, for errors. Errors: InputError for an unknown engine or release.
EngineWord engine_word(std::string_view text, const std::string& where);

// What a server's flags are by default, by the memory of its GPU. 0: the engine has no such default.
struct BatchDefaults {
  std::int64_t tokens = 0;    // of a pass
  std::int64_t requests = 0;  // that run
};
// Sources: vLLM 0.33.0, vllm/engine/arg_utils.py, get_batch_defaults; SGLang 0.5.23, srt/arg_groups/memory_hook.py.
BatchDefaults batch_defaults(ServingEngine engine, const HardwareSpec& hardware);

struct EngineSetting {
  std::string key, value;
};
// Returns the keys that the word sets in this experiment, whether or not the experiment gives them.
std::vector<EngineSetting> engine_settings(const Experiment& experiment);

// Returns the GPU that the hardware of the experiment names ("h100-sxm"): its operator tables and its published errors
// apply. Empty if the hardware names none, or cannot be read.
std::string gpu_of(const Experiment& experiment);

// Returns the engine, its release and the source of the times of a simulated pass, for the screen:
// "sglang 0.5.23; operator times h100-sxm/sglang". Empty without an engine.
std::string engine_line(const Experiment& experiment);

}  // namespace kvtwin
