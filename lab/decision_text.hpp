// Text and JSON of decisions, digests and times.
#pragma once

#include <cstdint>
#include <string>

#include "models/json.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

// Returns 16 hex digits, as in report.json.
std::string digest_text(std::uint64_t digest);
// Returns seconds with nine decimals: "12.345678901".
std::string seconds_text(TimeNs time);
// Groups the digits: 8192 becomes "8,192".
std::string grouped(std::uint64_t number);
// Returns e.g. "evict_device 3 pages from key 0123456789abcdef on, demoted".
std::string decision_text(const Decision& decision);

Json decision_json(const Decision& decision);
// {"count", "digest"}
Json mark_json(const DecisionMark& mark);

}  // namespace kvtwin
