#include "policy/plan.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "policy/check.hpp"
#include "policy/mutant.hpp"

namespace kvtwin {
namespace {

std::uint64_t descriptors_of(const Plan& plan) {
  const KvShape& shape = plan.shape;
  const PieceGrid grid = piece_grid(plan.host_layout, shape, 1, 1);
  switch (plan.path) {
    case TransferPath::copy_engine: return (grid.joins_pages() ? plan.runs.size() : plan.pages) * grid.pieces();
    // A warp takes a token's row of one layer, or less where the layout breaks the row up.
    case TransferPath::kernel: return plan.bytes / std::min(shape.row_bytes(), grid.piece_bytes);
    case TransferPath::staged: return plan.runs.size() * shape.planes;
  }
  return 0;
}

void set_path(Plan& plan, TransferPath path) {
  plan.path = path;
  plan.descriptors = descriptors_of(plan);
  plan.descriptor_bytes = plan.descriptors == 0 ? 0 : (plan.bytes + plan.descriptors - 1) / plan.descriptors;
}

}  // namespace

void join_runs(std::span<const SlotId> source, std::span<const SlotId> target, std::vector<PageRun>& runs) {
  KV_CHECK(source.size() == target.size(), "every page has a source and a target");
  runs.clear();
  bool descends = false;  // the last run does
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

Plan plan_transfer(std::span<const PageRun> runs, Direction direction, Layout host_layout, const KvShape& shape,
                   IoBackend io, const PlannerLimits& limits) {
  KV_CHECK(shape.page_bytes() > 0, "a page has bytes");
  Plan plan;
  plan.direction = direction;
  plan.host_layout = host_layout;
  plan.shape = shape;
  plan.runs = runs;
  for (const PageRun& run : runs) plan.pages += run.pages;
  plan.bytes = plan.pages * shape.page_bytes() / (KV_MUTANT(10) ? shape.planes : 1);

  set_path(plan, io == IoBackend::kernel ? TransferPath::kernel : TransferPath::copy_engine);
  const Bytes limit = direction == Direction::host_to_device ? limits.copy_engine_min_h2d : limits.copy_engine_min_d2h;
  if (io == IoBackend::automatic && plan.descriptor_bytes < limit) {
    // Only where a page's bytes lie together on the host can a whole page be moved and laid out afterwards.
    const bool page_contiguous = host_layout != Layout::layer_first;
    set_path(plan, page_contiguous ? TransferPath::staged : TransferPath::kernel);
  }
  return plan;
}

}  // namespace kvtwin
