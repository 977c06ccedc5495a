// The flags of SGLang's server, version 0.5.23: each field of its ServerArgs, the kind of value of its flag, SGLang's
// default, and the experiment key with the same meaning. Also flags of earlier versions that scripts still use. Data
// only: sglang_flags.cpp has the code for flags that need more than a key.
//
// For a new release: `tools/engine-parity sglang --flags --renew` writes tests/fixtures/sglang/server_flags.tsv with
// SGLang's own parser, and the tests SglangServer.* then name each row of this table that is missing, gone, or differs.
#pragma once

#include <string_view>

#include "lab/engine_flags/flag_table.hpp"

namespace kvtwin {

inline constexpr std::string_view kSglangVersion = "0.5.23";

const FlagTable& sglang_table();
// Returns whether the field is one of /get_server_info that is not in ServerArgs.
bool is_server_info_field(std::string_view field);

}  // namespace kvtwin
