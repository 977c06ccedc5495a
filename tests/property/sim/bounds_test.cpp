// Compares the bounds with an exhaustive search and with slow models that work block by block; and compares every
// policy with the bounds. Uses many small random traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "policy/eviction.hpp"
#include "sim/bounds/cost.hpp"
#include "sim/bounds/opt.hpp"
#include "sim/bounds/tiers.hpp"
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

std::vector<Turn> whole_turns(const Trace& trace) {
  std::vector<Turn> turns;
  for (const Path& path : trace) {
    turns.push_back({static_cast<std::uint32_t>(turns.size()), static_cast<std::uint32_t>(path.size())});
  }
  return turns;
}

// Random turns: a request is served once or several times, or only inserts blocks.
std::vector<Turn> random_turns(const Trace& trace, Random& random) {
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const auto request = random.chance(0.2) ? random.integer(0, trace.size() - 1) : i;
    turns.push_back(
        {static_cast<std::uint32_t>(request), static_cast<std::uint32_t>(random.integer(0, trace[request].size()))});
  }
  return turns;
}

Future future_of(const Trace& trace, const std::vector<Turn>& turns) {
  RequestLog log;
  Pager pager(1, 1, LastPage::partial);
  for (const Path& path : trace) log.add(pager.keys(path, path.size(), nullptr));
  return Future(std::move(log), turns);
}

std::uint64_t sum(const std::vector<std::uint32_t>& hits) {
  std::uint64_t all = 0;
  for (const std::uint32_t hit : hits) all += hit;
  return all;
}

// Costs[turn][hit blocks]: the saved cost. Grows with the number of hit blocks, in random steps.
using Costs = std::vector<std::vector<std::uint64_t>>;

Costs random_costs(const Trace& trace, const std::vector<Turn>& turns, Random& random) {
  constexpr std::uint64_t kEvery = 60;  // divisible by 1 to 6, so that the mean over up to six blocks is an integer
  Costs costs;
  for (const Turn& turn : turns) {
    std::vector<std::uint64_t> cost{0};
    const bool rising = random.chance(0.5);
    for (std::uint64_t depth = 0; depth < trace[turn.request].size(); ++depth) {
      cost.push_back(cost.back() + kEvery * (rising ? 1 + depth * 3 : random.integer(0, 9)));
    }
    costs.push_back(cost);
  }
  return costs;
}

std::uint64_t sum(const Costs& costs, const std::vector<std::uint32_t>& hits) {
  std::uint64_t all = 0;
  for (std::size_t turn = 0; turn < hits.size(); ++turn) all += costs[turn][hits[turn]];
  return all;
}

CostBound opt_cost(const Future& future, Pages capacity, const Costs& costs) {
  return opt_cost(future, capacity, [&](std::size_t turn, std::uint32_t blocks) { return costs[turn][blocks]; });
}

// Tries every choice of kept blocks after every turn (results are stored by turn and kept set). The result is the best
// that any policy can do, with knowledge of the future.
class Exhaustive {
 public:
  enum class Bypass : std::uint8_t { allowed, none };
  // `costs`: the values of hits; null: every hit counts 1.
  Exhaustive(const Trace& trace, const std::vector<Turn>& turns, std::size_t capacity, Bypass bypass,
             const Costs* costs = nullptr)
      : trace_(trace), turns_(turns), capacity_(capacity), bypass_(bypass), costs_(costs) {
    for (const Path& block : distinct_blocks(trace)) blocks_.push_back(block);
  }

  std::uint64_t best() { return best_from(0, 0); }

 private:
  std::uint64_t best_from(std::size_t turn, unsigned kept) {
    if (turn == turns_.size()) return 0;
    const auto [entry, fresh] = known_.try_emplace({turn, kept}, 0);
    if (!fresh) return entry->second;
    const Path& path = trace_[turns_[turn].request];
    unsigned available = kept, forced = 0;
    std::uint64_t hit = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (!starts_with(path, blocks_[b])) continue;
      if (blocks_[b].size() <= turns_[turn].counted) hit += (kept >> b) & 1U;
      if (bypass_ == Bypass::none && blocks_[b].size() <= capacity_) forced |= 1U << b;
      available |= 1U << b;
    }
    std::uint64_t later = 0;
    for (unsigned next = available;; next = (next - 1) & available) {
      if ((next & forced) == forced && allowed(next)) later = std::max(later, best_from(turn + 1, next));
      if (next == 0) break;
    }
    return known_[{turn, kept}] = (costs_ == nullptr ? hit : (*costs_)[turn][hit]) + later;
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
  const std::vector<Turn>& turns_;
  std::size_t capacity_;
  Bypass bypass_;
  const Costs* costs_;
  std::vector<Path> blocks_;  // sorted
  std::map<std::pair<std::size_t, unsigned>, std::uint64_t> known_;
};

// The definition of the policy: block by block, LRU among leaves, but blocks that are not used again are evicted first.
class SlowBit {
 public:
  SlowBit(const Trace& trace, std::size_t capacity) : trace_(trace), capacity_(capacity) {}

  std::uint64_t hits() {
    std::uint64_t hits = 0;
    for (now_ = 0; now_ < trace_.size(); ++now_) {
      const Path& path = trace_[now_];
      std::size_t n = 0;
      while (n < path.size() && present_.contains(head(path, n + 1))) present_[head(path, ++n)] = now_;
      hits += n;
      for (; n < path.size() && (present_.size() < capacity_ || evict_off(path)); ++n)
        present_[head(path, n + 1)] = now_;
    }
    return hits;
  }

 private:
  bool again(const Path& block) const {
    return std::any_of(trace_.begin() + static_cast<std::ptrdiff_t>(now_) + 1, trace_.end(),
                       [&](const Path& path) { return starts_with(path, block); });
  }
  bool evict_off(const Path& path) {
    auto victim = present_.end();
    std::pair<bool, std::size_t> least;
    for (auto it = present_.begin(); it != present_.end(); ++it) {
      const auto after = std::next(it);  // a block's descendants follow it in the order of paths
      const bool leaf = after == present_.end() || !starts_with(after->first, it->first);
      if (!leaf || starts_with(path, it->first)) continue;
      const std::pair<bool, std::size_t> rank{again(it->first), it->second};
      if (victim != present_.end() && least <= rank) continue;
      victim = it;
      least = rank;
    }
    if (victim == present_.end()) return false;
    present_.erase(victim);
    return true;
  }

  const Trace& trace_;
  std::size_t capacity_, now_ = 0;
  std::map<Path, std::size_t> present_;  // block -> the request that used it last
};

// Solves the relaxation of opt-cost by trying every number of blocks of every run. The value of k blocks of a run is
// the highest line between two of its prefixes.
class SlowFlow {
 public:
  SlowFlow(const Trace& trace, const std::vector<Turn>& turns, std::size_t capacity, const Costs& costs)
      : room_(turns.size(), capacity) {
    std::map<Path, std::size_t> last;
    for (std::size_t to = 0; to < turns.size(); ++to) {
      const Path& path = trace[turns[to].request];
      std::map<std::size_t, std::pair<std::size_t, std::size_t>> spans;  // `from` -> depths
      for (std::size_t depth = 0; depth < path.size(); ++depth) {
        const auto [at, fresh] = last.try_emplace(head(path, depth + 1), to);
        if (!fresh && depth < turns[to].counted) {
          spans.try_emplace(at->second, depth, depth).first->second.second = depth + 1;
        }
        at->second = to;
      }
      for (const auto& [from, span] : spans) runs_.push_back({from, to, earned(costs[to], span.first, span.second)});
    }
  }

  double choices() const {
    double all = 1;
    for (const Run& run : runs_) all *= static_cast<double>(run.earned.size());
    return all;
  }
  std::uint64_t best(std::size_t run = 0) {
    if (run == runs_.size()) return 0;
    std::uint64_t most = 0;
    const auto [from, to, earned] = runs_[run];
    const auto slots = std::span(room_).subspan(from, to - from);
    for (std::size_t k = 0; k < earned.size(); ++k) {
      if (std::ranges::any_of(slots, [&](std::size_t room) { return room < k; })) break;
      for (std::size_t& room : slots) room -= k;
      most = std::max(most, earned[k] + best(run + 1));
      for (std::size_t& room : slots) room += k;
    }
    return most;
  }

 private:
  struct Run {
    std::size_t from, to;
    std::vector<std::uint64_t> earned;  // by number of blocks
  };
  static std::vector<std::uint64_t> earned(const std::vector<std::uint64_t>& cost, std::size_t first, std::size_t end) {
    std::vector<std::uint64_t> most;
    for (std::size_t k = first; k <= end; ++k) {
      std::uint64_t best = cost[k];
      for (std::size_t a = first; a < k; ++a) {
        for (std::size_t b = k + 1; b <= end; ++b) {
          best = std::max(best, cost[a] + (cost[b] - cost[a]) / (b - a) * (k - a));
        }
      }
      most.push_back(best - cost[first]);
    }
    return most;
  }

  std::vector<std::size_t> room_;  // free blocks after each turn
  std::vector<Run> runs_;
};

// A prefill of n tokens takes n * n seconds.
class Square final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
    return static_cast<TimeNs>(shape.prefill_tokens * shape.prefill_tokens * kNsPerSecond);
  }
  TransferCost storage(const StorageWork&) const override { return {}; }
  TransferCost transfer(const Plan&) const override { return {}; }
};

using Rates = std::map<std::pair<std::string, Pages>, HitRate>;

// Expects that the bounds are in order and that the policies are below them. A policy that does not insert all blocks
// (none at present) would be bounded only by `opt`.
void expect_in_order(const Rates& rates, const std::vector<std::string>& policies, Pages capacity, std::uint64_t seed) {
  const auto rate = [&](const char* name) -> const HitRate& { return rates.at({name, capacity}); };
  for (const std::string& policy : policies) {
    const HitRate& own = rates.at({policy, capacity});
    ASSERT_LE(own.hit_blocks, rate("opt-no-bypass").hit_blocks) << policy << ", seed " << seed << ", " << capacity;
    ASSERT_LE(own.saved_cost, rate("opt-cost").saved_cost) << policy << ", seed " << seed << ", " << capacity;
  }
  ASSERT_LE(rate("opt-bit").hit_blocks, rate("opt-no-bypass").hit_blocks) << "seed " << seed << ", " << capacity;
  ASSERT_LE(rate("opt-no-bypass").hit_blocks, rate("opt").hit_blocks) << "seed " << seed << ", " << capacity;
  ASSERT_LE(rate("opt").hit_blocks, rate("infinite").hit_blocks) << "seed " << seed << ", " << capacity;
  ASSERT_LE(rate("opt-cost-plan").hit_blocks, rate("opt").hit_blocks) << "seed " << seed << ", " << capacity;
  for (const char* plan : {"opt", "opt-no-bypass", "opt-bit", "opt-cost-plan"}) {
    ASSERT_LE(rate(plan).saved_cost, rate("opt-cost").saved_cost) << plan << ", seed " << seed << ", " << capacity;
  }
}

TEST(Bounds, NothingBeatsThemAndMoreRoomNeverHurtsThem) {
  std::vector<std::string> names, policies;
  for (const std::string_view name : hit_rate_evictions()) {
    if (name != "opt-tiers") names.emplace_back(name);
  }
  for (const std::string_view name : eviction_names()) policies.emplace_back(name);
  const Square cost;
  const std::uint64_t traces = std::getenv("KVTWIN_DEEP") != nullptr ? 10'000 : 2'000;
  for (std::uint64_t seed = 1; seed <= traces; ++seed) {
    const Trace trace = random_trace(seed + 1'000'000, 14, 6, 3);
    const std::uint64_t distinct = distinct_blocks(trace).size();
    std::vector<Pages> capacities;
    for (Pages capacity = 0; capacity < distinct; capacity += 1 + capacity / 8) capacities.push_back(capacity);
    capacities.push_back(distinct);
    Rates rates;
    for (const HitRate& rate : replay(trace, names, capacities, 0, false, &cost)) {
      rates[{rate.eviction, rate.capacity_blocks}] = rate;
    }
    const HitRate infinite = rates.at({"infinite", 0});
    ASSERT_EQ(infinite.hit_blocks, infinite.lookup_blocks - distinct) << "seed " << seed;
    for (std::size_t c = 0; c < capacities.size(); ++c) {
      expect_in_order(rates, policies, capacities[c], seed);
      for (const char* name : {"lru", "opt", "opt-no-bypass", "opt-cost"}) {
        if (c == 0) continue;
        const HitRate& less = rates.at({name, capacities[c - 1]});
        ASSERT_GE(rates.at({name, capacities[c]}).saved_cost, less.saved_cost) << name << ", seed " << seed;
        if (name == std::string("opt-cost")) continue;  // bounds the saved cost, not the hits
        ASSERT_GE(rates.at({name, capacities[c]}).hit_blocks, less.hit_blocks) << name << ", seed " << seed;
      }
    }
    for (const std::string& name : names) {
      ASSERT_EQ(rates.at({name, distinct}).hit_blocks, infinite.hit_blocks) << name << ", seed " << seed;
    }
  }
}

// Hits of a warm-up are not counted, by policies and by bounds.
TEST(Bounds, NothingBeatsThemAfterAWarmUp) {
  std::vector<std::string> names, policies;
  for (const std::string_view name : hit_rate_evictions()) {
    if (name != "opt-tiers") names.emplace_back(name);
  }
  for (const std::string_view name : eviction_names()) policies.emplace_back(name);
  const Square cost;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const Trace trace = random_trace(seed + 3'000'000, 14, 6, 3);
    for (std::uint64_t warm_up = 1; warm_up <= trace.size(); warm_up += 3) {
      Rates rates;
      for (const HitRate& rate : replay(trace, names, {1, 2, 4, 8}, 0, false, &cost, warm_up)) {
        ASSERT_EQ(rate.requests, trace.size() - warm_up);
        rates[{rate.eviction, rate.capacity_blocks}] = rate;
      }
      for (const Pages capacity : {1U, 2U, 4U, 8U}) expect_in_order(rates, policies, capacity, seed);
    }
  }
}

TEST(Bounds, TheyAreTheOptimum) {
  int compared = 0, closed = 0, dearer = 0;
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed + 2'000'000, 8, 3, 3);
    const std::size_t distinct = distinct_blocks(trace).size();
    if (distinct > 8) continue;
    const std::vector<Turn> turns = whole_turns(trace);
    const Future future = future_of(trace, turns);
    Random random(seed);
    const Costs costs = random_costs(trace, turns, random);
    for (Pages capacity = 0; capacity < distinct; ++capacity) {
      using enum Exhaustive::Bypass;
      const std::uint64_t most = Exhaustive(trace, turns, capacity, allowed).best();
      ASSERT_EQ(sum(opt_hits(future, capacity)), most) << "seed " << seed << ", capacity " << capacity;
      ASSERT_EQ(sum(opt_no_bypass_hits(future, capacity)), Exhaustive(trace, turns, capacity, none).best())
          << "seed " << seed << ", capacity " << capacity;
      const std::uint64_t dearest = Exhaustive(trace, turns, capacity, allowed, &costs).best();
      const CostBound bound = opt_cost(future, capacity, costs);
      ASSERT_GE(bound.saved, dearest) << "seed " << seed << ", capacity " << capacity;
      ASSERT_LE(sum(costs, bound.plan_hits), dearest) << "seed " << seed << ", capacity " << capacity;
      ++compared;
      closed += bound.saved == dearest ? 1 : 0;
      dearer += dearest > sum(costs, opt_hits(future, capacity)) ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 1'000);
  EXPECT_GT(closed, compared / 2) << "mostly the bound is the optimum";
  EXPECT_GT(dearer, 10) << "costs matter";
}

// No hit of the first turns counts.
TEST(Bounds, AfterAWarmUpTheyAreMostlyTheOptimum) {
  int compared = 0, equal = 0;
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed + 2'000'000, 8, 3, 3);
    const std::size_t distinct = distinct_blocks(trace).size();
    if (distinct > 8) continue;
    std::vector<Turn> turns = whole_turns(trace);
    for (std::size_t turn = 0; turn < turns.size() / 2; ++turn) turns[turn].counted = 0;
    const Future future = future_of(trace, turns);
    for (Pages capacity = 0; capacity < distinct; ++capacity) {
      using enum Exhaustive::Bypass;
      const std::uint64_t bypass = Exhaustive(trace, turns, capacity, allowed).best();
      const std::uint64_t no_bypass = Exhaustive(trace, turns, capacity, none).best();
      ASSERT_GE(sum(opt_hits(future, capacity)), bypass) << "seed " << seed << ", capacity " << capacity;
      ASSERT_GE(sum(opt_no_bypass_hits(future, capacity)), no_bypass) << "seed " << seed << ", capacity " << capacity;
      compared += 2;
      equal += sum(opt_hits(future, capacity)) == bypass ? 1 : 0;
      equal += sum(opt_no_bypass_hits(future, capacity)) == no_bypass ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 1'000);
  EXPECT_GT(equal, compared * 9 / 10);
}

TEST(Bounds, TheFlowIsTheDearest) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
    const Trace trace = random_trace(seed + 5'000'000, 8, 6, 2);
    Random random(seed);
    const std::vector<Turn> turns = seed % 2 == 0 ? whole_turns(trace) : random_turns(trace, random);
    const Costs costs = random_costs(trace, turns, random);
    const Future future = future_of(trace, turns);
    for (const Pages capacity : {0U, 1U, 2U, 3U, 5U, 8U, 40U}) {
      SlowFlow slow(trace, turns, capacity, costs);
      if (slow.choices() > 3'000) continue;
      ASSERT_EQ(opt_cost(future, capacity, costs).saved, slow.best()) << "seed " << seed << ", capacity " << capacity;
      ++compared;
    }
  }
  EXPECT_GT(compared, 5'000);
}

TEST(Bounds, StepsThatAreNotWholeAreRoundedUp) {
  const Trace trace{{1, 2, 3}, {1, 2, 3}};
  const Future future = future_of(trace, whole_turns(trace));
  const Costs costs{{0, 1, 2, 5}, {0, 1, 2, 5}};  // 5 / 3 per block
  for (const Pages capacity : {1U, 2U, 3U, 4U}) {
    EXPECT_EQ(opt_cost(future, capacity, costs).saved, 2 * std::min<Pages>(capacity, 3)) << capacity;
  }
}

TEST(Bounds, TheBitIsWhatItSays) {
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed + 6'000'000, 30, 7, 3);
    const Future future = future_of(trace, whole_turns(trace));
    for (const Pages capacity : {0U, 1U, 2U, 3U, 5U, 8U, 13U, 21U}) {
      ASSERT_EQ(sum(opt_bit_hits(future, capacity)), SlowBit(trace, capacity).hits())
          << "seed " << seed << ", capacity " << capacity;
    }
  }
}

// Plain LRU over blocks, as in the replay. Of the hits of a turn, only the first `counted` blocks count.
std::uint64_t slow_lru(const Trace& trace, const std::vector<Turn>& turns, std::size_t capacity) {
  std::vector<Path> order;  // the newest block is last; within a path, the deepest block is first
  std::uint64_t hits = 0;
  for (const Turn& turn : turns) {
    const Path& path = trace[turn.request];
    const auto at = [&](std::size_t n) { return std::ranges::find(order, head(path, n)); };
    std::size_t hit = 0;
    while (hit < path.size() && at(hit + 1) != order.end()) ++hit;
    hits += std::min<std::size_t>(hit, turn.counted);
    for (std::size_t n = path.size(); n > 0; --n) {
      if (const auto old = at(n); old != order.end()) order.erase(old);
      order.push_back(head(path, n));
    }
    if (order.size() > capacity) order.erase(order.begin(), order.end() - static_cast<std::ptrdiff_t>(capacity));
  }
  return hits;
}

TEST(Bounds, TurnsMayCountInPart) {
  int compared = 0, equal = 0;
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    const Trace trace = random_trace(seed + 7'000'000, 8, 3, 3);
    Random random(seed);
    const std::vector<Turn> turns = random_turns(trace, random);
    const Future future = future_of(trace, turns);
    const std::size_t distinct = distinct_blocks(trace).size();
    for (Pages capacity = 0; capacity <= distinct; ++capacity) {
      const std::uint64_t opt = sum(opt_hits(future, capacity)), lru = sum(lru_hits(future, capacity));
      ASSERT_EQ(lru, slow_lru(trace, turns, capacity)) << "seed " << seed << ", capacity " << capacity;
      ASSERT_GE(opt, lru) << "seed " << seed << ", capacity " << capacity;
      if (distinct > 8) continue;
      const std::uint64_t most = Exhaustive(trace, turns, capacity, Exhaustive::Bypass::allowed).best();
      ASSERT_GE(opt, most) << "seed " << seed << ", capacity " << capacity;
      ++compared;
      equal += opt == most ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 1'000);
  EXPECT_GT(equal, compared * 9 / 10);
}

// Tries every placement of blocks after every turn. The first tier is the nearest. Blocks on the request's path may go
// to any tier. Other blocks stay, move to a farther tier, or are evicted.
class ExhaustiveTiers {
 public:
  ExhaustiveTiers(const Trace& trace, const std::vector<Turn>& turns, std::vector<std::size_t> rooms,
                  std::vector<std::int64_t> loads, const Costs& costs)
      : trace_(trace), turns_(turns), rooms_(std::move(rooms)), loads_(std::move(loads)), costs_(costs) {
    for (const Path& block : distinct_blocks(trace)) blocks_.push_back(block);
    std::vector<std::size_t> at(blocks_.size(), 0);
    do {
      if (allowed(at)) states_.push_back(at);
    } while (count_up(at));
  }

  std::int64_t best() { return best_from(0, std::vector<std::size_t>(blocks_.size(), absent())); }

 private:
  using State = std::vector<std::size_t>;  // tier of each block
  std::size_t absent() const { return rooms_.size(); }

  bool count_up(State& at) const {
    for (std::size_t& tier : at) {
      if (tier++ < absent()) return true;
      tier = 0;
    }
    return false;
  }

  bool allowed(const State& at) const {
    for (std::size_t tier = 0; tier < absent(); ++tier) {
      if (static_cast<std::size_t>(std::ranges::count(at, tier)) > rooms_[tier]) return false;
    }
    for (std::size_t b = 0; b < at.size(); ++b) {
      if (at[b] == absent() || blocks_[b].size() == 1) continue;
      const Path parent = head(blocks_[b], blocks_[b].size() - 1);
      if (at[static_cast<std::size_t>(std::ranges::lower_bound(blocks_, parent) - blocks_.begin())] == absent()) {
        return false;
      }
    }
    return true;
  }

  // A turn uses as many of its hits as are worth their load.
  std::int64_t saved(std::size_t turn, const State& at) const {
    std::int64_t most = 0, now = 0;
    const Path& path = trace_[turns_[turn].request];
    for (std::size_t n = 1; n <= turns_[turn].counted; ++n) {
      const std::size_t tier =
          at[static_cast<std::size_t>(std::ranges::lower_bound(blocks_, head(path, n)) - blocks_.begin())];
      if (tier == absent()) break;
      now += static_cast<std::int64_t>(costs_[turn][n] - costs_[turn][n - 1]) - loads_[tier];
      most = std::max(most, now);
    }
    return most;
  }

  std::int64_t best_from(std::size_t turn, const State& at) {
    if (turn == turns_.size()) return 0;
    const auto [entry, fresh] = known_.try_emplace({turn, at}, 0);
    if (!fresh) return entry->second;
    std::int64_t later = 0;
    for (const State& next : states_) {
      bool possible = true;
      for (std::size_t b = 0; b < at.size() && possible; ++b) {
        possible = next[b] >= at[b] || starts_with(trace_[turns_[turn].request], blocks_[b]);
      }
      if (possible) later = std::max(later, best_from(turn + 1, next));
    }
    return known_[{turn, at}] = saved(turn, at) + later;
  }

  const Trace& trace_;
  const std::vector<Turn>& turns_;
  std::vector<std::size_t> rooms_;
  std::vector<std::int64_t> loads_;
  const Costs& costs_;
  std::vector<Path> blocks_;  // sorted
  std::vector<State> states_;
  std::map<std::pair<std::size_t, State>, std::int64_t> known_;
};

// Returns the bound on the savings of tiers of these sizes. A block has one token.
std::uint64_t tiers_bound(const Future& future, const std::vector<std::size_t>& rooms,
                          const std::vector<std::int64_t>& loads, const Costs& costs) {
  std::vector<TierLevel> levels;
  Pages room = 0;
  for (std::size_t k = 0; k < rooms.size(); ++k) {
    room += rooms[k];
    levels.push_back({&future, room, static_cast<std::uint64_t>(loads[k]) * 1000});
  }
  return opt_tiers(
             levels, [&](std::uint32_t request, std::uint32_t blocks) { return costs[request][blocks]; },
             [](std::uint32_t, std::uint32_t blocks) { return blocks; })
      .saved;
}

TEST(Bounds, NoHierarchySavesMore) {
  int compared = 0, closed = 0;
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    const Trace trace = random_trace(seed + 8'000'000, 7, 3, 2);
    if (distinct_blocks(trace).size() > 4) continue;
    Random random(seed);
    const std::vector<Turn> turns = whole_turns(trace);
    const Costs costs = random_costs(trace, turns, random);  // a block saves 0 to 600
    const Future future = future_of(trace, turns);
    const std::vector<std::size_t> rooms{random.integer(0, 2), random.integer(0, 2), random.integer(0, 1)};
    std::vector<std::int64_t> loads{0, static_cast<std::int64_t>(random.integer(0, 200))};
    loads.push_back(loads.back() + static_cast<std::int64_t>(random.integer(0, 300)));
    const std::int64_t most = ExhaustiveTiers(trace, turns, rooms, loads, costs).best();
    const auto bound = static_cast<std::int64_t>(tiers_bound(future, rooms, loads, costs));
    ASSERT_GE(bound, most) << "seed " << seed;
    ++compared;
    closed += bound == most ? 1 : 0;
  }
  EXPECT_GT(compared, 200);
  EXPECT_GT(closed, compared / 2) << "mostly the bound is what can be saved";
}

TEST(Bounds, OneTierIsTheFlowOfItsCosts) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Trace trace = random_trace(seed + 9'000'000, 12, 6, 2);
    Random random(seed);
    const std::vector<Turn> turns = whole_turns(trace);
    const Costs costs = random_costs(trace, turns, random);
    const Future future = future_of(trace, turns);
    for (const Pages capacity : {0U, 1U, 3U, 8U}) {
      const std::uint64_t flow = opt_cost(future, capacity, costs).saved;
      ASSERT_EQ(tiers_bound(future, {capacity}, {0}, costs), flow) << "seed " << seed;
      ASSERT_EQ(tiers_bound(future, {capacity / 2, capacity - capacity / 2}, {0, 0}, costs), flow) << "seed " << seed;
      ASSERT_EQ(tiers_bound(future, {capacity, 9}, {0, 1'000}, costs), flow) << "what doesn't pay, seed " << seed;
    }
  }
}

// The last block of a prompt costs up to 11 s (Square). The loads are between 0 and more than that.
TEST(Bounds, NoPolicyOfTwoTiersSavesMore) {
  std::vector<std::string> names{"opt-tiers"};
  for (const std::string_view name : eviction_names()) names.emplace_back(name);
  const Square cost;
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    const Trace trace = random_trace(seed + 10'000'000, 14, 6, 3);
    Random random(seed);
    test::TraceListSource source(trace);
    HitRateConfig config;
    config.evictions = names;
    config.capacities = {random.integer(0, 8)};
    config.host_capacity = random.integer(1, 8);
    config.exclusive = random.chance(0.5);
    config.block_tokens = 1;
    config.cost = &cost;
    config.host_load_milli = random.integer(0, 8) * std::uint64_t{kNsPerSecond} * 1000;
    const std::vector<HitRate> rates = replay_hit_rates(source, config);
    for (const HitRate& rate : rates) {
      ASSERT_LE(rate.net_saved_cost, rates.front().net_saved_cost) << rate.eviction << ", seed " << seed;
      ASSERT_LE(rate.device_hit_blocks, rates.front().device_hit_blocks) << rate.eviction << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvtwin
