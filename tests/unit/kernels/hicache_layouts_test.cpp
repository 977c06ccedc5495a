// HiCache's acceptance check 10: pages are unchanged after they were copied to the host and back, in every layout and
// with every allowed copy function.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/transfer.hpp"
#include "policy/transfer/plan.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};
constexpr KvShape kMha{3, 2, 4, 8, 4}, kMla{3, 1, 1, 36, 4};
constexpr std::uint64_t kDevicePages = 9, kHostPages = 7;

// Carries out a plan like an executor.
void carry_out(const Plan& plan, std::vector<std::byte>& device, std::vector<std::byte>& host) {
  TransferParams params;
  params.shape = plan.shape;
  params.device = device.data();
  params.device_pages = kDevicePages;
  params.host = host.data();
  params.host_pages = kHostPages;
  params.host_layout = plan.host_layout;
  params.to_device = plan.direction == Direction::host_to_device;
  params.runs = plan.runs.data();
  params.run_count = plan.runs.size();
  params.layer_end = plan.shape.layers;
  switch (plan.path) {
    case TransferPath::copy_engine: return copy_pieces(params);
    case TransferPath::boxes: return copy_boxes(params);
    case TransferPath::kernel:
    case TransferPath::ring: return copy_rows(params);
    case TransferPath::staged: {
      std::vector<std::byte> staging(2 * plan.shape.page_bytes());
      return copy_staged(params, staging.data(), 2);
    }
  }
}

std::vector<std::byte> page_bytes(const std::vector<std::byte>& device, const KvShape& shape, std::uint64_t page) {
  std::vector<std::byte> bytes;
  KvIndex at{page, 0, 0, 0, 0};
  for (at.plane = 0; at.plane < shape.planes; ++at.plane) {
    for (at.layer = 0; at.layer < shape.layers; ++at.layer) {
      for (at.token = 0; at.token < shape.page_tokens; ++at.token) {
        for (at.head = 0; at.head < shape.heads; ++at.head) {
          const auto* first = device.data() + byte_offset(Layout::layer_first, shape, kDevicePages, at);
          bytes.insert(bytes.end(), first, first + shape.head_bytes);
        }
      }
    }
  }
  return bytes;
}

void check_round_trip(const KvShape& shape, Layout layout, IoBackend out, IoBackend back) {
  test::Splitmix random(7);
  std::vector<std::byte> device(kDevicePages * shape.page_bytes()), host(kHostPages * shape.page_bytes());
  for (std::byte& byte : device) byte = static_cast<std::byte>(random.next());
  const std::vector<std::byte> before = device;
  const std::vector<SlotId> from = {1, 2, 3, 8, 5}, on_host = {4, 5, 6, 0, 2}, to = {6, 7, 0, 4, 2};
  std::vector<PageRun> away, home;
  join_runs(from, on_host, away);
  join_runs(on_host, to, home);
  carry_out(plan_transfer(away, Direction::device_to_host, {shape, layout}, out, {}), device, host);
  ASSERT_EQ(device, before);
  carry_out(plan_transfer(home, Direction::host_to_device, {shape, layout}, back, {}), device, host);
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(page_bytes(device, shape, to[i]), page_bytes(before, shape, from[i])) << "page " << i;
  }
}

TEST(HiCache, check_10_pages_come_back_as_they_were_in_every_layout_by_every_way) {
  for (const KvShape& shape : {kMha, kMla}) {
    for (const Layout layout : kLayouts) {
      for (const IoBackend out : {IoBackend::kernel, IoBackend::direct, IoBackend::automatic}) {
        for (const IoBackend back : {IoBackend::kernel, IoBackend::direct, IoBackend::automatic}) {
          SCOPED_TRACE(static_cast<int>(layout));
          check_round_trip(shape, layout, out, back);
        }
      }
    }
  }
}

// The only combination that isn't allowed: a page that isn't contiguous on the host cannot be copied as a whole.
TEST(HiCache, check_10_the_planner_never_stages_pages_that_dont_lie_together) {
  const std::vector<PageRun> runs = {{0, 0, 3}};
  const PlannerLimits limits{.kernel_min_pieces = 0};
  for (const KvShape& shape : {kMha, kMla}) {
    for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
      const Plan plan = plan_transfer(runs, direction, {shape, Layout::layer_first}, IoBackend::automatic, limits);
      EXPECT_EQ(plan.path, TransferPath::kernel);
      for (const Layout layout : {Layout::page_first, Layout::page_first_direct, Layout::page_head}) {
        EXPECT_EQ(plan_transfer(runs, direction, {shape, layout}, IoBackend::automatic, limits).path,
                  TransferPath::staged);
      }
    }
  }
}

}  // namespace
}  // namespace kvtwin
