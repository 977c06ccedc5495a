// Opens the storage tiers of a real run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/runtime/ranks.hpp"
#include "impl/storage/tier_queues.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/real_ranks.hpp"
#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

struct RealStorage {
  std::unique_ptr<PageSeal> seal;  // null: without a page key
  std::vector<std::unique_ptr<TierQueues>> tiers;
  std::vector<std::string> notes;  // for the report: mode and contents of each tier, and servers that do not answer
};

// Opens all storage tiers of the experiment. `slow_factor`: the factor of this rank (faults).
// `device`: has the memory of the pages, of a draft model's pool beside the target's, and of windows and states.
// `everyone`: all processes of the run, each of which calls this, in a work of RealRanks::run(); null = one process.
// Requires: the device outlives the tiers. Errors: InputError if a tier cannot be opened.
RealStorage open_storage(const Experiment& experiment, const Setup& setup, Device& device, double slow_factor,
                         const StorageSecrets& secrets, RealRanks* everyone = nullptr);

}  // namespace kvtwin
