// Findings: what a run's counters say about its tiers, with the reason and the size or setting that would change it.
// A finding that makes the run's figures misleading is a warning: a tier that is too small for its task, or a machine
// that cannot keep up with the requests. Without a warning, such figures look like properties of the hardware or of the
// policy; a tier without room looks like a tier that is not worth its price.
//
// Each counter of the report for work that was refused, lost or failed has a sentence if it is not 0. Each sentence
// follows from a counter of its own. No sentence follows from the absence of other counts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/setup.hpp"
#include "lab/report/joined_requests.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/report/metrics.hpp"
#include "lab/report/page_history.hpp"
#include "lab/report/shared_prefixes.hpp"

namespace kvtwin {

enum class WarningKind : std::uint8_t {
  host_not_larger,      // write_through, and the host tier is not larger than the device tier
  host_over_memory,     // the host tier does not fit into the memory of its host
  requests_rejected,    // requests were rejected
  requests_failed,      // requests failed
  prompts_below_page,   // prompts share fewer tokens than a page
  pages_lost,           // pages were computed again after their eviction from memory or storage
  backups_dropped,      // pages were not written to the host, to storage
  prefetches_revoked,   // more than half of the prefetches of pages that were not new were revoked
  prefetches_declined,  // more than half of the prefetches were declined
  prefetches_failed,    // prefetches ended early
  loads_declined,       // hits on the host were not loaded
  storage_fell_short,   // storage did not keep or bring pages
  hand_overs_failed,    // pages did not reach their decode engines
  stores_awaited,       // requests waited until pages had been written to storage
  saturated,            // requests arrive faster than the machine serves them
  drives_worn_out,      // the drives last less than a year at this rate of writes
};
inline constexpr std::array kWarningKinds{
    WarningKind::host_not_larger,   WarningKind::host_over_memory,   WarningKind::requests_rejected,
    WarningKind::requests_failed,   WarningKind::prompts_below_page, WarningKind::pages_lost,
    WarningKind::backups_dropped,   WarningKind::prefetches_revoked, WarningKind::prefetches_declined,
    WarningKind::prefetches_failed, WarningKind::loads_declined,     WarningKind::storage_fell_short,
    WarningKind::hand_overs_failed, WarningKind::stores_awaited,     WarningKind::saturated,
    WarningKind::drives_worn_out};
// Returns the name in the report's `warnings`, and in rows of sweep and compare.
std::string_view name_of(WarningKind kind);
// Returns a short description, for tables.
std::string_view meaning_of(WarningKind kind);

struct Finding {
  WarningKind kind = WarningKind::host_not_larger;
  std::string sentence;     // condition, reason, and the size or setting that ends the condition, with numbers
  bool is_warning = false;  // otherwise a note
};

struct RunOutcome {
  const Metrics& metrics;
  const std::vector<LaneUse>& lanes;
  TimeNs end = 0;
  bool open_loop = true;                        // workload.loop = open
  const PageHistory* history = nullptr;         // null: not known
  const SharedPrefixes* prefixes = nullptr;     // null: not known
  const HandOverFigures* hand_overs = nullptr;  // null: no prefill engines
  Rates measured{};                             // for the wear of drives
};

// Returns the findings in the order of kWarningKinds.
std::vector<Finding> findings_of(const Setup& setup, const RunOutcome& outcome);

// `rows`: for each row of a sweep, the names of its warnings with spaces between. Returns one line per warning that a
// row has, with the number of rows.
std::string warnings_text(const std::vector<std::string>& rows);

}  // namespace kvtwin
