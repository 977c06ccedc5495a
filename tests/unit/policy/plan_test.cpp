#include "policy/transfer/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};
// Limits with which the planner uses copy engines only for whole pages.
constexpr PlannerLimits kNever{.copy_engine_min_h2d = ~Bytes{0},
                               .copy_engine_min_d2h = ~Bytes{0},
                               .box_min = ~Bytes{0},
                               .box_min_busy = ~Bytes{0},
                               .kernel_min_pieces = 0};
constexpr PlannerLimits kAlways{.copy_engine_min_h2d = 0, .copy_engine_min_d2h = 0};

std::vector<PageRun> joined(const std::vector<SlotId>& source, const std::vector<SlotId>& target) {
  std::vector<PageRun> runs = {{1, 2, 3}};  // a run of another transfer, which join_runs() must not change
  join_runs(source, target, runs);
  return runs;
}

TEST(JoinRuns, JoinsNeighboursOfBothSides) {
  EXPECT_EQ(joined({4, 5, 6, 7, 6, 5, 0, 1, 9}, {1, 2, 3, 8, 9, 10, 20, 21, 22}),
            (std::vector<PageRun>{{4, 1, 3}, {7, 8, 1}, {6, 9, 1}, {5, 10, 1}, {0, 20, 2}, {9, 22, 1}}));
  EXPECT_EQ(joined({}, {}), std::vector<PageRun>{});
}

TEST(JoinRuns, JoinsWhatDescendsOnBothSides) {
  EXPECT_EQ(joined({9, 8, 7, 3, 2}, {6, 5, 4, 1, 2}), (std::vector<PageRun>{{7, 4, 3}, {3, 1, 1}, {2, 2, 1}}));
  EXPECT_EQ(joined({1, 0}, {1, 0}), (std::vector<PageRun>{{0, 0, 2}}));
}

// A run has one direction. So after n moved pages of a run, the first n pages of the list have moved.
TEST(JoinRuns, TurnsWithANewRun) {
  EXPECT_EQ(joined({5, 6, 4, 3}, {5, 6, 4, 3}), (std::vector<PageRun>{{5, 5, 2}, {3, 3, 2}}));
  EXPECT_EQ(joined({6, 5, 7}, {6, 5, 7}), (std::vector<PageRun>{{5, 5, 2}, {7, 7, 1}}));
}

TEST(JoinRuns, RefusesUnequalLists) {
  const test::ThrowingChecks checks;
  std::vector<PageRun> runs;
  EXPECT_THROW(join_runs(std::vector<SlotId>{1}, {}, runs), test::BrokenPromise);
}

struct Row {
  std::uint64_t device, host;
};

// Returns the number of pieces of the plan, computed from single head rows. Rows are joined within a run if an executor
// can join them. `host_only`: rows are joined if they are contiguous on the host, as in a staged copy of whole pages.
std::uint64_t expand(const Plan& plan, bool host_only) {
  constexpr std::uint64_t kDevicePool = 40, kHostPool = 50;
  const KvShape& s = plan.shape;
  std::uint64_t pieces = 0;
  for (const PageRun& run : plan.runs) {
    std::vector<Row> rows;
    for (std::uint32_t page = 0; page < run.pages; ++page) {
      for (std::uint32_t plane = 0; plane < s.planes; ++plane) {
        for (std::uint32_t layer = 0; layer < s.layers; ++layer) {
          for (std::uint32_t token = 0; token < s.page_tokens; ++token) {
            for (std::uint32_t head = 0; head < s.heads; ++head) {
              const KvIndex source{run.source_first + page, plane, layer, token, head};
              const KvIndex target{run.target_first + page, plane, layer, token, head};
              rows.push_back({byte_offset(Layout::layer_first, s, kDevicePool, target),
                              byte_offset(plan.host_layout, s, kHostPool, source)});
            }
          }
        }
      }
    }
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.host < b.host; });
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const bool host_joins = i > 0 && rows[i].host == rows[i - 1].host + s.head_bytes;
      const bool device_joins = i > 0 && rows[i].device == rows[i - 1].device + s.head_bytes;
      if (!host_joins || !(host_only || device_joins)) ++pieces;
    }
  }
  return pieces;
}

std::vector<KvShape> small_shapes() {
  std::vector<KvShape> shapes;
  for (const std::uint32_t layers : {1u, 3u}) {
    for (const std::uint32_t planes : {1u, 2u}) {
      for (const std::uint32_t heads : {1u, 2u}) {
        for (const std::uint32_t tokens : {1u, 4u}) shapes.push_back({layers, planes, heads, 8, tokens});
      }
    }
  }
  return shapes;
}

const std::vector<PageRun> kRuns = {{3, 2, 1}, {7, 9, 4}, {20, 30, 2}};

TEST(PlanTransfer, DescriptorsAreThePiecesOfAnExpansion) {
  for (const Layout layout : kLayouts) {
    for (const KvShape& shape : small_shapes()) {
      const Plan direct =
          plan_transfer(kRuns, Direction::host_to_device, {shape, layout}, IoBackend::direct, PlannerLimits{});
      ASSERT_EQ(direct.path, TransferPath::copy_engine);
      ASSERT_EQ(direct.pages, 7u);
      ASSERT_EQ(direct.bytes, 7 * shape.page_bytes());
      // With one layer and page_head, the last row of a page is next to the first row of the next page, on both sides.
      if (layout != Layout::page_head || shape.layers > 1 || piece_grid(layout, shape, 8, 8).joins_pages()) {
        ASSERT_EQ(direct.descriptors, expand(direct, false));
      }
      ASSERT_EQ(direct.descriptor_bytes, (direct.bytes + direct.descriptors - 1) / direct.descriptors);

      const Plan staged =
          plan_transfer(kRuns, Direction::host_to_device, {shape, layout}, IoBackend::automatic, kNever);
      if (layout == Layout::layer_first) {
        ASSERT_EQ(staged.path, TransferPath::kernel);
      } else {
        ASSERT_EQ(staged.path, TransferPath::staged);
        ASSERT_EQ(staged.descriptors, expand(staged, true));
      }
    }
  }
}

TEST(PlanTransfer, KernelMovesRows) {
  const KvShape shape{3, 2, 4, 8, 16};
  for (const Layout layout : kLayouts) {
    const Plan plan = plan_transfer(kRuns, Direction::device_to_host, {shape, layout}, IoBackend::kernel, kAlways);
    EXPECT_EQ(plan.path, TransferPath::kernel);
    const std::uint64_t rows = 7u * 16 * 3 * 2;
    EXPECT_EQ(plan.descriptors, layout == Layout::page_head ? rows * 4 : rows);
    EXPECT_EQ(plan.descriptor_bytes, layout == Layout::page_head ? 8u : 32u);
  }
}

TEST(PlanTransfer, AutomaticWeighsThePieceAgainstItsDirectionsLimit) {
  const KvShape shape{32, 2, 8, 256, 16};  // 32 KiB per page, layer and plane
  const std::vector<PageRun> one = {{0, 0, 1}};
  const auto path = [&](Direction direction, Layout layout, PlannerLimits limits) {
    return plan_transfer(one, direction, {shape, layout}, IoBackend::automatic, limits).path;
  };
  const PlannerLimits limits{.copy_engine_min_h2d = 32 * 1024,
                             .copy_engine_min_d2h = 32 * 1024 + 1,
                             .box_min = 64 * 1024,
                             .kernel_min_pieces = 64};
  EXPECT_EQ(path(Direction::host_to_device, Layout::layer_first, limits), TransferPath::copy_engine);
  EXPECT_EQ(path(Direction::device_to_host, Layout::layer_first, limits), TransferPath::kernel);
  EXPECT_EQ(path(Direction::host_to_device, Layout::page_first_direct, limits), TransferPath::copy_engine);
  EXPECT_EQ(path(Direction::device_to_host, Layout::page_first_direct, limits), TransferPath::staged);
  EXPECT_EQ(path(Direction::host_to_device, Layout::page_first, {}), TransferPath::staged);
  EXPECT_EQ(path(Direction::host_to_device, Layout::page_head, {}), TransferPath::staged);
}

TEST(PlanTransfer, LongRunsMakePiecesLongEnough) {
  const KvShape shape{32, 2, 8, 256, 4};  // 8 KiB per page, layer and plane
  const std::vector<PageRun> run = {{0, 0, 4}};
  const std::vector<PageRun> scattered = {{0, 0, 1}, {2, 2, 1}, {4, 4, 1}, {6, 6, 1}};
  const auto path = [&](const std::vector<PageRun>& runs) {
    const PlannerLimits limits{.box_min = 64 * 1024};
    return plan_transfer(runs, Direction::host_to_device, {shape, Layout::layer_first}, IoBackend::automatic, limits)
        .path;
  };
  EXPECT_EQ(path(run), TransferPath::copy_engine);
  EXPECT_EQ(path(scattered), TransferPath::kernel);
}

constexpr KvShape kWide{32, 2, 8, 256, 4};  // 8 KiB per page, layer and plane
const std::vector<PageRun> kScattered = {{0, 0, 1}, {2, 2, 1}, {4, 4, 1}, {6, 6, 1}};

TransferPath automatic(const PoolPair& pools, const PlannerLimits& limits, bool busy = false) {
  return plan_transfer(kScattered, Direction::device_to_host, pools, IoBackend::automatic, limits, busy).path;
}

TEST(PlanTransfer, FewPiecesArentWorthAKernel) {
  const auto path = [](std::uint64_t kernel_min_pieces) {
    return automatic({kWide, Layout::layer_first, 8, 8},
                     {.box_min = ~Bytes{0}, .kernel_min_pieces = kernel_min_pieces});
  };
  EXPECT_EQ(path(4 * 64 + 1), TransferPath::copy_engine);
  EXPECT_EQ(path(4 * 64), TransferPath::kernel);
}

TEST(PlanTransfer, EquallySpacedPiecesMakeBoxes) {
  const PoolPair pools{kWide, Layout::layer_first, 8, 8};
  const Plan plan = plan_transfer(kScattered, Direction::device_to_host, pools, IoBackend::automatic, {});
  EXPECT_EQ(plan.path, TransferPath::boxes);
  EXPECT_EQ(plan.descriptors, 4u);  // one per page: 32 rows, two slices
  EXPECT_EQ(plan.descriptor_bytes, 64u * 8192);
  EXPECT_EQ(plan.piece_bytes, 8192u);
  // If a stride is larger than a copy engine supports, there are no boxes.
  const Pages many = (Pages{1} << 31) / 8192;
  EXPECT_EQ(automatic({kWide, Layout::layer_first, many - 1, 8}, {}), TransferPath::boxes);
  EXPECT_EQ(automatic({kWide, Layout::layer_first, many, 8}, {}), TransferPath::kernel);
  EXPECT_EQ(automatic({kWide, Layout::layer_first, 8, many}, {}), TransferPath::kernel);
}

// During a forward pass, slow boxes disturb less than a kernel or a relayout.
TEST(PlanTransfer, ABusyGpuIsLeftAlone) {
  const PlannerLimits limits{.box_min = 8193, .box_min_busy = 8192};
  const PoolPair apart{kWide, Layout::layer_first, 8, 8}, together{kWide, Layout::page_first_direct, 8, 8};
  EXPECT_EQ(automatic(apart, limits, false), TransferPath::kernel);
  EXPECT_EQ(automatic(apart, limits, true), TransferPath::boxes);
  EXPECT_EQ(automatic(together, limits, true), TransferPath::staged);
  EXPECT_EQ(automatic(together, {.box_min = 8192}, false), TransferPath::staged);
  EXPECT_EQ(automatic(together, {.box_min = 8192}, true), TransferPath::boxes);
}

TEST(PlanTransfer, BulkCopiesTakeWhatIsTheirs) {
  const PlannerLimits limits{.box_min = ~Bytes{0}, .bulk_copies = true};
  const PoolPair pools{kWide, Layout::layer_first, 8, 8};
  EXPECT_EQ(automatic(pools, limits), TransferPath::ring);
  const Plan plan = plan_transfer(kScattered, Direction::device_to_host, pools, IoBackend::automatic, limits);
  EXPECT_EQ(plan.descriptors, 4u * 64);
  KvShape odd = kWide;
  odd.head_bytes = 257;  // 4 tokens of 8 heads are a multiple of 16 bytes
  EXPECT_EQ(automatic({odd, Layout::layer_first, 8, 8}, limits), TransferPath::ring);
  odd.heads = 1;
  EXPECT_EQ(automatic({odd, Layout::layer_first, 8, 8}, limits), TransferPath::kernel);
  // SGLang's two I/O back ends always use their own path.
  EXPECT_EQ(plan_transfer(kScattered, Direction::device_to_host, pools, IoBackend::kernel, limits).path,
            TransferPath::kernel);
  EXPECT_EQ(plan_transfer(kScattered, Direction::device_to_host, pools, IoBackend::direct, limits).path,
            TransferPath::copy_engine);
}

// A load of 4 pages has 2 MiB.
TEST(PlanTransfer, LoadsLandInGroupsOfLayers) {
  const auto planned = [](Layout layout, Direction direction, IoBackend io, const PlannerLimits& limits) {
    return plan_transfer(kScattered, direction, {kWide, layout, 8, 8}, io, limits);
  };
  constexpr auto kUp = Direction::host_to_device;
  EXPECT_EQ(planned(Layout::layer_first, kUp, IoBackend::direct, {}).layer_groups, 2u);
  EXPECT_EQ(planned(Layout::layer_first, Direction::device_to_host, IoBackend::direct, {}).layer_groups, 1u);
  EXPECT_EQ(planned(Layout::layer_first, kUp, IoBackend::kernel, {.layer_group_min = 1}).layer_groups, 16u);
  EXPECT_EQ(
      planned(Layout::layer_first, kUp, IoBackend::kernel, {.layer_group_min = 0, .layer_groups_max = 99}).layer_groups,
      32u);
  // One box per page and group.
  const Plan boxes = planned(Layout::layer_first, kUp, IoBackend::automatic, {});
  EXPECT_EQ(boxes.path, TransferPath::boxes);
  EXPECT_EQ(boxes.descriptors, 2 * 4u);
  EXPECT_EQ(boxes.piece_bytes, 8192u);
}

// In a group of a staged page, a row is a contiguous part. The rows must be long enough.
TEST(PlanTransfer, StagedLoadsLandInGroupsOfLongRows) {
  const auto planned = [](Layout layout, Bytes box_min) {
    return plan_transfer(kScattered, Direction::host_to_device, {kWide, layout, 8, 8}, IoBackend::automatic,
                         {.box_min = box_min, .layer_group_min = 1});
  };
  // In the row of a token, 2 KiB of a layer are contiguous; in the row of a head, 256 bytes.
  const Plan tokens = planned(Layout::page_first, 8192);
  EXPECT_EQ(tokens.path, TransferPath::staged);
  EXPECT_EQ(tokens.layer_groups, 8u);
  EXPECT_EQ(tokens.piece_bytes, 8192u);
  EXPECT_EQ(tokens.descriptors, 4 * 8u);
  const Plan heads = planned(Layout::page_head, 8192);
  EXPECT_EQ(heads.layer_groups, 1u);
  EXPECT_EQ(heads.descriptors, 4 * 2u);
  EXPECT_EQ(heads.piece_bytes, kWide.page_bytes() / 2);
  EXPECT_EQ(planned(Layout::page_head, 1024).layer_groups, 8u);
  EXPECT_EQ(planned(Layout::page_first_direct, 8192).layer_groups, 16u);
}

TEST(PlanTransfer, OnlyLoadsHaveAWindow) {
  const PlannerLimits limits{.window_h2d = 12345};
  const PoolPair pools{kWide, Layout::page_first, 8, 8};
  const auto window = [&](Direction direction) {
    return plan_transfer(kScattered, direction, pools, IoBackend::automatic, limits).window;
  };
  EXPECT_EQ(window(Direction::host_to_device), 12345u);
  EXPECT_EQ(window(Direction::device_to_host), 0u);
}

TEST(PlanTransfer, OfNothingIsEmpty) {
  const KvShape shape{2, 2, 2, 8, 4};
  for (const IoBackend io : {IoBackend::kernel, IoBackend::direct, IoBackend::automatic}) {
    const Plan plan = plan_transfer({}, Direction::host_to_device, {shape, Layout::page_first}, io, {});
    EXPECT_EQ(plan.pages, 0u);
    EXPECT_EQ(plan.bytes, 0u);
    EXPECT_EQ(plan.descriptors, 0u);
    EXPECT_EQ(plan.descriptor_bytes, 0u);
  }
}

}  // namespace
}  // namespace kvtwin
