// Engines on several ranks of the real world, in threads: each rank has its own policy instance and device; some are
// slower, and some have failures. All must decide the same, keep the contract of the seam, and read no wrong byte.
#include <gtest/gtest.h>

#include <array>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "impl/world.hpp"
#include "policy/engine.hpp"
#include "policy/seam/decorators.hpp"
#include "tests/device_under_test.hpp"
#include "tests/engine_traffic.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"
#include "tests/thread_ranks.hpp"

namespace kvtwin::test {
namespace {

struct RankTerms {
  EngineConfig engine;
  HostDeviceConfig device;
  FaultShares faults;
  std::uint64_t seed = 0, requests = 0;
  Pages longest = 0;
};

struct RankResult final : DecisionSink {
  void decided(const Decision& decision) override { ++decisions[static_cast<std::size_t>(decision.kind)]; }
  std::array<std::uint64_t, 64> decisions{};
  std::uint64_t digest = 0, wrong_reads = 0, pages_read = 0, failed_gates = 0, cut_bursts = 0;
  bool idle = false;
  std::string trouble;
};

// Serves all requests on this rank.
void serve(const RankTerms& terms, RankResult& result) {
  const std::unique_ptr<RealWorld> world = make_real_world(make_test_device(terms.device), {}, terms.device.ranks);
  Faulty faulty(world->substrate(), terms.faults, mix(terms.seed + terms.device.ranks->rank()));
  Checking checking(faulty, {.page_tokens = terms.engine.shape.page_tokens, .bursts_end_early = true});
  DecisionLog decisions(&result);
  Engine engine(terms.engine, checking, decisions, nullptr);
  checking.connect(engine);
  faulty.connect(checking);
  EngineTraffic source(terms.seed, terms.engine.shape.page_tokens, terms.longest, terms.requests);
  world->run(source, faulty);
  checking.finish();
  engine.check_invariants();
  result.idle = engine.idle();
  result.digest = decisions.digest();
  result.wrong_reads = world->verification().wrong_reads;
  result.pages_read = world->verification().pages_read;
  result.failed_gates = faulty.counts().failed_gates;
  result.cut_bursts = faulty.counts().cut_bursts;
}

RankTerms random_terms(Splitmix& rng, std::uint64_t seed, std::size_t ranks) {
  RankTerms terms;
  EngineConfig& config = terms.engine;
  config = random_real_engine(rng, ranks);
  terms.device.shape = config.shape;
  terms.device.host_layout = config.host_layout;
  terms.device.device_pages = config.device_pages;
  terms.device.host_pages = config.host_pages;
  terms.seed = seed;
  terms.longest = rng.between(1, config.device_pages);
  terms.requests = rng.between(5, 40);
  return terms;
}

// What happened, summed over all seeds.
struct Happened {
  std::array<std::uint64_t, 64> decisions{};
  std::uint64_t pages_read = 0, failed_gates = 0, cut_bursts = 0;
};

void serve_on_ranks(std::uint64_t seed, bool faults, Happened& happened) {
  Splitmix rng(mix(seed));
  const std::size_t ranks = rng.between(2, 3);
  const RankTerms common = random_terms(rng, seed, ranks);
  ThreadRanks group(ranks);
  std::vector<RankTerms> terms(ranks, common);
  std::vector<RankResult> results(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    terms[rank].device.ranks = &group.of(rank);
    if (rng.chance(40)) terms[rank].device.slow_factor = static_cast<double>(rng.between(2, 40));
    if (faults && rng.chance(70)) {
      terms[rank].faults.failed_transfers = static_cast<std::uint32_t>(rng.below(300));
      terms[rank].faults.cut_bursts = static_cast<std::uint32_t>(rng.below(600));
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        serve(terms[rank], results[rank]);
      } catch (const std::exception& error) {
        results[rank].trouble = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const RankResult& result = results[rank];
    EXPECT_EQ(result.trouble, "");
    EXPECT_TRUE(result.idle);
    EXPECT_EQ(result.digest, results[0].digest);
    EXPECT_EQ(result.wrong_reads, 0U);
    happened.pages_read += result.pages_read;
    happened.failed_gates += result.failed_gates;
    happened.cut_bursts += result.cut_bursts;
  }
  for (std::size_t i = 0; i < happened.decisions.size(); ++i) happened.decisions[i] += results[0].decisions[i];
}

Happened serve_all(bool faults) {
  const ThrowingChecks checks;
  Happened happened;
  for (std::uint64_t seed = 1; seed <= seeds_for(80, 20) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    serve_on_ranks(seed, faults, happened);
  }
  if (!shows_all()) return happened;
  for (const DecisionKind kind :
       {DecisionKind::admit, DecisionKind::prefill, DecisionKind::load_back, DecisionKind::backup,
        DecisionKind::evict_device, DecisionKind::evict_host, DecisionKind::retract, DecisionKind::finish}) {
    EXPECT_GT(happened.decisions[static_cast<std::size_t>(kind)], 0U) << name_of(kind) << " never happened";
  }
  EXPECT_GT(happened.pages_read, 0U);
  return happened;
}

TEST(RealRanks, DecideAlikeThoughSomeAreSlower) { serve_all(false); }

TEST(RealRanks, DecideAlikeThoughTransfersFailAndBurstsAreCutOnSome) {
  const Happened happened = serve_all(true);
  if (!shows_all()) return;
  EXPECT_GT(happened.failed_gates, 0U);
  EXPECT_GT(happened.cut_bursts, 0U);
}

}  // namespace
}  // namespace kvtwin::test
