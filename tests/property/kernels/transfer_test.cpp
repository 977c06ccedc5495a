// For random shapes and runs of pages, every copy function must give exactly the same memory as a copy byte by byte, in
// the copied pages and everywhere else.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "policy/transfer/plan.hpp"
#include "slow_transfer.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};
constexpr std::uint64_t kSeeds = 400;

using Pool = std::vector<std::byte>;

Pool drawn_pool(Splitmix& rng, std::uint64_t bytes) {
  Pool pool(bytes);
  for (std::byte& byte : pool) byte = static_cast<std::byte>(rng.next());
  return pool;
}

// Returns `count` slots of a pool. Some are in ascending order, which gives long runs, others are not.
std::vector<SlotId> drawn_slots(Splitmix& rng, std::uint64_t pool, std::uint64_t count) {
  std::vector<SlotId> slots(pool);
  std::iota(slots.begin(), slots.end(), SlotId{0});
  for (std::uint64_t swaps = rng.below(3) * pool; swaps > 0; --swaps) {
    std::swap(slots[rng.below(pool)], slots[rng.below(pool)]);
  }
  if (rng.chance(30))
    std::rotate(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(rng.below(pool)), slots.end());
  slots.resize(count);
  return slots;
}

// Returns the runs that the planner makes, with some of them cut again.
std::vector<PageRun> drawn_runs(Splitmix& rng, const std::vector<SlotId>& source, const std::vector<SlotId>& target) {
  std::vector<PageRun> joined, runs;
  join_runs(source, target, joined);
  for (PageRun run : joined) {
    while (run.pages > 1 && rng.chance(25)) {
      const auto part = static_cast<std::uint32_t>(rng.between(1, run.pages - 1));
      runs.push_back({run.source_first, run.target_first, part});
      run = {run.source_first + part, run.target_first + part, run.pages - part};
    }
    runs.push_back(run);
  }
  return runs;
}

std::string text_of(const KvShape& s) {
  return std::to_string(s.layers) + " layers, " + std::to_string(s.planes) + " planes, " + std::to_string(s.heads) +
         " heads of " + std::to_string(s.head_bytes) + " bytes, pages of " + std::to_string(s.page_tokens);
}

void check_seed(std::uint64_t seed) {
  Splitmix rng(mix(seed));
  KvShape shape;
  shape.layers = static_cast<std::uint32_t>(rng.between(1, 5));
  shape.planes = static_cast<std::uint32_t>(rng.between(1, 2));
  shape.heads = static_cast<std::uint32_t>(rng.between(1, 4));
  shape.head_bytes = static_cast<std::uint32_t>(rng.between(1, 70));
  shape.page_tokens = static_cast<std::uint32_t>(rng.between(1, 17));
  SCOPED_TRACE(text_of(shape));
  const std::uint64_t device_pages = rng.between(1, 9), host_pages = rng.between(1, 9);
  const std::uint64_t count = rng.between(1, std::min(device_pages, host_pages));
  const std::vector<SlotId> on_device = drawn_slots(rng, device_pages, count);
  const std::vector<SlotId> on_host = drawn_slots(rng, host_pages, count);
  const Pool device = drawn_pool(rng, device_pages * shape.page_bytes());
  const Pool host = drawn_pool(rng, host_pages * shape.page_bytes());
  const auto layer_begin = static_cast<std::uint32_t>(rng.below(shape.layers));
  const auto layer_end = static_cast<std::uint32_t>(rng.between(layer_begin, shape.layers));

  for (const bool to_device : {false, true}) {
    const std::vector<PageRun> runs =
        to_device ? drawn_runs(rng, on_host, on_device) : drawn_runs(rng, on_device, on_host);
    for (const Layout layout : kLayouts) {
      SCOPED_TRACE((to_device ? "to the device, layout " : "to the host, layout ") +
                   std::to_string(static_cast<int>(layout)));
      struct Pools {
        Pool device, host;
        bool operator==(const Pools&) const = default;
      };
      // Copies all `runs`, in new copies of the pools.
      const auto after = [&](std::uint32_t first_layer, std::uint32_t last_layer, const auto& copy) {
        Pools pools{device, host};
        TransferParams params;
        params.shape = shape;
        params.device = pools.device.data();
        params.device_pages = device_pages;
        params.host = pools.host.data();
        params.host_pages = host_pages;
        params.host_layout = layout;
        params.to_device = to_device;
        params.runs = runs.data();
        params.run_count = runs.size();
        params.layer_begin = first_layer;
        params.layer_end = last_layer;
        copy(params);
        return pools;
      };
      const Pools expected = after(layer_begin, layer_end, copy_slowly);
      ASSERT_TRUE(after(layer_begin, layer_end, copy_pieces) == expected);
      ASSERT_TRUE(after(layer_begin, layer_end, copy_rows) == expected);
      ASSERT_TRUE(after(layer_begin, layer_end, copy_boxes) == expected);
      if (layout == Layout::layer_first) continue;
      const std::uint64_t staging_pages = rng.between(1, count);
      Pool staging(staging_pages *
                   shape.page_bytes());  // exactly as large as needed, so that sanitizers find accesses past its end
      const auto by_staging = [&](const TransferParams& params) { copy_staged(params, staging.data(), staging_pages); };
      ASSERT_TRUE(after(layer_begin, layer_end, by_staging) == expected &&
                  after(0, shape.layers, by_staging) == after(0, shape.layers, copy_slowly))
          << "staging of " << staging_pages << " pages";
    }
  }
}

TEST(Transfers, LeaveWhatMovingByteByByteLeaves) {
  for (std::uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check_seed(seed);
  }
}

}  // namespace
}  // namespace kvtwin::test
