// Warnings about conditions that make a run's figures misleading: a tier that is too small for its task, or a machine
// that cannot keep up with the requests. Reason: without a warning, such figures look like properties of the hardware
// or of the policy; a tier without room looks like a tier that is not worth its price.
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
  host_not_larger,      // write_through, and the host tier is not larger than the device tier
  backups_dropped,      // copies to the host found no room
  prefetches_revoked,   // more than half of the prefetches were revoked
  prefetches_declined,  // more than half of the prefetches were declined
  saturated,            // requests arrive faster than the machine serves them
  drives_worn_out,      // the drives last less than a year at this rate of writes
};
inline constexpr std::array kWarningKinds{WarningKind::host_not_larger,    WarningKind::backups_dropped,
                                          WarningKind::prefetches_revoked, WarningKind::prefetches_declined,
                                          WarningKind::saturated,          WarningKind::drives_worn_out};
// Returns the name in the report's `warnings`, and in rows of sweep and compare.
std::string_view name_of(WarningKind kind);
// Returns a short description, for tables.
std::string_view meaning_of(WarningKind kind);

struct Warning {
  WarningKind kind = WarningKind::host_not_larger;
  std::string sentence;  // condition, reason, and the size or setting that removes the warning, with numbers
};

struct RunOutcome {
  const Metrics& metrics;
  const std::vector<LaneUse>& lanes;
  TimeNs end = 0;
  bool open_loop = true;  // workload.loop = open
};

// Returns the warnings in the order of kWarningKinds.
std::vector<Warning> warnings_of(const Setup& setup, const RunOutcome& outcome);

// `rows`: for each row of a sweep, the names of its warnings with spaces between. Returns one line per warning that a
// row has, with the number of rows.
std::string warnings_text(const std::vector<std::string>& rows);

}  // namespace kvtwin
