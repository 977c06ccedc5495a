// This machine and its load, for the results of `run`, `calibrate` and `validate`. Simulations never read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/calibration_samples.hpp"

namespace kvtwin {

// Returns the processor, kernel, cores and device. `cuda`: the device is the GPU; else host memory.
MeasuredMachine this_machine(bool cuda);

// Times of all processors together since boot, in clock ticks. `stolen`: taken by other virtual machines.
struct ProcessorTimes {
  std::uint64_t all = 0, stolen = 0;
};
// `stat`: the text of /proc/stat. Returns nothing for another text.
std::optional<ProcessorTimes> processor_times(std::string_view stat);
// `loadavg`: the text of /proc/loadavg. Returns the load average of the last minute.
std::optional<double> load_average(std::string_view loadavg);

// Measures the load of the machine from the construction on.
class LoadWatch {
 public:
  LoadWatch();
  // Returns nothing if the system does not report its load.
  std::optional<MachineLoad> load() const;

 private:
  std::optional<double> before_;
  std::optional<ProcessorTimes> times_;
};

}  // namespace kvtwin
