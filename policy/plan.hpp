// What a transfer between the device pool and a host pool does, in symbols: runs of pages and strides, not
// one descriptor a piece. The simulator charges exactly this; an executor expands it. Made by the planner,
// which is policy code: it depends on slots, layouts and the shape only, never on the world.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/layout.hpp"
#include "policy/types.hpp"

namespace kvtwin {

enum class TransferPath : std::uint8_t {
  copy_engine,  // one DMA descriptor a contiguous piece
  kernel,       // SM threads read or write host memory, any piece size
  staged,       // whole pages by DMA to or from a device buffer, relaid out by a kernel in device memory
};

// cache.io: `direct` is copy_engine, `kernel` is kernel, `automatic` picks by piece size.
enum class IoBackend : std::uint8_t { kernel, direct, automatic };

enum class Direction : std::uint8_t { host_to_device, device_to_host };

struct Plan {
  TransferPath path = TransferPath::copy_engine;
  Direction direction = Direction::host_to_device;
  Layout host_layout = Layout::layer_first;  // the device side is layer_first
  KvShape shape;                             // of one rank
  std::span<const PageRun> runs;             // borrowed from the planner's caller
  Pages pages = 0;
  Bytes bytes = 0;                // of one rank
  std::uint64_t descriptors = 0;  // pieces that the path handles one by one, per rank
  Bytes descriptor_bytes = 0;     // size of the typical piece (bytes / descriptors, rounded up)
};

// Below these piece sizes DMA descriptors cost more than they move. Measured by others on PCIe (H2D 28 KiB,
// D2H 16 KiB: see models/); calibration replaces them.
struct PlannerLimits {
  Bytes copy_engine_min_h2d = 28 * 1024;
  Bytes copy_engine_min_d2h = 16 * 1024;
};

// Fills `runs` with the longest runs of pages that are neighbours on both sides, ascending or descending, in the given
// order. `source` and `target` have equal length.
void join_runs(std::span<const SlotId> source, std::span<const SlotId> target, std::vector<PageRun>& runs);

// `runs` is borrowed by the returned plan.
Plan plan_transfer(std::span<const PageRun> runs, Direction direction, Layout host_layout, const KvShape& shape,
                   IoBackend io, const PlannerLimits& limits);

}  // namespace kvtwin
