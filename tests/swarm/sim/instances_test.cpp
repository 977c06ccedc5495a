// Hundreds of random runs in which each rank has its own policy instance: ranks of different speed, and on some ranks
// all faults that `Faulty` can produce. Whatever fails on one rank, all ranks take the same steps and decide the same,
// and every request ends.
//
//   KVTWIN_SWARM_SEED=123 build/tests/swarm_sim --gtest_filter='InstancesSwarm*'       only this seed
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "policy/base/check.hpp"
#include "tests/instances.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 300;
std::uint64_t current_seed = 0;

void print_seed(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "broken promise: %s (%s, %s:%d)\nreproduce: KVTWIN_SWARM_SEED=%llu build/tests/swarm_sim\n",
               sentence, condition, file, line, static_cast<unsigned long long>(current_seed));
}

// `Faulty` does not pass on a pass whose load it already knows to have failed. Where ranks run passes together, the
// other ranks would wait for that pass forever. This can only happen if the failed load was also delayed, so the faults
// have either late loads or failing loads, never both.
FaultShares draw_faults(Splitmix& rng, bool late) {
  FaultShares shares;
  for (std::uint32_t* share : {&shares.cut_bursts, &shares.write_errors, &shares.full, &shares.lost_writes}) {
    *share = rng.chance(50) ? static_cast<std::uint32_t>(rng.below(200)) : 0;
  }
  if (late) {
    for (std::uint32_t* share : {&shares.slow, &shares.late, &shares.duplicates}) {
      *share = rng.chance(60) ? static_cast<std::uint32_t>(rng.below(300)) : 0;
    }
    return shares;
  }
  for (std::uint32_t* share : {&shares.failed_transfers, &shares.read_errors, &shares.short_reads,
                               &shares.corrupt_pages, &shares.link_down, &shares.cancels}) {
    *share = rng.chance(50) ? static_cast<std::uint32_t>(rng.below(200)) : 0;
  }
  if (rng.chance(25)) shares.dead_node = 20;
  return shares;
}

struct Sums {
  std::uint64_t stored = 0, host = 0, fell_short = 0, unequal_news = 0;
};

std::uint64_t run_seed(std::uint64_t seed, Sums& sums) {
  current_seed = seed;
  Splitmix rng(mix(seed) ^ 0x5ea7);
  InstancesRun run;
  run.engine = random_rank_engine(rng, static_cast<std::uint32_t>(rng.between(2, 8)));
  run.engine.backup_retries = static_cast<std::uint32_t>(rng.below(3));
  if (rng.chance(50)) {
    for (StorageTierConfig& tier : run.engine.storage) tier.pages = 4000;
    run.engine.prefetch_min_tokens = 0;
    run.engine.prefetch_host_share = 1024;
  }
  run.seed = seed;
  run.requests = rng.between(40, 120);
  run.reduce_ns = static_cast<TimeNs>(rng.between(1'000, 40'000));
  const bool late = rng.chance(40);
  if (late && run.engine.path != CachePath::via_host && run.engine.host_pages > 0)
    run.engine.path = CachePath::via_host;
  if (late && run.engine.path != CachePath::via_host) run.engine.storage.clear();
  for (std::uint32_t rank = 0; rank < run.engine.ranks; ++rank) {
    run.slower.push_back(rng.chance(50) ? 1.0 : 1.0 + static_cast<double>(rng.below(300)) / 10.0);
    run.faults.push_back(rng.chance(50) ? std::optional(draw_faults(rng, late)) : std::nullopt);
  }
  const std::vector<RankResult> ranks = run_instances(run);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(ranks[rank].idle) << "seed " << seed << ", rank " << rank << ": " << ranks[rank].left;
    EXPECT_EQ(ranks[rank].ended, run.requests) << "seed " << seed << ", rank " << rank;
    EXPECT_EQ(ranks[rank].digest, ranks[0].digest) << "seed " << seed << ", rank " << rank;
    EXPECT_EQ(ranks[rank].reductions, ranks[0].reductions) << "seed " << seed << ", rank " << rank;
    sums.unequal_news += ranks[rank].fell_short != ranks[0].fell_short ? 1 : 0;
    sums.fell_short += ranks[rank].fell_short;
  }
  sums.stored += ranks[0].hit_stored;
  sums.host += ranks[0].hit_host;
  return ranks[0].digest;
}

TEST(InstancesSwarm, whatever_goes_wrong_on_some_ranks_all_decide_alike) {
  set_check_handler(print_seed);
  Sums sums;
  if (const char* one = std::getenv("KVTWIN_SWARM_SEED")) {
    run_seed(std::strtoull(one, nullptr, 10), sums);
    return;
  }
  const std::uint64_t seeds = kSeeds * (std::getenv("KVTWIN_DEEP") != nullptr ? 10 : 1);
  for (std::uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    const std::uint64_t digest = run_seed(seed, sums);
    Sums again;
    if (seed % 32 == 0) {
      EXPECT_EQ(run_seed(seed, again), digest) << "the same seed decides the same";
    }
  }
  EXPECT_GT(sums.stored, 0U);
  EXPECT_GT(sums.host, 0U);
  EXPECT_GT(sums.fell_short, 0U);
  EXPECT_GT(sums.unequal_news, 0U) << "ranks see different failures";
}

}  // namespace
}  // namespace kvtwin::test
