// What a transfer between the device pool and a host pool does, in symbols: runs of pages and strides, not
// one descriptor a piece. The simulator charges exactly this; an executor expands it. Made by the planner,
// which is policy code: it depends on slots, layouts and the shape only, never on the world.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

enum class TransferPath : std::uint8_t {
  copy_engine,  // one DMA descriptor a contiguous piece
  boxes,        // one DMA descriptor a box of equally spaced pieces (boxes.hpp)
  kernel,       // SM threads read or write host memory, any piece size
  ring,         // SMs by bulk copies through shared memory; pieces of 16-byte multiples
  staged,       // whole pages by DMA to or from a device buffer, relaid out by a kernel in device memory
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

constexpr Bytes kBulkCopyBytes = 16;  // a GPU's bulk copies move multiples of it

// cache.io: `direct` is copy_engine, `kernel` is kernel, `automatic` picks (see plan_transfer).
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

// The pools that a transfer goes between, of one rank. The device side is layer_first.
struct PoolPair {
  KvShape shape;
  Layout host_layout = Layout::layer_first;
  Pages device_pages = 1, host_pages = 1;  // strides hang on them, and copy engines take no stride of 2^31 bytes
};

struct Plan {
  TransferPath path = TransferPath::copy_engine;
  Direction direction = Direction::host_to_device;
  Layout host_layout = Layout::layer_first;
  KvShape shape;                  // of one rank
  std::span<const PageRun> runs;  // borrowed from the planner's caller
  Pages pages = 0;
  Bytes bytes = 0;                // of one rank
  std::uint64_t descriptors = 0;  // that the path handles one by one, per rank
  Bytes descriptor_bytes = 0;     // size of the typical one (bytes / descriptors, rounded up)
  Bytes piece_bytes = 0;          // of the typical piece that is contiguous on both sides; a box's row; staged: what
                                  // lies together of a layer group
  // Loads: in so many groups of layers, one after the other, each of which can be worked on once it has landed.
  std::uint32_t layer_groups = 1;
  // Most bytes that the copy engine is given before the first of them have moved; 0 = all. What an engine itself
  // sends to its GPU in between, a batch's page tables say, waits behind so many.
  Bytes window = 0;
};

// A window's bytes are submitted in so many portions: one is filled up while the others move.
constexpr std::uint32_t kWindowPortions = 4;

// Where one path becomes faster than another: calibration data. The defaults are others' measurements on PCIe and
// arithmetic (models/presets/hardware says which); a machine's own replace them.
struct PlannerLimits {
  // Shorter pieces cost a copy engine more than they move.
  Bytes copy_engine_min_h2d = 28 * 1024;
  Bytes copy_engine_min_d2h = 16 * 1024;
  // Shorter rows make boxes slow; while the GPU computes, slow ones still do less harm than a kernel beside it.
  Bytes box_min = 8 * 1024;
  Bytes box_min_busy = 2 * 1024;
  std::uint64_t kernel_min_pieces = 64;  // fewer are on their way before a kernel has been launched
  bool bulk_copies = false;              // the GPU has them (compute capability 9.0 and later)
  Bytes window_h2d = 8 * 1024 * 1024;
  Bytes layer_group_min = 1024 * 1024;  // smaller groups aren't worth their calls
  std::uint32_t layer_groups_max = 16;
};

// The layers of group number `group` end here, and those of the next one begin.
constexpr std::uint32_t layer_group_end(std::uint32_t layers, std::uint32_t groups, std::uint32_t group) {
  return static_cast<std::uint32_t>(std::uint64_t{layers} * (group + 1) / groups);
}

// Fills `runs` with the longest runs of pages that are neighbours on both sides, ascending or descending, in the given
// order. `source` and `target` have equal length.
void join_runs(std::span<const SlotId> source, std::span<const SlotId> target, std::vector<PageRun>& runs);

// `runs` is borrowed by the returned plan. `busy`: the GPU computes meanwhile. `automatic` takes
//   copy_engine  where pieces are long enough for it, or few;
//   boxes        where rows are long enough; for pages that lie together on the host only while the GPU is busy;
//   staged       for other pages that lie together on the host: DMA in long pieces at any page size; in layer groups
//                only where what lies together of a group is as long as a box's row has to be;
//   ring         for what is left, where the GPU has bulk copies and pieces are theirs to move; else kernel.
Plan plan_transfer(std::span<const PageRun> runs, Direction direction, const PoolPair& pools, IoBackend io,
                   const PlannerLimits& limits, bool busy = false);

}  // namespace kvtwin
