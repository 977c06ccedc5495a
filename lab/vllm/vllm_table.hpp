// The flags of `vllm serve`, version 0.33.0: each field of its arguments, the kind of value of its flag, vLLM's
// default, and the experiment key with the same meaning. Data only: vllm_flags.cpp has the code for flags that need
// more than a key.
//
// For a new release: `tools/engine-parity vllm --flags --renew` writes tests/fixtures/vllm/server_flags.tsv with vLLM's
// own parser, and the tests VllmServer.* then name each row of this table that is missing, gone, or differs.
#pragma once

#include <string_view>

#include "lab/engine_flags/flag_table.hpp"

namespace kvtwin {

inline constexpr std::string_view kVllmVersion = "0.33.0";

const FlagTable& vllm_table();

}  // namespace kvtwin
