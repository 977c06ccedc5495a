// Several engines, and ranks with a policy instance each, run by the program: what they share, the benefit of routing,
// and one report for all of them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

Settings chat_on(const std::string& route) {
  return {"workload.trace=" + in_source("traces/chat_small.jsonl.zst"),
          "workload.limit=3000",
          "workload.time_scale=0.5",
          "cluster.engines=4",
          "tiers.host.gib=64",
          "cluster.route=" + route};
}

// Each turn of a conversation finds its prefix on the engine that served the previous turn.
TEST(Cluster, PrefixAffinityHitsTheDeviceMoreThanRoundRobin) {
  const Simulated turn = simulate(chat_on("round_robin"));
  const Simulated affine = simulate(chat_on("prefix_affinity"));
  EXPECT_EQ(turn.tokens("prompt"), affine.tokens("prompt")) << "the same requests";
  EXPECT_EQ(affine.requests("completed"), 3000U);
  EXPECT_GT(affine.tokens("hit_device"), turn.tokens("hit_device") * 3 / 2);
  EXPECT_LT(affine.mean_ttft(), turn.mean_ttft());
}

// llm-d's score knows what each engine has cached, on which tier.
TEST(Cluster, ScoreHitsMoreThanRoundRobinAndFasterTiers) {
  const auto hits = [](const Simulated& run) { return run.tokens("hit_device") + run.tokens("hit_host"); };
  const Simulated turn = simulate(chat_on("round_robin"));
  const Simulated score = simulate(chat_on("score"));
  EXPECT_EQ(turn.tokens("prompt"), score.tokens("prompt")) << "the same requests";
  EXPECT_EQ(score.requests("completed"), 3000U);
  EXPECT_GT(hits(score), hits(turn) * 5 / 4);
  EXPECT_GT(score.tokens("hit_device"), turn.tokens("hit_device") * 3 / 2);
  EXPECT_LT(score.mean_ttft(), turn.mean_ttft());
  const Simulated blind = simulate(chat_on("score") + Settings{"cluster.route_prefix_weight=0"});
  EXPECT_LT(hits(blind), hits(score));
}

// One engine fetches from the shared pool what another engine computed and stored there. Without a pool, or with only a
// local disk, it has to compute the pages again.
TEST(Cluster, AnEngineFetchesWhatAnotherHasComputed) {
  const Folder folder;
  TraceText trace(64);
  trace.request(0, 8, ids(1, 32));
  trace.request(30'000, 8, ids(1, 32));
  const Settings base =
      trace.save(folder) + Settings{"cluster.engines=2", "tiers.host.gib=8", "cache.prefetch_policy=wait_complete",
                                    "cache.prefetch_min_tokens=64"};
  for (const std::string world : {"events", kAnyWorld}) {
    EXPECT_EQ(simulate(base, world).tokens("miss"), 2U * 32 * 64);
    EXPECT_EQ(simulate(base + Settings{"tiers.disk.gib=8"}, world).tokens("miss"), 2U * 32 * 64);
    const Simulated pool = simulate(base + Settings{"tiers.remote.gib=8"}, world);
    EXPECT_GE(pool.tokens("hit_remote"), 31U * 64);
    EXPECT_EQ(pool.tokens("hit_device") + pool.tokens("hit_host"), 0U);
    EXPECT_GT(pool.lane_bytes("engine0.remote_write"), 0U);
    EXPECT_EQ(pool.lane_bytes("engine0.remote_read"), 0U);
    EXPECT_GT(pool.lane_bytes("engine1.remote_read"), 0U);
    const Simulated files =
        simulate(base + Settings{"tiers.shared_fs.gib=8", "hardware.set.shared_fs_read_bandwidth=20",
                                 "hardware.set.shared_fs_write_bandwidth=10", "hardware.set.shared_fs_latency=200",
                                 "hardware.set.shared_fs_file=50"},
                 world);
    EXPECT_EQ(files.tokens("hit_shared_fs"), pool.tokens("hit_remote"));
    EXPECT_EQ(files.tokens("hit_remote"), 0U);
    EXPECT_GT(files.lane_bytes("engine1.shared_fs_read"), 0U);
    EXPECT_EQ(files.tier("shared_fs").at("capacity_pages"), pool.tier("remote").at("capacity_pages"));
    // Engine 1 knows the pages that engine 0 has stored. They are there once.
    EXPECT_EQ(pool.tier("remote").at("used_pages_max"), 32);
    EXPECT_EQ(files.tier("shared_fs").at("used_pages_max"), 32);
  }
}

// Two unrelated streams of requests alternate, so that each engine gets exactly one of the streams. Each engine must
// then behave as if it served its stream alone.
TEST(Cluster, OneReportSumsOverEngines) {
  const Folder folder;
  TraceText both(64), first(64), second(64);
  for (std::uint64_t i = 0; i < 60; ++i) {
    TraceText& own = i % 2 == 0 ? first : second;
    for (TraceText* trace : {&both, &own}) trace->request(i * 50, 20, ids(i % 6 * 1000, 10 + i % 7));
  }
  const Settings tiers = {"tiers.device.tokens=4096", "tiers.host.tokens=16384"};
  const Simulated all = simulate(both.save(folder, "both") + tiers + Settings{"cluster.engines=2"});
  const Simulated one = simulate(first.save(folder, "first") + tiers);
  const Simulated two = simulate(second.save(folder, "second") + tiers);
  for (const char* key : {"prompt", "hit_device", "hit_host", "miss", "output"}) {
    EXPECT_EQ(all.tokens(key), one.tokens(key) + two.tokens(key)) << key;
  }
  EXPECT_EQ(all.requests("completed"), 60U);
  EXPECT_EQ(all.lane_bytes("engine0.gpu0.d2h"), one.lane_bytes("gpu0.d2h"));
  EXPECT_EQ(all.lane_bytes("engine1.gpu0.d2h"), two.lane_bytes("gpu0.d2h"));
  const auto count = [](const Simulated& run) { return run.report.at("decisions").at("count").get<std::uint64_t>(); };
  EXPECT_EQ(count(all), count(one) + count(two));
  EXPECT_EQ(all.report.at("engines").size(), 2U);
  EXPECT_EQ(all.tier("device").at("capacity_pages").get<int>(), 2 * one.tier("device").at("capacity_pages").get<int>());
  EXPECT_EQ(all.tier("device").at("used_pages_max").get<int>(),
            one.tier("device").at("used_pages_max").get<int>() + two.tier("device").at("used_pages_max").get<int>());
}

// Ranks of different speed, with all tiers, in both simulated worlds.
TEST(Cluster, RanksThatArePoliciesAllDecideAlikeAndSaySo) {
  const Folder folder;
  const Settings base =
      conversations({.requests = 200, .gap_ms = 60}, 5).save(folder) + Settings{"parallel.tp=4",
                                                                                "parallel.rank_model=instances",
                                                                                "sim.straggler_rank=2",
                                                                                "sim.straggler_factor=7",
                                                                                "tiers.device.tokens=8192",
                                                                                "tiers.host.tokens=16384",
                                                                                "tiers.disk.gib=8",
                                                                                "tiers.remote.gib=8",
                                                                                "cache.prefetch_min_tokens=64"};
  for (const std::string world : {"events", kAnyWorld}) {
    for (const char* policy : {"best_effort", "wait_complete", "timeout"}) {
      const Simulated run = simulate(base + Settings{std::string("cache.prefetch_policy=") + policy}, world);
      const Json& outgrown =
          run.report.at("requests").at("rejected_reasons");  // conversations longer than the device tier
      EXPECT_EQ(run.requests("completed") + outgrown.value("too_long", 0U), 200U);
      const Json& ranks = run.report.at("ranks");
      ASSERT_EQ(ranks.size(), 4U);
      for (const Json& rank : ranks) EXPECT_EQ(rank, ranks[0]);
      EXPECT_EQ(ranks[0].at("digest").get<std::string>(), run.digest());
      EXPECT_GT(run.tokens("hit_disk") + run.tokens("hit_remote"), 0U) << policy;
      EXPECT_EQ(run.lane_bytes("gpu2.d2h"), run.lane_bytes("gpu0.d2h"));
    }
  }
}

// The journal of each rank and of each engine can be replayed. explain shows the decisions of rank 0; without journals,
// it refuses several engines.
TEST(Cluster, ReplayAndExplainServeRanksAndEngines) {
  const Folder folder;
  const std::string experiment = folder / "experiment.toml";
  write_text(experiment, "");
  const Settings base = conversations({.requests = 40}, 5).save(folder);
  const auto simulated = [&](const Settings& settings, const std::string& out, bool journal) {
    std::vector<std::string> arguments = simulate_arguments(experiment, base + settings, out, kAnyWorld);
    if (journal) arguments.emplace_back("--journal");
    return run(arguments);
  };
  const Settings ranks = {"parallel.tp=2", "parallel.rank_model=instances"};
  const std::string of_ranks = folder / "ranks", again = folder / "again", of_engines = folder / "engines";
  ASSERT_EQ(simulated(ranks, of_ranks, true).exit_code, 0);
  EXPECT_EQ(run({"replay", of_ranks}).exit_code, 0);
  EXPECT_EQ(run({"replay", of_ranks + "/journal.1.kvj"}).exit_code, 0);
  ASSERT_EQ(simulated(ranks, again, false).exit_code, 0);
  EXPECT_EQ(run({"explain", again, "--request", "3"}).exit_code, 0);

  const Settings engines = {"cluster.engines=2"};
  ASSERT_EQ(simulated(engines, of_engines, false).exit_code, 0);
  const Outcome untold = run({"explain", of_engines, "--request", "3"});
  EXPECT_EQ(untold.exit_code, 2);
  EXPECT_NE(untold.err.find("2 engines served it"), std::string::npos) << untold.err;
  const std::string with = folder / "journal";
  ASSERT_EQ(simulated(engines, with, true).exit_code, 0);
  const Outcome replayed = run({"replay", with});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  EXPECT_EQ(run({"replay", with + "/journal.1.kvj"}).exit_code, 0);
}

}  // namespace
}  // namespace kvtwin::test
