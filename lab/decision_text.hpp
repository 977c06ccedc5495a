// Decisions, digests and times as people and --json read them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "policy/seam/decision.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

// 16 hex digits, as in report.json.
std::string digest_text(std::uint64_t digest);
// Seconds with all their nanoseconds: "12.345678901".
std::string seconds_text(TimeNs time);
// 8192 -> "8,192"
std::string grouped(std::uint64_t number);
// "evict_device 3 pages from key 0123456789abcdef on, demoted"
std::string decision_text(const Decision& decision);

nlohmann::ordered_json decision_json(const Decision& decision);
// {"count", "digest"}
nlohmann::ordered_json mark_json(const DecisionMark& mark);

}  // namespace kvtwin
