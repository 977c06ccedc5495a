// Warnings: what a reader of a run's figures would take for a property of the hardware or of the policy, and is a tier
// too small for its task, or a machine that can't keep up. A starved tier looks like a tier that is not worth buying.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/setup.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/report/metrics.hpp"

namespace kvtwin {

enum class WarningKind : std::uint8_t {
  host_not_larger,      // than the device tier, whose pages write_through copies to it
  backups_dropped,      // pages found no room on the host
  prefetches_revoked,   // more than half of them
  prefetches_declined,  // likewise
  saturated,            // requests come faster than they are served
};
inline constexpr std::array kWarningKinds{WarningKind::host_not_larger, WarningKind::backups_dropped,
                                          WarningKind::prefetches_revoked, WarningKind::prefetches_declined,
                                          WarningKind::saturated};
// As in the report's `warnings`, and in rows of sweep and compare.
std::string_view name_of(WarningKind kind);
// In a few words, where there is no room for a sentence.
std::string_view meaning_of(WarningKind kind);

struct Warning {
  WarningKind kind = WarningKind::host_not_larger;
  std::string sentence;  // what, why, and the size or setting that cures it, with numbers
};

struct RunOutcome {
  const Metrics& metrics;
  const std::vector<LaneUse>& lanes;
  TimeNs end = 0;
  bool open_loop = true;  // requests come at their times, whatever the machine does
};

// In the order of kWarningKinds. A function of its arguments only.
std::vector<Warning> warnings_of(const Setup& setup, const RunOutcome& outcome);

// Of a sweep's rows, each the names of its warnings, with a space between: a line a warning that any row has.
std::string warnings_text(const std::vector<std::string>& rows);

}  // namespace kvtwin
