// kvtwin calibrate: micro-benchmarks of this machine, through the parts that serve real runs: the device (host or
// CUDA) carries out plans of the planner's, the disk tier's segments and the remote tier's servers are behind their
// queues. Times are those of the lanes.
#pragma once

#include <string>
#include <vector>

#include "lab/listener.hpp"
#include "lab/run/storage_secrets.hpp"
#include "models/calibration_samples.hpp"

namespace kvtwin {

struct MeasureTerms {
  std::string device;               // host, cuda, auto
  std::string disk;                 // a folder for the disk's measurements, which is left empty; "" = no disk
  std::string remote;               // the servers' URL; "" = none
  std::vector<std::string> models;  // presets, or paths of a config.json: of passes
  double seconds = 100;             // in all, about
  StorageSecrets secrets;           // of the remote tier
};

// `listener` gets a step for each part. InputError for what can't be had.
Measurements measure_machine(const MeasureTerms& terms, const Listener& listener);

}  // namespace kvtwin
