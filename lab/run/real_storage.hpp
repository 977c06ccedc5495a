// The storage tiers of a real run: back ends as the experiment asks for them, and what there is to say about them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "impl/storage/tier_queues.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

struct RealStorage {
  std::unique_ptr<PageSeal> seal;  // null: without a page key
  std::vector<std::unique_ptr<TierQueues>> tiers;
  std::vector<std::string> notes;  // how each reads and writes, what it found, and whether it answers
};

// InputError for what can't be served or opened. `memory` outlives the tiers. `slow_factor`: this rank's.
RealStorage open_storage(const Experiment& experiment, const Setup& setup, PageMemory& memory, double slow_factor,
                         const StorageSecrets& secrets);

}  // namespace kvtwin
