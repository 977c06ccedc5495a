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
// Beside the pages of full attention lie other kinds of KV (kv_pools.hpp), each in an engine of its own. Each job then
// has a part in each engine, one after the other.
// - A draft model's pool has the same pages in the same slots. After a target's step, the draft model's layers run once
//   per proposed token. If its pool stays on the device (DeviceConfig::stays), pages that come back lack its KV, and
//   the draft's passes leave them out until they are computed again.
// - Windows: a pass reads and writes those that its tokens attend to.
// - States: a pass first copies cached ones to the slots of its requests, within the device. It reads the states that a
//   step begins with, and writes those behind the step's tokens once the step counts on all ranks, so a pass that fails
//   changes none.
//
// Errors: an exception of the engine ends the run. The operation is answered as `failed`, with the text.
#pragma once

#include <memory>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"

namespace kvtwin {

struct PagedDevicePart {
  DeviceConfig config;
  std::unique_ptr<PageEngine> engine;
};

// The first part holds the pages of full attention. A draft model's pool comes next. Each pool of
// EngineConfig::pools has a part, or none has.
std::unique_ptr<Device> make_paged_device(std::vector<PagedDevicePart> parts);

}  // namespace kvtwin
