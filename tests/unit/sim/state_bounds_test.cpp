// The bound of hits by states, against an exhaustive search over what an ideal cache keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "sim/bounds/flow.hpp"
#include "sim/bounds/opt.hpp"
#include "sim/bounds/states.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

using Path = std::vector<std::uint64_t>;
using Kept = std::set<Path>;

struct Case {
  std::vector<Path> paths;
  std::vector<Turn> turns;
  RequestLog log;

  void add(const Path& path, std::uint32_t counted) {
    turns.push_back({static_cast<std::uint32_t>(paths.size()), counted});
    paths.push_back(path);
    log.add(test::chain(path));
  }
  std::uint64_t bound(Pages states) const {
    std::vector<std::uint32_t> ends;
    for (std::uint32_t turn = 0; turn < turns.size(); ++turn) ends.push_back(turn);
    return opt_state_hits(log, turns, ends, states);
  }
};

// Each turn hits the deepest prefix of its path with a state. Then any of the kept states and of the prefixes of its
// path stay, at most `states`.
std::uint64_t best_hits(const Case& work, std::size_t states) {
  std::map<Kept, std::uint64_t> reached{{{}, 0}};
  for (std::size_t turn = 0; turn < work.paths.size(); ++turn) {
    const Path& path = work.paths[turn];
    std::map<Kept, std::uint64_t> next;
    for (const auto& [kept, before] : reached) {
      std::uint64_t hits = before;
      for (std::size_t depth = work.turns[turn].counted; depth > 0; --depth) {
        if (!kept.contains(Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(depth)))) continue;
        hits += depth;
        break;
      }
      std::vector<Path> all(kept.begin(), kept.end());
      for (std::size_t depth = 1; depth <= path.size(); ++depth) {
        Path prefix(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(depth));
        if (!kept.contains(prefix)) all.push_back(prefix);
      }
      for (std::uint64_t chosen = 0; chosen < std::uint64_t{1} << all.size(); ++chosen) {
        if (static_cast<std::size_t>(__builtin_popcountll(chosen)) > states) continue;
        Kept stays;
        for (std::size_t i = 0; i < all.size(); ++i) {
          if ((chosen >> i & 1U) != 0) stays.insert(all[i]);
        }
        std::uint64_t& most = next[stays];
        most = std::max(most, hits);
      }
    }
    reached = std::move(next);
  }
  std::uint64_t best = 0;
  for (const auto& [kept, hits] : reached) best = std::max(best, hits);
  return best;
}

TEST(StateBound, IsNeverBelowTheBestAndMostlyTheSame) {
  std::uint64_t cases = 0, exact = 0, hits = 0, excess = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    test::Splitmix random(seed);
    Case work;
    const std::uint64_t turns = 2 + random.below(5);
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
      Path path;
      for (std::uint64_t blocks = 1 + random.below(4); blocks > 0; --blocks) path.push_back(random.below(2));
      work.add(path, static_cast<std::uint32_t>(random.below(6) == 0 ? random.below(path.size() + 1) : path.size()));
    }
    for (const std::size_t states : {std::size_t{1}, std::size_t{2}}) {
      const std::uint64_t best = best_hits(work, states), bound = work.bound(states);
      ASSERT_GE(bound, best) << "seed " << seed << ", states " << states;
      ++cases;
      exact += bound == best;
      hits += best;
      excess += bound - best;
    }
  }
  EXPECT_GE(exact, cases * 95 / 100);
  EXPECT_LE(excess, hits / 50);
}

TEST(StateBound, CountsWhatIsKeptBetweenTurns) {
  Case work;
  work.add({1, 2, 3}, 3);
  work.add({7, 8}, 2);
  work.add({1, 2, 3}, 3);
  work.add({7, 8}, 2);
  EXPECT_EQ(work.bound(0), 0U);
  EXPECT_EQ(work.bound(1), 3U);
  EXPECT_EQ(work.bound(2), 5U);
  const std::vector<std::uint32_t> late{1, 1, 2, 3};  // the first turn ends after the second one has begun
  EXPECT_EQ(opt_state_hits(work.log, work.turns, late, 1), 3U);
  const std::vector<std::uint32_t> all_late{2, 3, 3, 3};
  EXPECT_EQ(opt_state_hits(work.log, work.turns, all_late, 0), 5U) << "nothing has to be kept";
}

TEST(StateBound, AShallowHitNeedsNoLongInterval) {
  Case work;
  work.add({1, 2, 3}, 3);
  work.add({1, 5}, 2);
  work.add({9}, 1);
  work.add({1, 2, 3}, 3);  // depth 1 since the second turn, depth 3 since the first
  work.add({9}, 1);
  EXPECT_EQ(work.bound(1), best_hits(work, 1));
  EXPECT_EQ(work.bound(2), best_hits(work, 2));
}

}  // namespace
}  // namespace kvtwin
