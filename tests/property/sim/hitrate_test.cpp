// The replays against slow models that know nothing of radix trees, on many small random traces.
#include "sim/hitrate.hpp"

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
#include "tests/trace_files.hpp"
#include "traces/paging.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

using Path = std::vector<std::uint64_t>;  // a request: its blocks' ids; also a block: the ids from the root to it
using Trace = std::vector<Path>;

std::int32_t priority_of(std::size_t request) { return static_cast<std::int32_t>(mix64(request) % 5) - 2; }

class TraceListSource final : public InputSource {
 public:
  explicit TraceListSource(const Trace& trace) : trace_(trace) {}

  bool next(Input& input) override {
    if (at_ == trace_.size()) return false;
    Arrival arrival;
    arrival.request = at_;
    arrival.prompt_tokens = trace_[at_].size();
    arrival.output_tokens = 1;
    arrival.priority = priority_of(at_);
    arrival.keys = pager_.keys(trace_[at_], arrival.prompt_tokens, nullptr);
    input.what = arrival;
    ++at_;
    return true;
  }

 private:
  const Trace& trace_;
  Pager pager_{1, 1, LastPage::partial};
  std::size_t at_ = 0;
};

std::vector<HitRate> replay(const Trace& trace, std::vector<std::string> evictions, std::vector<Pages> capacities,
                            Pages host = 0, bool exclusive = false) {
  TraceListSource source(trace);
  HitRateConfig config;
  config.evictions = std::move(evictions);
  config.capacities = std::move(capacities);
  config.host_capacity = host;
  config.exclusive = exclusive;
  config.block_tokens = 1;
  return replay_hit_rates(source, config);
}

Trace random_trace(std::uint64_t seed, std::size_t requests, std::size_t depth, std::uint64_t ids) {
  Random random(seed);
  Trace trace(static_cast<std::size_t>(random.integer(1, requests)));
  for (Path& path : trace) {
    path.resize(static_cast<std::size_t>(random.integer(1, depth)));
    for (std::uint64_t& id : path) id = random.chance(0.5) ? 0 : random.integer(0, ids - 1);
  }
  return trace;
}

Path head(const Path& path, std::size_t length) {
  return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(length)};
}

bool starts_with(const Path& path, const Path& prefix) {
  return prefix.size() <= path.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

std::set<Path> distinct_blocks(const Trace& trace) {
  std::set<Path> blocks;
  for (const Path& path : trace) {
    for (std::size_t n = 1; n <= path.size(); ++n) blocks.insert(head(path, n));
  }
  return blocks;
}

// The definitions, word by word, block by block: O(capacity^2) an eviction.
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

  // Least first. What the definitions leave open, blocks that one request touched, is by insertion.
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

// Two names for one policy would be a mistake somewhere.
TEST(HitRateProperty, NoTwoPoliciesAreOne) {
  const std::set<std::set<std::string>> known = {
      {"fifo", "lru"},       // of a path's leaves the one that came first is the one not touched for longest
      {"filo", "mru"},       // likewise
      {"fifo", "priority"},  // no request of the trace has a priority: then it is lru
      {"lru", "priority"},  {"lfu", "slru"},  // there always is a page that was touched once
      {"lfu", "sieve"},                       // likewise: the hand never comes round
      {"sieve", "slru"},
  };
  HitRateConfig config;
  for (const std::string_view name : eviction_names()) config.evictions.emplace_back(name);
  config.capacities = {3'000, 10'000};
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

TEST(HitRateProperty, NothingBeatsTheBoundAndMoreRoomNeverHurtsIt) {
  for (std::uint64_t seed = 1; seed <= 10'000; ++seed) {
    const Trace trace = random_trace(seed + 1'000'000, 14, 6, 3);
    const std::uint64_t distinct = distinct_blocks(trace).size();
    std::vector<Pages> capacities;
    for (Pages capacity = 0; capacity <= distinct; ++capacity) capacities.push_back(capacity);
    const auto rates = replay(trace, {"lru", "fifo", "opt", "infinite"}, capacities);
    const std::uint64_t infinite = rates.back().hit_blocks;
    ASSERT_EQ(infinite, rates.back().lookup_blocks - distinct) << "seed " << seed;
    for (std::size_t c = 0; c < capacities.size(); ++c) {
      const std::uint64_t lru = rates[c].hit_blocks, fifo = rates[c + capacities.size()].hit_blocks;
      const std::uint64_t opt = rates[c + 2 * capacities.size()].hit_blocks;
      ASSERT_GE(opt, lru) << "seed " << seed << ", capacity " << c;
      ASSERT_GE(opt, fifo) << "seed " << seed << ", capacity " << c;
      ASSERT_GE(infinite, opt) << "seed " << seed << ", capacity " << c;
      if (c == 0) continue;
      ASSERT_GE(lru, rates[c - 1].hit_blocks) << "seed " << seed << ", capacity " << c;
      ASSERT_GE(opt, rates[c - 1 + 2 * capacities.size()].hit_blocks) << "seed " << seed << ", capacity " << c;
    }
    ASSERT_EQ(rates[distinct].hit_blocks, infinite);
    ASSERT_EQ(rates[distinct + 2 * capacities.size()].hit_blocks, infinite);
  }
}

// Every choice of what to keep after every request, remembered by (request, kept set): an upper bound of what any
// policy can do, with or without knowing the future.
class Exhaustive {
 public:
  Exhaustive(const Trace& trace, std::size_t capacity) : trace_(trace), capacity_(capacity) {
    for (const Path& block : distinct_blocks(trace)) blocks_.push_back(block);
  }

  std::uint64_t best() { return best_from(0, 0); }

 private:
  std::uint64_t best_from(std::size_t request, unsigned kept) {
    if (request == trace_.size()) return 0;
    const auto [entry, fresh] = known_.try_emplace({request, kept}, 0);
    if (!fresh) return entry->second;
    unsigned available = kept;
    std::uint64_t hit = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (!starts_with(trace_[request], blocks_[b])) continue;
      hit += (kept >> b) & 1U;
      available |= 1U << b;
    }
    std::uint64_t later = 0;
    for (unsigned next = available;; next = (next - 1) & available) {
      if (allowed(next)) later = std::max(later, best_from(request + 1, next));
      if (next == 0) break;
    }
    return known_[{request, kept}] = hit + later;
  }

  bool allowed(unsigned kept) const {
    if (static_cast<std::size_t>(__builtin_popcount(kept)) > capacity_) return false;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (((kept >> b) & 1U) == 0 || blocks_[b].size() == 1) continue;
      const Path parent = head(blocks_[b], blocks_[b].size() - 1);
      const auto at =
          static_cast<std::size_t>(std::lower_bound(blocks_.begin(), blocks_.end(), parent) - blocks_.begin());
      if (((kept >> at) & 1U) == 0) return false;
    }
    return true;
  }

  const Trace& trace_;
  std::size_t capacity_;
  std::vector<Path> blocks_;  // sorted
  std::map<std::pair<std::size_t, unsigned>, std::uint64_t> known_;
};

TEST(HitRateProperty, TheBoundIsTheOptimum) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed + 2'000'000, 8, 3, 3);
    const std::size_t distinct = distinct_blocks(trace).size();
    if (distinct > 8) continue;
    for (Pages capacity = 1; capacity < distinct; ++capacity) {
      ASSERT_EQ(replay(trace, {"opt"}, {capacity}).front().hit_blocks, Exhaustive(trace, capacity).best())
          << "seed " << seed << ", capacity " << capacity;
      ++compared;
    }
  }
  EXPECT_GT(compared, 1'000);
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
  std::vector<std::string> names;
  for (const std::string_view name : hit_rate_evictions()) names.emplace_back(name);
  std::vector<std::string> policies(names.begin(), names.end() - 2);
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
