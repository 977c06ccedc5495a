// Generated traffic by the name of its kind.
#pragma once

#include <memory>
#include <string_view>

#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// `kind`: chat, agentic or tools. 0 requests or duration: no limit. A rate of sessions of 0: the kind's own. TraceError
// on a figure out of range.
std::unique_ptr<TraceSource> generated_traffic(std::string_view kind, std::uint64_t seed, std::uint64_t requests,
                                               TimeNs duration, double sessions_per_second, double requests_per_second);

}  // namespace kvtwin
