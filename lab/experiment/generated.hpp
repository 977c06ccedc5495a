// Makes the generator of a kind of traffic.
#pragma once

#include <memory>
#include <string_view>

#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// `kind`: chat, agentic or tools. `requests`, `duration` (ns): 0 = no limit. `sessions_per_second`: for chat and
// agentic; 0 = the measured rate of the kind. `requests_per_second`: for tools. Errors: TraceError for a value out of
// range.
std::unique_ptr<TraceSource> generated_traffic(std::string_view kind, std::uint64_t seed, std::uint64_t requests,
                                               TimeNs duration, double sessions_per_second, double requests_per_second);

}  // namespace kvtwin
