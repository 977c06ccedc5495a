// Applies the settings of an SGLang or a vLLM server to an experiment.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

// At most one of sglang_flags, sglang_server_info, vllm_flags and server_log is given.
struct EngineArguments {
  std::vector<std::string> sglang_flags;          // the flag line, or those of a prefill and of a decode engine
  std::optional<std::string> sglang_server_info;  // path of a JSON file
  std::string sglang_version;  // the same as engine = "sglang VERSION"; empty: of that key, as the server reports, or
                               // the latest known
  std::optional<std::string> vllm_flags;  // the command line
  std::optional<std::string> server_log;  // path of the log of a server of either engine, which has its first lines
};

// Sets the keys and adds the notes. `set_later`: keys that the caller sets afterwards, as KEY or KEY=VALUE; there are
// no notes about their values. Errors: InputError.
void apply_engine_arguments(const EngineArguments& arguments, std::span<const std::string> set_later,
                            Experiment& experiment);

}  // namespace kvtwin
