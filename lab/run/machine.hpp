// This machine, and what else it does while something is measured on it: for what `run`, `calibrate` and `validate`
// measured, never for a simulation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/calibration_samples.hpp"

namespace kvtwin {

// `cuda`: its device is the GPU, else host memory.
MeasuredMachine this_machine(bool cuda);

// Of the first line of /proc/stat, in clock ticks.
struct ProcessorTimes {
  std::uint64_t all = 0, stolen = 0;
};
// None for a text that isn't such a file's.
std::optional<ProcessorTimes> processor_times(std::string_view stat);
// The load average of the last minute, as /proc/loadavg has it.
std::optional<double> load_average(std::string_view loadavg);

// From its making on.
class LoadWatch {
 public:
  LoadWatch();
  // None where the system doesn't tell.
  std::optional<MachineLoad> load() const;

 private:
  std::optional<double> before_;
  std::optional<ProcessorTimes> times_;
};

}  // namespace kvtwin
