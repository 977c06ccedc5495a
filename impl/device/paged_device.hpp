// A Device over an engine that moves its bytes (page_engine.hpp): a thread for each copy engine and one for the compute
// stream, each a FIFO of its own, which answer operations, check what is read, and keep the ledger.
//
// A transfer begins when every pass that was submitted before it and uses one of its slots (a load's targets; a
// backup's sources, if the pass writes them) has ended. By the policy's leases none ever does: it costs a comparison.
//
// A device is one rank's. In a group of ranks (impl/runtime/ranks.hpp) passes are joint, as the all-reduces within tie
// them: the k-th of each rank belong together, and after each step the compute threads agree on what became of it. A
// burst that any rank has cancelled ends on all after the same step, at least one; a load that any has lost fails it on
// all: gate_failed, or failed on a rank whose pass had no gates.
//
// An engine that throws ends the run: the operation is answered `failed`, with the sentence beside it.
#pragma once

#include <memory>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"

namespace kvtwin {

std::unique_ptr<Device> make_paged_device(const DeviceConfig& config, std::unique_ptr<PageEngine> engine);

}  // namespace kvtwin
