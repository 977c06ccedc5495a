#include "policy/transfer/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/transfer/boxes.hpp"

namespace kvtwin {
namespace {

class Planner {
 public:
  Planner(Plan& plan, const PoolPair& pools)
      : plan_(plan), grid_(piece_grid(pools.host_layout, pools.shape, pools.device_pages, pools.host_pages)) {}

  void set_path(TransferPath path, const PlannerLimits& limits) {
    plan_.path = path;
    plan_.layer_groups = layer_groups(limits);
    plan_.descriptors = descriptors(path);
    plan_.descriptor_bytes = share(plan_.descriptors);
    plan_.piece_bytes = share(path == TransferPath::staged ? slices() : pieces());
  }
  TransferPath choose_path(const PlannerLimits& limits, bool busy) const;

 private:
  Bytes share(std::uint64_t count) const { return count == 0 ? 0 : (plan_.bytes + count - 1) / count; }
  std::uint64_t pieces() const { return (grid_.joins_pages() ? plan_.runs.size() : plan_.pages) * grid_.pieces(); }
  // Staged pages: contiguous parts of a layer group; with one group, a run's pages in a plane.
  std::uint64_t slices() const {
    const std::uint64_t slice = layer_slice_bytes(plan_.host_layout, plan_.shape);
    if (plan_.layer_groups == 1) return plan_.runs.size() * plan_.shape.planes;
    return plan_.layer_groups * (plan_.bytes / (slice * plan_.shape.layers));
  }
  std::uint32_t layer_groups(const PlannerLimits& limits) const;
  std::uint64_t descriptors(TransferPath path) const;

  Plan& plan_;
  const PieceGrid grid_;
};

std::uint32_t Planner::layer_groups(const PlannerLimits& limits) const {
  if (plan_.direction == Direction::device_to_host) return 1;  // no pass waits for the layers of a backup
  const std::uint32_t layers = plan_.shape.layers;
  std::uint64_t max_groups = std::min(layers, limits.layer_groups_max);
  if (limits.layer_group_min != 0)
    max_groups = std::min<std::uint64_t>(max_groups, plan_.bytes / limits.layer_group_min);
  if (plan_.path == TransferPath::staged) {
    const Bytes slice = layer_slice_bytes(plan_.host_layout, plan_.shape);
    const Bytes min_layers = std::max<Bytes>(1, (limits.box_min + slice - 1) / slice);  // layers
    max_groups = slice * layers > kMaxPitchBytes ? 1 : std::min(max_groups, layers / min_layers);
  }
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, max_groups));
}

std::uint64_t Planner::descriptors(TransferPath path) const {
  const KvShape& shape = plan_.shape;
  switch (path) {
    case TransferPath::copy_engine: return pieces();
    case TransferPath::boxes: {
      std::uint64_t boxes = 0;
      std::uint32_t begin = 0;
      for (std::uint32_t group = 0; group < plan_.layer_groups; ++group) {
        const std::uint32_t end = layer_group_end(shape.layers, plan_.layer_groups, group);
        for (const PageRun& run : plan_.runs) boxes += box_grid(grid_, run.pages, end - begin).boxes();
        begin = end;
      }
      return boxes;
    }
    // A warp moves a token's row of one layer, or less if the layout breaks up the row.
    case TransferPath::kernel: return plan_.bytes / std::min(shape.row_bytes(), grid_.piece_bytes);
    // A bulk copy moves one piece of a page.
    case TransferPath::ring: return plan_.pages * grid_.pieces();
    case TransferPath::staged: return plan_.runs.size() * (plan_.layer_groups == 1 ? shape.planes : plan_.layer_groups);
  }
  return 0;
}

TransferPath Planner::choose_path(const PlannerLimits& limits, bool busy) const {
  const std::uint64_t count = pieces();
  const Bytes piece = share(count);
  const bool up = plan_.direction == Direction::host_to_device;
  if (piece >= (up ? limits.copy_engine_min_h2d : limits.copy_engine_min_d2h) || count < limits.kernel_min_pieces) {
    return TransferPath::copy_engine;
  }
  // Only if a page is contiguous on the host can it be moved as a whole, and its layout be changed afterwards.
  const bool together = plan_.host_layout != Layout::layer_first;
  const bool rows_suffice = piece >= (busy && !together ? limits.box_min_busy : limits.box_min);
  // If strides exceed the copy engine's limit, each piece is a box of its own.
  if (rows_suffice && (busy || !together) && descriptors(TransferPath::boxes) < count) return TransferPath::boxes;
  if (together) return TransferPath::staged;
  return limits.bulk_copies && grid_.piece_bytes % kBulkCopyBytes == 0 ? TransferPath::ring : TransferPath::kernel;
}

}  // namespace

void join_runs(std::span<const SlotId> source, std::span<const SlotId> target, std::vector<PageRun>& runs) {
  KV_CHECK(source.size() == target.size(), "every page has a source and a target");
  runs.clear();
  bool descends = false;  // the last run descends
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (!runs.empty()) {
      PageRun& last = runs.back();
      if ((last.pages == 1 || !descends) && source[i] == last.source_first + last.pages &&
          target[i] == last.target_first + last.pages) {
        ++last.pages;
        descends = false;
        continue;
      }
      if ((last.pages == 1 || descends) && source[i] + 1 == last.source_first && target[i] + 1 == last.target_first) {
        last = {source[i], target[i], last.pages + 1};
        descends = true;
        continue;
      }
    }
    runs.push_back({source[i], target[i], 1});
  }
}

Plan plan_transfer(std::span<const PageRun> runs, Direction direction, const PoolPair& pools, IoBackend io,
                   const PlannerLimits& limits, bool busy) {
  KV_CHECK(pools.shape.page_bytes() > 0, "a page has bytes");
  Plan plan;
  plan.direction = direction;
  plan.host_layout = pools.host_layout;
  plan.shape = pools.shape;
  plan.runs = runs;
  for (const PageRun& run : runs) plan.pages += run.pages;
  plan.bytes = plan.pages * pools.shape.page_bytes() / (KV_MUTANT(10) ? pools.shape.planes : 1);
  if (direction == Direction::host_to_device) plan.window = limits.window_h2d;

  Planner planner(plan, pools);
  switch (io) {
    case IoBackend::kernel: planner.set_path(TransferPath::kernel, limits); break;
    case IoBackend::direct: planner.set_path(TransferPath::copy_engine, limits); break;
    case IoBackend::automatic: planner.set_path(planner.choose_path(limits, busy), limits); break;
  }
  return plan;
}

}  // namespace kvtwin
