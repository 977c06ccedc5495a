// Hits by size of a pool with windows or states, against an order of its blocks that is searched from the front.
#include "lab/watch/pool_curves.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kBlock = 16;

BlockEvent stored(std::uint64_t group, const char* kind, Tokens window, Tokens block_tokens,
                  std::span<const std::uint64_t> blocks) {
  BlockEvent event;
  event.group = group;
  event.group_kind = kind;
  event.group_window = window;
  event.block_tokens = block_tokens;
  event.blocks = blocks;
  return event;
}

// The same rules, for one size after another.
class SlowPool {
 public:
  SlowPool(std::size_t needed, std::size_t joined) : needed_(needed), joined_(joined) {}

  void store(const std::vector<std::uint64_t>& blocks) { stored_.insert(blocks.begin(), blocks.end()); }
  void serve(const std::vector<std::uint64_t>& blocks, const std::vector<std::uint64_t>& sizes) {
    std::vector<std::uint64_t> own;
    for (std::size_t end = joined_; end <= blocks.size(); end += joined_) own.push_back(blocks[end - 1]);
    lookups_ += blocks.size();
    const std::size_t usable = prefix(own, order_.size());
    for (const std::uint64_t size : sizes) hits_[size] += joined_ * prefix(own, size);
    std::vector<std::uint64_t> used;
    for (std::size_t i = usable - std::min(usable, needed_); i < own.size(); ++i) {
      if (i < usable || stored_.contains(own[i])) used.push_back(own[i]);
    }
    for (const std::uint64_t block : used) std::erase(order_, block);
    order_.insert(order_.begin(), used.begin(), used.end());
  }
  double ratio(std::uint64_t size) const { return static_cast<double>(hits_.at(size)) / static_cast<double>(lookups_); }

 private:
  // The longest prefix that the first blocks of the order can use.
  std::size_t prefix(const std::vector<std::uint64_t>& own, std::uint64_t size) const {
    const auto end = order_.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(size, order_.size()));
    for (std::size_t length = own.size(); length > 0; --length) {
      bool has = true;
      for (std::size_t i = length - std::min(length, needed_); i < length; ++i) {
        has = has && std::find(order_.begin(), end, own[i]) != end;
      }
      if (has) return length;
    }
    return 0;
  }

  const std::size_t needed_, joined_;
  std::vector<std::uint64_t> order_;  // the latest first
  std::set<std::uint64_t> stored_;
  std::map<std::uint64_t, std::uint64_t> hits_;
  std::uint64_t lookups_ = 0;
};

// Conversations, whose blocks are named by a tree of them.
std::vector<std::uint64_t> prompt_of(Random& random) {
  std::vector<std::uint64_t> blocks;
  std::uint64_t name = 1;
  const std::uint64_t length = random.integer(1, 24);
  for (std::uint64_t i = 0; i < length; ++i) {
    name = name * 3 + (random.integer(0, 3) == 0 ? 1 : 0);
    blocks.push_back(name);
  }
  return blocks;
}

void expect_equal(const char* kind, Tokens window, std::size_t needed, std::size_t joined) {
  PoolCurves pools(100'000);
  SlowPool slow(needed, joined);
  Random random(7);
  constexpr std::uint64_t kPresent = 40;
  const std::vector<std::uint64_t> sizes{10, 20, 40, 80, 160, 320};
  for (int i = 0; i < 300; ++i) {
    const std::vector<std::uint64_t> blocks = prompt_of(random);
    std::vector<std::uint64_t> kept;  // engines store a part of them
    for (const std::uint64_t block : blocks) {
      if (block % 4 != 1) kept.push_back(block);
    }
    pools.take(stored(3, kind, window, joined * kBlock, kept));
    slow.store(kept);
    pools.serve(blocks, kBlock);
    slow.serve(blocks, sizes);
  }
  const auto curves = pools.curves([](std::uint64_t) { return kPresent; });
  ASSERT_EQ(curves.size(), 1U);
  EXPECT_EQ(curves[0].group, 3U);
  ASSERT_EQ(curves[0].sizes.size(), sizes.size());
  EXPECT_GT(curves[0].sizes.back().hits, curves[0].sizes.front().hits);
  for (const PoolCurves::Size& size : curves[0].sizes) {
    EXPECT_DOUBLE_EQ(size.hits, slow.ratio(size.blocks)) << kind << " " << size.blocks;
    EXPECT_FALSE(size.is_least);
  }
}

TEST(PoolCurves, AreThoseOfAnOrderOfBlocks) {
  expect_equal("sliding_window", 1, 1, 1);
  expect_equal("sliding_window", 17, 1, 1);
  expect_equal("sliding_window", 18, 2, 1);
  expect_equal("sliding_window_mla", 64, 4, 1);
  expect_equal("sliding_window", 64, 2, 2);
  expect_equal("mamba", 0, 1, 1);
  expect_equal("mamba", 0, 1, 2);
}

TEST(PoolCurves, SizesAboveTheTrackedBlocksAreMarked) {
  PoolCurves pools(10);
  std::vector<std::uint64_t> blocks(1);
  for (std::uint64_t i = 0; i < 40; ++i) {
    blocks[0] = i;
    pools.take(stored(1, "mamba", 0, kBlock, blocks));
    pools.serve(blocks, kBlock);
  }
  const auto curves = pools.curves([](std::uint64_t) { return std::uint64_t{10}; });
  for (const PoolCurves::Size& size : curves.at(0).sizes) EXPECT_EQ(size.is_least, size.blocks > 10);
}

TEST(PoolCurves, HostilePoolsAreFew) {
  PoolCurves pools(4);
  const std::vector<std::uint64_t> blocks{1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (std::uint64_t group = 0; group < 100; ++group) {
    pools.take(stored(group, "sliding_window", ~Tokens{0} >> 8, kBlock, blocks));
    pools.take(stored(group + 200, "sliding_window", 0, kBlock, blocks));  // no window
    pools.take(stored(group + 300, "another kind", 64, kBlock, blocks));
  }
  pools.serve(blocks, kBlock);
  pools.serve({}, kBlock);
  EXPECT_EQ(pools.curves([](std::uint64_t) { return std::uint64_t{4}; }).size(), PoolCurves::kMaxPools);
  EXPECT_LE(pools.memory_bytes(), PoolCurves::kMaxPools * (std::size_t{1} << 20));
}

}  // namespace
}  // namespace kvtwin
