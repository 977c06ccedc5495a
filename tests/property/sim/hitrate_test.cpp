// The replays against slow models that know nothing of radix trees, on many small random traces.
#include "sim/hitrate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <vector>

#include "policy/eviction.hpp"
#include "tests/small_traces.hpp"

namespace kvtwin {
namespace {

using test::distinct_blocks;
using test::head;
using test::Path;
using test::random_trace;
using test::replay;
using test::starts_with;
using test::Trace;

// The definition, word by word, block by block: O(capacity^2) an eviction.
class SlowCache {
 public:
  SlowCache(bool fifo, std::size_t capacity) : fifo_(fifo), capacity_(capacity) {}

  std::size_t serve(const Path& path) {
    ++stamp_;
    std::size_t hit = 0;
    while (hit < path.size() && present_.contains(head(path, hit + 1))) present_[head(path, ++hit)].access = stamp_;
    for (std::size_t n = hit + 1; n <= path.size(); ++n) {
      if (present_.size() == capacity_ && !evict_off(path)) break;
      present_[head(path, n)] = {stamp_, ++insertions_};
    }
    return hit;
  }

 private:
  struct Facts {
    std::uint64_t access = 0, inserted = 0;
  };

  bool evict_off(const Path& path) {
    auto victim = present_.end();
    for (auto it = present_.begin(); it != present_.end(); ++it) {
      const auto after = std::next(it);  // a block's descendants follow it in the order of paths
      const bool leaf = after == present_.end() || !starts_with(after->first, it->first);
      if (!leaf || starts_with(path, it->first)) continue;
      const auto rank = [&](const Facts& f) { return fifo_ ? f.inserted : f.access; };
      if (victim == present_.end() || rank(it->second) < rank(victim->second)) victim = it;
    }
    if (victim == present_.end()) return false;
    present_.erase(victim);
    return true;
  }

  bool fifo_;
  std::size_t capacity_;
  std::map<Path, Facts> present_;
  std::uint64_t stamp_ = 0, insertions_ = 0;
};

// Plain LRU over blocks, no tree: a request's deeper blocks count as older.
std::uint64_t plain_lru_hits(const Trace& trace, std::size_t capacity) {
  std::list<Path> order;  // newest first
  std::uint64_t hits = 0;
  for (const Path& path : trace) {
    const auto find = [&](std::size_t n) { return std::find(order.begin(), order.end(), head(path, n)); };
    std::size_t hit = 0;
    while (hit < path.size() && find(hit + 1) != order.end()) ++hit;
    hits += hit;
    for (std::size_t n = path.size(); n > 0; --n) {
      if (const auto it = find(n); it != order.end()) order.erase(it);
      order.push_front(head(path, n));
    }
    while (order.size() > capacity) order.pop_back();
  }
  return hits;
}

std::uint64_t slow_hits(const Trace& trace, bool fifo, std::size_t capacity) {
  SlowCache cache(fifo, capacity);
  std::uint64_t hits = 0;
  for (const Path& path : trace) hits += cache.serve(path);
  return hits;
}

TEST(HitRateProperty, ReplaysTheDefinitions) {
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed, 40, 7, 3);
    for (const Pages capacity : {0U, 1U, 2U, 3U, 5U, 8U, 13U, 21U, 34U}) {
      const auto rates = replay(trace, {"lru", "fifo"}, {capacity});
      ASSERT_EQ(rates[0].hit_blocks, slow_hits(trace, false, capacity)) << "lru, seed " << seed << ", " << capacity;
      ASSERT_EQ(rates[0].hit_blocks, plain_lru_hits(trace, capacity)) << "lru, seed " << seed << ", " << capacity;
      ASSERT_EQ(rates[1].hit_blocks, slow_hits(trace, true, capacity)) << "fifo, seed " << seed << ", " << capacity;
    }
  }
}

TEST(HitRateProperty, TwoTiersAddUp) {
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    constexpr std::size_t kDepth = 5;
    const Trace trace = random_trace(seed + 3'000'000, 40, kDepth, 3);
    for (const Pages device : {1U, 3U, 5U, 9U}) {
      for (const Pages host : {1U, 4U, 10U, 20U}) {
        const auto one = replay(trace, {"lru"}, {device, host, device + host});
        const HitRate inclusive = replay(trace, {"lru"}, {device}, host).front();
        ASSERT_EQ(inclusive.device_hit_blocks, one[0].hit_blocks) << "seed " << seed;
        ASSERT_EQ(inclusive.hit_blocks, std::max(one[0].hit_blocks, one[1].hit_blocks)) << "seed " << seed;
        const HitRate exclusive = replay(trace, {"lru"}, {device}, host, true).front();
        ASSERT_EQ(exclusive.device_hit_blocks, one[0].hit_blocks) << "seed " << seed << ", " << device << "+" << host;
        if (device < kDepth) {
          // A request may be longer than the device: then its end is kept nowhere, which now and then even helps.
          const HitRate opt = replay(trace, {"opt"}, {device + host}).front();
          ASSERT_LE(exclusive.hit_blocks, opt.hit_blocks) << "seed " << seed << ", " << device << "+" << host;
        } else {
          ASSERT_EQ(exclusive.hit_blocks, one[2].hit_blocks) << "seed " << seed << ", " << device << "+" << host;
        }
      }
    }
  }
}

// Any policy, any tiers: the counts add up and every exclusive replay keeps its promises to the index.
TEST(HitRateProperty, EveryPolicyRuns) {
  std::vector<std::string> names, policies;
  for (const std::string_view name : hit_rate_evictions()) {
    if (!name.starts_with("opt-cost")) names.emplace_back(name);  // those know one tier
  }
  for (const std::string_view name : eviction_names()) policies.emplace_back(name);
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    const Trace trace = random_trace(seed + 4'000'000, 60, 8, 3);
    const auto opt = replay(trace, {"opt"}, {12, 20}, 0);
    for (const HitRate& rate : replay(trace, names, {4, 12}, 8)) {
      ASSERT_EQ(rate.hit_blocks, rate.device_hit_blocks + rate.host_hit_blocks);
      ASSERT_EQ(rate.hit_tokens, rate.hit_blocks);
    }
    for (const HitRate& rate : replay(trace, policies, {4, 12}, 8, true)) {
      ASSERT_LE(rate.hit_blocks, opt[rate.capacity_blocks == 4 ? 0 : 1].hit_blocks)
          << rate.eviction << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvtwin
