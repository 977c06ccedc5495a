// Micro-benchmarks of this machine for kvtwin calibrate. They use the same code as real runs: the device (host or CUDA)
// executes plans of the transfer planner, and the disk tier (segments) and the remote tier (servers) are used through
// their queues. A measured time is the time that an operation occupies its lane.
#pragma once

#include <string>
#include <vector>

#include "lab/listener.hpp"
#include "lab/run/storage_secrets.hpp"
#include "models/calibration_samples.hpp"

namespace kvtwin {

struct MeasureTerms {
  std::string device;               // host, cuda, auto
  std::string disk;                 // folder for the disk measurements; the files are removed at the end; "" = no disk
  std::string remote;               // URL of the servers; "" = no servers
  std::vector<std::string> models;  // models whose passes are measured: presets, or paths of a config.json
  double seconds = 100;             // target for all measurements together
  StorageSecrets secrets;           // password and page key of the remote tier
};

// Repeats the same work: copies, forward passes of a small model, and, with `terms.disk`, reads from the disk. Returns
// one measurement (Measured::probe) per kind of work, the median of several repeats. Uses device, disk and secrets of
// `terms`. Errors: as measure_machine(). Cost: about 2 s.
Measurements probe_machine(const MeasureTerms& terms);

// Measures copies, passes, the disk and the servers, with a probe at the start, in the middle and at the end.
// `listener` receives a step for each part.
// Errors: InputError for an absent device, a bad model or a storage tier that cannot be opened; WorkError if a storage
// tier returns nothing.
Measurements measure_machine(const MeasureTerms& terms, const Listener& listener);

}  // namespace kvtwin
