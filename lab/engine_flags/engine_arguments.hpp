// Applies the settings of an SGLang server to an experiment.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

struct EngineArguments {
  std::vector<std::string> flags;          // the flag line, or those of a prefill and of a decode engine
  std::optional<std::string> server_info;  // path of a JSON file
  std::string version;  // of SGLang, the same as engine = "sglang VERSION"; empty: of that key, as the server reports,
                        // or the latest known
};

// Sets the keys and adds the notes. `set_later`: keys that the caller sets afterwards, as KEY or KEY=VALUE; there are
// no notes about their values. Errors: InputError.
void apply_engine_arguments(const EngineArguments& arguments, std::span<const std::string> set_later,
                            Experiment& experiment);

}  // namespace kvtwin
