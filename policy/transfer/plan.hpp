// The symbolic description of a transfer between the device pool and a host pool: runs of pages and strides, not one
// descriptor per piece. The simulator charges exactly this plan; an executor expands it. The planner is policy code: it
// depends only on slots, layouts, the shape and whether the GPU is busy, never on the world.
// docs/internals/transfers.md has the table of paths.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

enum class TransferPath : std::uint8_t {
  copy_engine,  // one DMA descriptor per contiguous piece
  boxes,        // one DMA descriptor per box of equally spaced pieces (boxes.hpp)
  kernel,       // SM threads read or write host memory; any piece size
  ring,         // SMs use bulk copies through shared memory; pieces of 16-byte multiples
  staged,       // whole pages by DMA to or from a device buffer; a kernel changes their layout in device memory
};
constexpr std::string_view name_of(TransferPath path) {
  switch (path) {
    case TransferPath::copy_engine: return "copy_engine";
    case TransferPath::boxes: return "boxes";
    case TransferPath::kernel: return "kernel";
    case TransferPath::ring: return "ring";
    case TransferPath::staged: return "staged";
  }
  return "";
}

constexpr Bytes kBulkCopyBytes = 16;  // a GPU's bulk copies move multiples of this

// cache.io: `direct` is copy_engine, `kernel` is kernel, `automatic` chooses (see plan_transfer).
enum class IoBackend : std::uint8_t { kernel, direct, automatic };
constexpr std::string_view name_of(IoBackend io) {
  switch (io) {
    case IoBackend::kernel: return "kernel";
    case IoBackend::direct: return "direct";
    case IoBackend::automatic: return "auto";
  }
  return "";
}

enum class Direction : std::uint8_t { host_to_device, device_to_host };
constexpr std::string_view name_of(Direction direction) {
  switch (direction) {
    case Direction::host_to_device: return "h2d";
    case Direction::device_to_host: return "d2h";
  }
  return "";
}

// The two pools of a transfer, of one rank. The device side is layer_first.
struct PoolPair {
  KvShape shape;
  Layout host_layout = Layout::layer_first;
  Pages device_pages = 1, host_pages = 1;  // for the strides; a copy engine takes no stride of 2^31 bytes or more
};

struct Plan {
  TransferPath path = TransferPath::copy_engine;
  Direction direction = Direction::host_to_device;
  Layout host_layout = Layout::layer_first;
  KvShape shape;                  // of one rank
  std::span<const PageRun> runs;  // borrowed from the caller of plan_transfer
  Pages pages = 0;
  Bytes bytes = 0;                // of one rank
  std::uint64_t descriptors = 0;  // descriptors that the path handles, per rank
  Bytes descriptor_bytes = 0;     // size of a typical descriptor (bytes / descriptors, rounded up)
  // Typical size of a piece that is contiguous on both sides. boxes: a box's row; staged: the contiguous part of a
  // layer group.
  Bytes piece_bytes = 0;
  // Loads: the number of groups of layers. Groups arrive one after the other; a pass can compute with each that has
  // arrived.
  std::uint32_t layer_groups = 1;
  // Limit of the bytes that the copy engine is given before the first of them have moved; 0 = no limit. Data that an
  // engine itself sends to its GPU meanwhile, for example a batch's page tables, waits for at most these bytes.
  Bytes window = 0;
};

// The number of portions in which the bytes of a window are submitted: one is filled up while the others move.
constexpr std::uint32_t kWindowPortions = 4;

// The limits at which one path becomes faster than another: calibration data. The defaults come from measurements of
// other projects on PCIe and from arithmetic (models/presets/hardware has the sources). Measured values of a machine
// replace them.
struct PlannerLimits {
  // For shorter pieces, the copy engine's cost per piece exceeds the time to move it.
  Bytes copy_engine_min_h2d = 28 * 1024;
  Bytes copy_engine_min_d2h = 16 * 1024;
  // Shorter rows make boxes slow. While the GPU computes, slow boxes still do less harm than a kernel beside the pass.
  Bytes box_min = 8 * 1024;
  Bytes box_min_busy = 2 * 1024;
  std::uint64_t kernel_min_pieces = 64;  // fewer pieces arrive before a kernel would have been launched
  bool bulk_copies = false;              // the GPU has bulk copies (compute capability 9.0 and later)
  Bytes window_h2d = 8 * 1024 * 1024;
  Bytes layer_group_min = 1024 * 1024;  // smaller groups are not worth their calls
  std::uint32_t layer_groups_max = 16;
};

// Returns the end of the layers of group number `group`, which is the begin of the next group.
constexpr std::uint32_t layer_group_end(std::uint32_t layers, std::uint32_t groups, std::uint32_t group) {
  return static_cast<std::uint32_t>(std::uint64_t{layers} * (group + 1) / groups);
}

// Fills `runs` with the longest runs, in the given order, of pages that are neighbours on both sides, ascending or
// descending. Requires: `source` and `target` have equal length.
void join_runs(std::span<const SlotId> source, std::span<const SlotId> target, std::vector<PageRun>& runs);

// Returns the plan, which borrows `runs`. `busy`: the GPU computes meanwhile. `automatic` takes the first path that
// fits:
//   copy_engine  if pieces are long enough, or few;
//   boxes        if rows are long enough; for pages that are contiguous on the host, only while the GPU is busy;
//   staged       for other pages that are contiguous on the host: DMA in long pieces at any page size; in layer groups
//                only if the contiguous part of a group is as long as a box's row must be;
//   ring         if the GPU has bulk copies and the pieces are multiples of 16 bytes;
//   kernel       otherwise.
Plan plan_transfer(std::span<const PageRun> runs, Direction direction, const PoolPair& pools, IoBackend io,
                   const PlannerLimits& limits, bool busy = false);

}  // namespace kvtwin
