// Tests the copies that a copy engine gets for a transfer, for all shapes of known models and some others. The copies
// cover exactly the bytes of the pages, each byte once, and move each byte from its place to its target according to
// byte_offset(). The tests access no memory, so pools may have any size.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/transfer.hpp"
#include "policy/transfer/plan.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};

struct Interval {
  std::uint64_t begin = 0, end = 0;
};

// Returns the index of the head row at `offset` of a layer_first pool.
KvIndex index_at(const KvShape& s, std::uint64_t pool_pages, std::uint64_t offset) {
  KvIndex i;
  i.head = static_cast<std::uint32_t>(offset / s.head_bytes % s.heads);
  const std::uint64_t token = offset / s.row_bytes();
  const std::uint64_t tokens = pool_pages * s.page_tokens;
  i.token = static_cast<std::uint32_t>(token % tokens % s.page_tokens);
  i.page = token % tokens / s.page_tokens;
  i.layer = static_cast<std::uint32_t>(token / tokens % s.layers);
  i.plane = static_cast<std::uint32_t>(token / tokens / s.layers);
  return i;
}

std::vector<PieceCopy> rows_of(const std::vector<Box>& boxes) {
  std::vector<PieceCopy> rows;
  for (const Box& box : boxes) {
    for (std::uint64_t slice = 0; slice < box.depth; ++slice) {
      for (std::uint64_t row = 0; row < box.height; ++row) {
        rows.push_back({box.device_at + slice * box.device_slice + row * box.device_pitch,
                        box.host_at + slice * box.host_slice + row * box.host_pitch, box.width});
      }
    }
  }
  return rows;
}

// Expects that the intervals are disjoint and have `bytes` bytes together.
void expect_partition(std::vector<Interval> intervals, std::uint64_t bytes) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    sum += intervals[i].end - intervals[i].begin;
    if (i == 0) continue;
    ASSERT_LE(intervals[i - 1].end, intervals[i].begin) << "two copies share bytes";
  }
  ASSERT_EQ(sum, bytes);
}

void check_copies(const TransferParams& p, const std::vector<PieceCopy>& copies) {
  const KvShape& s = p.shape;
  std::vector<std::uint64_t> host_page(p.device_pages, ~std::uint64_t{0});
  std::uint64_t pages = 0;
  for (std::uint64_t r = 0; r < p.run_count; ++r) {
    for (std::uint32_t i = 0; i < p.runs[r].pages; ++i, ++pages) {
      host_page[p.runs[r].target_first + i] = p.runs[r].source_first + i;
    }
  }
  std::vector<Interval> on_device, on_host;
  for (const PieceCopy& copy : copies) {
    on_device.push_back({copy.device_at, copy.device_at + copy.bytes});
    on_host.push_back({copy.host_at, copy.host_at + copy.bytes});
    // Checks the first and the last head row of a copy. Between them, both sides are contiguous.
    ASSERT_EQ(copy.bytes % s.head_bytes, 0U);
    for (const std::uint64_t at : {std::uint64_t{0}, copy.bytes - s.head_bytes}) {
      KvIndex i = index_at(s, p.device_pages, copy.device_at + at);
      ASSERT_TRUE(i.layer >= p.layer_begin && i.layer < p.layer_end);
      i.page = host_page[i.page];
      ASSERT_NE(i.page, ~std::uint64_t{0}) << "of a page that doesn't move";
      ASSERT_EQ(byte_offset(p.host_layout, s, p.host_pages, i), copy.host_at + at);
    }
  }
  const std::uint64_t bytes = pages * s.page_bytes() / s.layers * (p.layer_end - p.layer_begin);
  ASSERT_NO_FATAL_FAILURE(expect_partition(std::move(on_device), bytes));
  ASSERT_NO_FATAL_FAILURE(expect_partition(std::move(on_host), bytes));
}

void check_boxes(const std::vector<Box>& boxes, std::size_t pieces) {
  ASSERT_LE(boxes.size(), pieces);
  for (const Box& box : boxes) {
    ASSERT_GT(box.width * box.height * box.depth, 0U);
    for (const auto& [pitch, slice] :
         {std::pair{box.device_pitch, box.device_slice}, {box.host_pitch, box.host_slice}}) {
      ASSERT_GE(pitch, box.width);
      ASSERT_TRUE(pitch <= kMaxPitchBytes || box.height == 1);
      ASSERT_EQ(slice % pitch, 0U);
      ASSERT_GE(slice / pitch, box.height);
    }
  }
}

// Checks staging: the copies between buffer and host for a range of layers cover exactly these layers of the pages.
void check_staged(const TransferParams& p, const StagedPages& at) {
  const KvShape& s = p.shape;
  std::vector<Box> boxes;
  expand_staged(p, at, boxes);
  const bool whole = p.layer_begin == 0 && p.layer_end == s.layers;
  ASSERT_EQ(boxes.size(), p.layer_begin == p.layer_end ? 0 : whole ? s.planes : 1);
  ASSERT_NO_FATAL_FAILURE(check_boxes(boxes, boxes.size()));
  std::vector<Interval> staged, hosted;
  for (const PieceCopy& row : rows_of(boxes)) {
    staged.push_back({row.device_at, row.device_at + row.bytes});
    hosted.push_back({row.host_at, row.host_at + row.bytes});
  }
  const std::uint64_t bytes = at.pages * s.page_bytes() / s.layers * (p.layer_end - p.layer_begin);
  ASSERT_NO_FATAL_FAILURE(expect_partition(std::move(staged), bytes));
  ASSERT_NO_FATAL_FAILURE(expect_partition(std::move(hosted), bytes));
  // The first and last byte of each layer of each page are in one row, at the same position on both sides.
  const std::vector<PieceCopy> rows = rows_of(boxes);
  for (std::uint64_t page = 0; page < at.pages; ++page) {
    for (std::uint32_t layer = p.layer_begin; layer < p.layer_end; ++layer) {
      for (const bool last : {false, true}) {
        KvIndex i{page, last ? s.planes - 1 : 0, layer, last ? s.page_tokens - 1 : 0, last ? s.heads - 1 : 0};
        i.page = at.staging_first + page;
        const std::uint64_t in_staging = byte_offset(p.host_layout, s, at.staging_pages, i);
        i.page = at.host_first + page;
        const std::uint64_t on_host = byte_offset(p.host_layout, s, at.host_pages, i);
        const auto row = std::ranges::find_if(rows, [&](const PieceCopy& r) {
          return r.device_at <= in_staging && in_staging + s.head_bytes <= r.device_at + r.bytes;
        });
        ASSERT_NE(row, rows.end());
        ASSERT_EQ(on_host - row->host_at, in_staging - row->device_at);
      }
    }
  }
}

// The counts of the planner must equal the copies that an executor gets.
void check_plans(const TransferParams& p, std::size_t pieces, std::size_t boxes) {
  const PoolPair pools{p.shape, p.host_layout, p.device_pages, p.host_pages};
  const auto planned = [&](IoBackend io, const PlannerLimits& limits) {
    return plan_transfer({p.runs, p.run_count}, Direction::host_to_device, pools, io, limits);
  };
  const Plan direct = planned(IoBackend::direct, {});
  ASSERT_EQ(direct.path, TransferPath::copy_engine);
  ASSERT_EQ(direct.descriptors, pieces);
  const Plan automatic = planned(IoBackend::automatic, {.copy_engine_min_h2d = ~Bytes{0},
                                                        .box_min = 0,
                                                        .box_min_busy = 0,
                                                        .kernel_min_pieces = 0,
                                                        .bulk_copies = true,
                                                        .layer_groups_max = 1});
  ASSERT_EQ(automatic.bytes, direct.bytes);
  switch (automatic.path) {
    case TransferPath::boxes:
      ASSERT_EQ(automatic.descriptors, boxes);
      ASSERT_LT(boxes, pieces);
      break;
    case TransferPath::ring: ASSERT_EQ(piece_grid(p.host_layout, p.shape, 1, 1).piece_bytes % 16, 0U); [[fallthrough]];
    case TransferPath::kernel:
      ASSERT_EQ(p.host_layout, Layout::layer_first);
      ASSERT_EQ(boxes, pieces) << "boxes would have been fewer";
      break;
    case TransferPath::staged: ASSERT_NE(p.host_layout, Layout::layer_first); break;
    case TransferPath::copy_engine: FAIL() << "no piece is as long as that";
  }
}

// Pairs of host slots and device slots.
struct Slots {
  const char* name;
  std::vector<SlotId> host, device;
};

std::vector<Slots> slot_sets(Splitmix& rng, SlotId pool) {
  std::vector<SlotId> up(pool), down, drawn;
  std::iota(up.begin(), up.end(), SlotId{0});
  down.assign(up.rbegin(), up.rend());
  drawn = up;
  for (std::size_t i = drawn.size(); i > 1; --i) std::swap(drawn[i - 1], drawn[rng.below(i)]);
  std::vector<SlotId> gaps;
  for (SlotId i = 0; i < pool; i += 2) gaps.push_back(i);
  return {{"none", {}, {}},       {"one", {pool - 1}, {0}}, {"ascending", up, up}, {"descending", down, down},
          {"crossing", up, down}, {"drawn", drawn, up},     {"gaps", gaps, gaps},  {"drawn alike", drawn, drawn}};
}

void check_shape(Splitmix& rng, const KvShape& shape, Layout layout) {
  constexpr SlotId kPages = 5;
  const std::vector<Slots> sets = slot_sets(rng, kPages);
  const bool large = shape.page_bytes() / piece_grid(layout, shape, 1, 1).piece_bytes > 40'000;  // then test one page
  const Slots& slots = sets[large ? 1 : rng.below(sets.size())];
  SCOPED_TRACE(std::to_string(shape.heads) + " x " + std::to_string(shape.head_bytes) + " bytes, pages of " +
               std::to_string(shape.page_tokens) + ", layers " + std::to_string(shape.layers) + ", layout " +
               std::to_string(static_cast<int>(layout)) + ", slots " + slots.name);
  std::vector<PageRun> runs;
  join_runs(slots.host, slots.device, runs);
  TransferParams params;
  params.shape = shape;
  params.device_pages = kPages + rng.below(2) * 3'000'000;  // some rows of a layer are beyond 2^31 bytes
  params.host_pages = kPages + rng.below(2) * 3'000'000;
  params.host_layout = layout;
  params.runs = runs.data();
  params.run_count = runs.size();
  params.layer_end = shape.layers;
  const bool some_layers = rng.chance(50);
  if (some_layers) {
    params.layer_begin = static_cast<std::uint32_t>(rng.below(shape.layers));
    params.layer_end = static_cast<std::uint32_t>(rng.between(params.layer_begin, shape.layers));
  }
  std::vector<PieceCopy> pieces;
  expand_pieces(params, pieces);
  ASSERT_NO_FATAL_FAILURE(check_copies(params, pieces));
  std::vector<Box> boxes;
  expand_boxes(params, boxes);
  ASSERT_NO_FATAL_FAILURE(check_boxes(boxes, pieces.size()));
  ASSERT_NO_FATAL_FAILURE(check_copies(params, rows_of(boxes)));
  if (layout != Layout::layer_first && !large) {
    const std::uint64_t pages = rng.between(1, 3), staging = pages + rng.below(3);
    ASSERT_NO_FATAL_FAILURE(check_staged(params, {.pages = pages,
                                                  .staging_first = rng.below(staging - pages + 1),
                                                  .staging_pages = staging,
                                                  .host_first = rng.below(params.host_pages - pages),
                                                  .host_pages = params.host_pages}));
  }
  if (!some_layers) {
    ASSERT_NO_FATAL_FAILURE(check_plans(params, pieces.size(), boxes.size()));
  }
}

TEST(Geometry, CopiesCoverTheirPagesOnceAndRight) {
  Splitmix rng(7);
  // {heads, bytes per head}: rows of 8, 16, 64, 128, 512, 576, 656, 1152, 2048, 4096, 4680 and 257 bytes
  constexpr std::pair<std::uint32_t, std::uint32_t> kRows[] = {{1, 8},   {2, 8},    {4, 16},  {1, 128},
                                                               {2, 256}, {1, 576},  {1, 656}, {1, 1152},
                                                               {8, 256}, {16, 256}, {9, 520}, {1, 257}};
  for (const auto& [heads, head_bytes] : kRows) {
    for (const std::uint32_t page_tokens : {1U, 2U, 16U, 32U, 64U, 128U}) {
      for (const std::uint32_t layers : {1U, 2U, 61U, 80U}) {
        const std::uint32_t planes = heads > 1 ? 2 : 1;  // one head: an MLA latent
        for (const Layout layout : kLayouts) {
          check_shape(rng, {layers, planes, heads, head_bytes, page_tokens}, layout);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// The purpose of boxes: one copy per page or run, instead of hundreds of copies of pieces.
TEST(Geometry, BoxesAreFew) {
  const KvShape llama{32, 2, 8, 256, 16};
  const std::vector<PageRun> runs = {{0, 7, 3}, {9, 2, 1}};
  const auto boxes = [&](Layout layout, std::uint64_t pool) {
    TransferParams params;
    params.shape = llama;
    params.device_pages = params.host_pages = pool;
    params.host_layout = layout;
    params.runs = runs.data();
    params.run_count = runs.size();
    params.layer_end = llama.layers;
    std::vector<Box> all;
    expand_boxes(params, all);
    return all.size();
  };
  EXPECT_EQ(boxes(Layout::layer_first, 100), 2U);
  EXPECT_EQ(boxes(Layout::page_first_direct, 100), 4U);
  EXPECT_EQ(boxes(Layout::page_first, 100), 32U + 16U);
  // A layer of this pool is larger than the maximum pitch, so a box joins pages and planes instead of layers.
  EXPECT_EQ(boxes(Layout::layer_first, 100'000), 2 * 64U);
  EXPECT_EQ(boxes(Layout::page_first_direct, 100'000), 32U + 64U);
}

}  // namespace
}  // namespace kvtwin::test
