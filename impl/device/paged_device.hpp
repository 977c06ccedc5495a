// A Device on a PageEngine, which moves the bytes (page_engine.hpp). One thread per copy engine and one for the compute
// stream, each with a FIFO. The threads answer operations, check the bytes that they read, and keep the ledger.
//
// A transfer starts after every earlier pass that uses one of its slots (load: its targets; backup: its sources, if the
// pass writes them). The policy's leases exclude such passes, so this costs only a comparison.
//
// A device belongs to one rank. In a group of ranks (impl/runtime/ranks.hpp), passes are joint, because all-reduces tie
// them: the k-th passes of all ranks belong together, and the compute threads agree on the result of each step. A burst
// that any rank has cancelled ends on all ranks after the same step, and has at least one step. A load that any rank
// has lost fails the pass on all ranks: gate_failed, or failed on a rank whose pass had no gates.
//
// A draft model's pool may lie beside the target's, with the same pages in the same slots, in an engine of its own.
// Each job then has a part in both engines, one after the other. After a target's step, the draft model's layers run
// once per proposed token. If the draft's pool stays on the device (DeviceConfig::stays), pages that come back lack its
// KV, and the draft's passes leave them out until they are computed again.
//
// Errors: an exception of the engine ends the run. The operation is answered as `failed`, with the text.
#pragma once

#include <memory>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"

namespace kvtwin {

// `draft_config`, `draft_engine`: of the draft model's pools; both null if there are none.
std::unique_ptr<Device> make_paged_device(const DeviceConfig& config, std::unique_ptr<PageEngine> engine,
                                          const DeviceConfig* draft_config = nullptr,
                                          std::unique_ptr<PageEngine> draft_engine = nullptr);

}  // namespace kvtwin
