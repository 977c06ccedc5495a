// Compares hit-rate replays with slow models without radix trees, on many small random traces.
#include "sim/bounds/hitrate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "policy/eviction.hpp"
#include "tests/small_traces.hpp"
#include "tests/trace_files.hpp"
#include "traces/paging.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

using test::distinct_blocks;
using test::head;
using test::Path;
using test::priority_of;
using test::random_trace;
using test::replay;
using test::starts_with;
using test::Trace;

// The definitions of the policies, block by block. Cost: O(capacity^2) per eviction.
class SlowCache {
 public:
  SlowCache(std::string_view eviction, std::size_t capacity) : eviction_(eviction), capacity_(capacity) {}

  std::size_t serve(const Path& path) {
    const std::int32_t priority = priority_of(requests_++);
    ++stamp_;
    std::size_t hit = 0;
    while (hit < path.size() && present_.contains(head(path, hit + 1))) {
      Facts& facts = present_[head(path, ++hit)];
      facts.access = stamp_;
      facts.priority = std::max<std::int64_t>(facts.priority, priority);
      ++facts.touches;
    }
    for (std::size_t n = hit + 1; n <= path.size(); ++n) {
      if (present_.size() == capacity_ && !evict_off(path)) break;
      present_[head(path, n)] = {stamp_, ++insertions_, 1, priority};
    }
    return hit;
  }

 private:
  struct Facts {
    std::int64_t access = 0, inserted = 0, touches = 0, priority = 0;
  };
  using Rank = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

  // The block with the smallest rank is evicted first. The definitions do not order blocks that one request touched;
  // here the order of insertion decides.
  Rank rank(const Facts& f) const {
    if (eviction_ == "fifo") return {f.inserted, 0, 0};
    if (eviction_ == "filo") return {-f.inserted, 0, 0};
    if (eviction_ == "mru") return {-f.access, -f.inserted, 0};
    if (eviction_ == "lfu") return {f.touches, f.access, f.inserted};
    if (eviction_ == "slru") return {f.touches >= 2, f.access, f.inserted};
    if (eviction_ == "priority") return {f.priority, f.access, f.inserted};
    return {f.access, f.inserted, 0};  // lru
  }

  bool evict_off(const Path& path) {
    auto victim = present_.end();
    for (auto it = present_.begin(); it != present_.end(); ++it) {
      const auto after = std::next(it);  // a block's descendants follow it in the order of paths
      const bool leaf = after == present_.end() || !starts_with(after->first, it->first);
      if (!leaf || starts_with(path, it->first)) continue;
      if (victim == present_.end() || rank(it->second) < rank(victim->second)) victim = it;
    }
    if (victim == present_.end()) return false;
    present_.erase(victim);
    return true;
  }

  std::string_view eviction_;
  std::size_t capacity_;
  std::map<Path, Facts> present_;
  std::int64_t stamp_ = 0, insertions_ = 0;
  std::size_t requests_ = 0;
};

// Plain LRU over blocks, without a tree. The deeper blocks of a request count as older.
std::uint64_t plain_lru_hits(const Trace& trace, std::size_t capacity) {
  std::list<Path> order;  // the newest block is first
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

std::uint64_t slow_hits(const Trace& trace, std::string_view eviction, std::size_t capacity) {
  SlowCache cache(eviction, capacity);
  std::uint64_t hits = 0;
  for (const Path& path : trace) hits += cache.serve(path);
  return hits;
}

TEST(HitRateProperty, ReplaysTheDefinitions) {
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed, 40, 7, 3);
    for (const Pages capacity : {0U, 1U, 2U, 3U, 5U, 8U, 13U, 21U, 34U}) {
      const auto rates = replay(trace, {"lru", "fifo"}, {capacity});
      ASSERT_EQ(rates[0].hit_blocks, slow_hits(trace, "lru", capacity)) << "lru, seed " << seed << ", " << capacity;
      ASSERT_EQ(rates[0].hit_blocks, plain_lru_hits(trace, capacity)) << "lru, seed " << seed << ", " << capacity;
      ASSERT_EQ(rates[1].hit_blocks, slow_hits(trace, "fifo", capacity)) << "fifo, seed " << seed << ", " << capacity;
    }
  }
}

TEST(HitRateProperty, ReplaysSglangsStrategies) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const Trace trace = random_trace(seed + 5'000'000, 60, 9, 3);
    for (const Pages capacity : {1U, 4U, 9U, 17U, 30U}) {
      for (const HitRate& rate : replay(trace, {"lfu", "mru", "filo", "priority", "slru"}, {capacity})) {
        ASSERT_EQ(rate.hit_blocks, slow_hits(trace, rate.eviction, capacity))
            << rate.eviction << ", seed " << seed << ", " << capacity;
      }
    }
  }
}

// Two policies with equal results would be an error, except for the known cases.
TEST(HitRateProperty, NoTwoPoliciesAreOne) {
  const std::set<std::set<std::string>> known = {
      {"fifo", "lru"},       // among leaves, the first inserted one is the one that was not used for the longest time
      {"filo", "mru"},       // the same
      {"fifo", "priority"},  // no request of the trace has a priority, so priority equals lru
      {"lru", "tlru"},       // no threshold is set, so tlru equals lru
      {"fifo", "tlru"},     {"priority", "tlru"},
      {"lru", "priority"},  {"lfu", "slru"},  // there is always a page that was used once
      {"lfu", "sieve"},                       // the same: the hand never starts again
      {"sieve", "slru"},
  };
  HitRateConfig config;
  for (const std::string_view name : eviction_names()) config.evictions.emplace_back(name);
  config.capacities = {3'000, 10'000};
  config.queue_view = 64;  // without it, the policy `queue` equals lru
  TraceReader reader(test::bundled_trace());
  TraceInputOptions options;
  options.page_tokens = config.block_tokens;
  options.last_page = LastPage::partial;
  TraceInputSource source(reader, options);
  const auto rates = replay_hit_rates(source, config);
  for (std::size_t a = 0; a < rates.size(); a += 2) {
    for (std::size_t b = a + 2; b < rates.size(); b += 2) {
      if (known.contains({rates[a].eviction, rates[b].eviction})) continue;
      EXPECT_FALSE(rates[a].hit_blocks == rates[b].hit_blocks && rates[a + 1].hit_blocks == rates[b + 1].hit_blocks)
          << rates[a].eviction << " and " << rates[b].eviction << " hit alike";
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
          // A request may be longer than the device. Then no tier keeps its end, which sometimes gives more hits.
          const HitRate opt = replay(trace, {"opt"}, {device + host}).front();
          ASSERT_LE(exclusive.hit_blocks, opt.hit_blocks) << "seed " << seed << ", " << device << "+" << host;
        } else {
          ASSERT_EQ(exclusive.hit_blocks, one[2].hit_blocks) << "seed " << seed << ", " << device << "+" << host;
        }
      }
    }
  }
}

// For all policies and tiers, the counts add up, and exclusive replays keep the contract of the index.
TEST(HitRateProperty, EveryPolicyRuns) {
  std::vector<std::string> names, policies;
  for (const std::string_view name : hit_rate_evictions()) {
    if (!name.starts_with("opt-cost")) names.emplace_back(name);  // opt-cost supports one tier only
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
