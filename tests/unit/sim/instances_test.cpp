// Tests one policy instance per rank. Although the ranks see different inputs at different times, they must take the
// same steps. If a rank does not enter a collective, all ranks wait for ever. SGLang's HiCache hung in this way (issue
// #30760: a reduction inside a loop that ends on a condition of one rank).
#include "tests/instances.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/listed_inputs.hpp"
#include "world_script.hpp"

namespace kvtwin::test {
namespace {

void expect_alike(const std::vector<RankResult>& ranks, std::uint64_t requests, const std::string& what) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(ranks[rank].idle) << what << ", rank " << rank << ": " << ranks[rank].left;
    EXPECT_EQ(ranks[rank].ended, requests) << what << ", rank " << rank;
    EXPECT_EQ(ranks[rank].digest, ranks[0].digest) << what << ", rank " << rank;
    EXPECT_EQ(ranks[rank].decisions, ranks[0].decisions) << what << ", rank " << rank;
    EXPECT_EQ(ranks[rank].reductions, ranks[0].reductions) << what << ", rank " << rank;
  }
}

// The traffic of run_instances(), slower by `factor` and with a pause before each arrival.
class Stretched final : public InputSource {
 public:
  Stretched(const InstancesRun& run, TimeNs factor, TimeNs pause)
      : inner_(run.seed, run.engine.shape.page_tokens, run.engine.device_pages * 3 / 4, run.requests),
        factor_(factor),
        pause_(pause) {}
  bool next(Input& input) override {
    if (!inner_.next(input)) return false;
    input.now = input.now * factor_ + (waited_ += pause_);
    return true;
  }

 private:
  EngineTraffic inner_;
  TimeNs factor_, pause_, waited_ = 0;
};

TEST(Instances, eight_ranks_of_unequal_speed_never_deadlock_and_decide_alike) {
  std::uint64_t stored = 0, host = 0;
  for (const std::string_view prefetch : {"best_effort", "wait_complete", "timeout"}) {
    for (const std::string_view write : {"write_through", "write_through_selective", "write_back"}) {
      for (std::uint64_t seed = 0; seed < 12; ++seed) {
        Splitmix rng(mix(seed));
        InstancesRun run;
        run.engine = random_rank_engine(rng, 8);
        if (run.engine.storage.empty()) run.engine.storage.push_back({Tier::disk, 200, true});
        run.engine.prefetch_policy = prefetch;
        run.engine.write_policy = write;
        run.engine.tiering = Tiering::inclusive;
        if (seed % 2 == 0) {  // prompts that return are often in storage only
          run.engine.path = CachePath::via_host;
          run.engine.host_pages = 2 * run.engine.device_pages;
          run.engine.prefetch_min_tokens = 0;
          run.engine.prefetch_host_share = 1024;
          run.engine.storage_write_share = 8192;
          run.requests = 150;
          for (StorageTierConfig& tier : run.engine.storage) tier.pages = 4000;
        }
        run.seed = seed;
        run.reduce_ns = static_cast<TimeNs>(rng.between(1'000, 50'000));
        for (int rank = 0; rank < 8; ++rank) run.slower.push_back(1.0 + static_cast<double>(rng.below(400)) / 10.0);
        // With a pause, the pages of a request are stored before the next request arrives and can fetch them.
        Stretched source(run, seed % 2 == 0 ? 50 : 1, seed % 4 == 0 ? kNsPerSecond / 10 : 0);
        const std::vector<RankResult> ranks = run_instances(run, source);
        expect_alike(
            ranks, run.requests,
            "prefetch " + std::string(prefetch) + ", write " + std::string(write) + ", seed " + std::to_string(seed));
        stored += ranks[0].hit_stored;
        host += ranks[0].hit_host;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(stored, 0U);
  EXPECT_GT(host, 0U);
}

// Three different prompts, so that the first one is evicted from L1 and L2, and then the first one again.
std::vector<Input> there_and_back(const std::vector<PageKey>& a, const std::vector<PageKey>& b,
                                  const std::vector<PageKey>& c) {
  std::vector<Input> inputs;
  RequestId request = 0;
  TimeNs at = 0;
  for (const std::vector<PageKey>* keys : {&a, &b, &c, &a}) {
    inputs.push_back(
        {at, Arrival{.request = request++, .prompt_tokens = 16 * 4 + 1, .output_tokens = 2, .keys = *keys}});
    at += kNsPerSecond;
  }
  return inputs;
}

std::vector<PageKey> prompt(std::uint64_t first) {
  std::vector<std::uint64_t> tokens;
  for (std::uint64_t i = 0; i < 16; ++i) tokens.push_back(first + i);
  return chain(tokens);
}

// A page that the store of one rank has lost is missing for all ranks, because the minimum counts.
TEST(Instances, RanksWhoseStoresDifferTakeWhatAllOfThemHave) {
  for (const Tier tier : {Tier::disk, Tier::remote}) {
    InstancesRun run;
    run.engine.shape = KvShape{2, 2, 1, 16, 4};
    run.engine.ranks = 3;
    run.engine.device_pages = 24;
    run.engine.host_pages = 34;
    run.engine.storage = {{tier, 1000, tier == Tier::disk}};
    run.engine.storage_writers = 3;
    run.engine.storage_batch_pages = 2;
    run.engine.storage_write_share = 8192;
    run.engine.prefetch_policy = "wait_complete";
    run.engine.prefetch_min_tokens = 4;
    run.engine.prefetch_host_share = 1024;
    const auto a = prompt(100), b = prompt(200), c = prompt(300);
    const auto served = [&] {
      ListedInputs source(there_and_back(a, b, c));
      return run_instances(run, source);
    };
    const std::vector<RankResult> whole = served();
    expect_alike(whole, 4, "whole stores");
    EXPECT_GT(whole[0].hit_stored, 8U * 4) << "the first prompt's pages come back";
    // Rank 2 loses some of its writes without an error. The loss is found when the pages are read.
    bool fewer = false;
    for (run.seed = 0; run.seed < 8; ++run.seed) {
      run.faults = {std::nullopt, std::nullopt, FaultShares{.lost_writes = 300}};
      const std::vector<RankResult> holed = served();
      expect_alike(holed, 4, "a store with holes");
      for (const RankResult& rank : holed) EXPECT_EQ(rank.hit_stored, holed[0].hit_stored);
      EXPECT_LE(holed[0].hit_stored, whole[0].hit_stored);
      EXPECT_EQ(holed[0].fell_short, 0U) << "rank 0's own store has every page";
      fewer |= holed[0].hit_stored < whole[0].hit_stored && holed[2].fell_short > 0;
    }
    EXPECT_TRUE(fewer);
  }
}

// Ranks of equal speed make the same decisions as lockstep, if the reductions in lockstep take the same time. Otherwise
// the steps of the ranks are later, and see completions that the steps of lockstep do not see. The store that evicts by
// itself is large here, because it evicts parts of pages for rank instances, and whole pages for lockstep.
TEST(Instances, RanksOfEqualSpeedDecideAsLockstepDoes) {
  Tokens stored = 0, host = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Splitmix rng(mix(seed));
    InstancesRun run;
    run.engine = random_rank_engine(rng, 4);
    for (StorageTierConfig& tier : run.engine.storage) tier.pages = tier.owned ? tier.pages : 4'000;
    run.reduce_ns = static_cast<TimeNs>(rng.between(1'000, 50'000));
    run.seed = seed;
    run.requests = 40;
    const TimeNs pause = rng.chance(50) ? 0 : 10 * kNsPerSecond;
    Stretched first(run, 1, pause), second(run, 1, pause);
    const std::vector<RankResult> instances = run_instances(run, first);
    expect_alike(instances, 40, "seed " + std::to_string(seed));
    run.instances = false;
    run.late_ns = run.reduce_ns;
    const std::vector<RankResult> lockstep = run_instances(run, second);
    ASSERT_EQ(lockstep.size(), 1U);
    EXPECT_EQ(lockstep[0].digest, instances[0].digest) << "seed " << seed;
    EXPECT_EQ(lockstep[0].decisions, instances[0].decisions) << "seed " << seed;
    stored += lockstep[0].hit_stored;
    host += lockstep[0].hit_host;
  }
  EXPECT_GT(stored, 0U);
  EXPECT_GT(host, 0U);
}

}  // namespace
}  // namespace kvtwin::test
