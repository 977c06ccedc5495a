#include "policy/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};
constexpr PlannerLimits kNever{~Bytes{0}, ~Bytes{0}};
constexpr PlannerLimits kAlways{0, 0};

std::vector<PageRun> joined(const std::vector<SlotId>& source, const std::vector<SlotId>& target) {
  std::vector<PageRun> runs = {{1, 2, 3}};  // of another transfer
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

// A run goes one way: whoever has moved so many of its pages has moved the first so many.
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

// Pieces of the plan after expansion to head rows, joined within a run where an executor could join them.
// `host_only`: joined where neighbours on the host, as in a staged copy of whole pages.
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
          plan_transfer(kRuns, Direction::host_to_device, layout, shape, IoBackend::direct, PlannerLimits{});
      ASSERT_EQ(direct.path, TransferPath::copy_engine);
      ASSERT_EQ(direct.pages, 7u);
      ASSERT_EQ(direct.bytes, 7 * shape.page_bytes());
      // With one layer, page_head's last row of a page happens to adjoin the next page's first on both sides.
      if (layout != Layout::page_head || shape.layers > 1 || piece_grid(layout, shape, 8, 8).joins_pages()) {
        ASSERT_EQ(direct.descriptors, expand(direct, false));
      }
      ASSERT_EQ(direct.descriptor_bytes, (direct.bytes + direct.descriptors - 1) / direct.descriptors);

      const Plan staged = plan_transfer(kRuns, Direction::host_to_device, layout, shape, IoBackend::automatic, kNever);
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
    const Plan plan = plan_transfer(kRuns, Direction::device_to_host, layout, shape, IoBackend::kernel, kAlways);
    EXPECT_EQ(plan.path, TransferPath::kernel);
    const std::uint64_t rows = 7u * 16 * 3 * 2;
    EXPECT_EQ(plan.descriptors, layout == Layout::page_head ? rows * 4 : rows);
    EXPECT_EQ(plan.descriptor_bytes, layout == Layout::page_head ? 8u : 32u);
  }
}

TEST(PlanTransfer, AutomaticWeighsThePieceAgainstItsDirectionsLimit) {
  const KvShape shape{32, 2, 8, 256, 16};  // a page of a layer and plane: 32 KiB
  const std::vector<PageRun> one = {{0, 0, 1}};
  const auto path = [&](Direction direction, Layout layout, PlannerLimits limits) {
    return plan_transfer(one, direction, layout, shape, IoBackend::automatic, limits).path;
  };
  const PlannerLimits limits{32 * 1024, 32 * 1024 + 1};
  EXPECT_EQ(path(Direction::host_to_device, Layout::layer_first, limits), TransferPath::copy_engine);
  EXPECT_EQ(path(Direction::device_to_host, Layout::layer_first, limits), TransferPath::kernel);
  EXPECT_EQ(path(Direction::host_to_device, Layout::page_first_direct, limits), TransferPath::copy_engine);
  EXPECT_EQ(path(Direction::device_to_host, Layout::page_first_direct, limits), TransferPath::staged);
  EXPECT_EQ(path(Direction::host_to_device, Layout::page_first, {}), TransferPath::staged);
  EXPECT_EQ(path(Direction::host_to_device, Layout::page_head, {}), TransferPath::staged);
}

TEST(PlanTransfer, LongRunsMakePiecesLongEnough) {
  const KvShape shape{32, 2, 8, 256, 4};  // 8 KiB a page, layer and plane
  const std::vector<PageRun> run = {{0, 0, 4}};
  const std::vector<PageRun> scattered = {{0, 0, 1}, {2, 2, 1}, {4, 4, 1}, {6, 6, 1}};
  const auto path = [&](const std::vector<PageRun>& runs) {
    return plan_transfer(runs, Direction::host_to_device, Layout::layer_first, shape, IoBackend::automatic, {}).path;
  };
  EXPECT_EQ(path(run), TransferPath::copy_engine);
  EXPECT_EQ(path(scattered), TransferPath::kernel);
}

TEST(PlanTransfer, OfNothingIsEmpty) {
  const KvShape shape{2, 2, 2, 8, 4};
  for (const IoBackend io : {IoBackend::kernel, IoBackend::direct, IoBackend::automatic}) {
    const Plan plan = plan_transfer({}, Direction::host_to_device, Layout::page_first, shape, io, {});
    EXPECT_EQ(plan.pages, 0u);
    EXPECT_EQ(plan.bytes, 0u);
    EXPECT_EQ(plan.descriptors, 0u);
    EXPECT_EQ(plan.descriptor_bytes, 0u);
  }
}

}  // namespace
}  // namespace kvtwin
