// The journal of a real run is replayed without a world: the decisions must be the same, whatever the settings.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/real_run.hpp"

#if KVTWIN_TEST_REAL
namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 24;

std::string key(const std::string& name, std::uint64_t value) { return name + "=" + std::to_string(value); }

// Returns settings with tiers of about one long prompt or more. The most important settings take all of their values
// over the seeds; the others are random.
Settings draw(std::uint64_t seed, const Folder& folder) {
  Splitmix random(seed);
  static constexpr const char* kLayouts[] = {"layer_first", "page_first", "page_first_direct", "page_head"};
  static constexpr std::uint64_t kPages[] = {1, 16, 64};
  static constexpr const char* kIo[] = {"kernel", "direct", "auto"};
  const std::uint64_t page = kPages[seed % 3];
  Conversations c;
  c.requests = random.between(40, 90);
  c.block_tokens = 16;
  c.first_blocks = random.between(3, 10);
  c.growth_blocks = random.between(1, 3);
  c.live = random.between(3, 12);
  c.output = seed % 4 == 1 ? 100 : random.between(4, 60);  // requests with long outputs are retracted
  c.gap_ms = random.below(4);
  const std::uint64_t longest = (8 + 2 * c.first_blocks + 6 * c.growth_blocks) * c.block_tokens + 2 * c.output;
  Settings settings = small_model(folder) + conversations(c, seed).save(folder) +
                      Settings{key("cache.page_tokens", page),
                               std::string("cache.layout=") + kLayouts[seed / 3 % 4],
                               std::string("cache.io=") + kIo[random.below(3)],
                               std::string("cache.evict_unit=") + (random.chance(40) ? "node" : "page"),
                               std::string("cache.eviction=") + (random.chance(25) ? "fifo" : "lru"),
                               key("cache.write_threshold", random.between(1, 2)),
                               std::string("cache.output=") + (random.chance(80) ? "true" : "false"),
                               key("cache.load_back_min_tokens", random.below(20)),
                               std::string("scheduler.order=") + (seed % 2 == 0 ? "fcfs" : "longest_prefix"),
                               std::string("scheduler.style=") + (seed % 3 == 2 ? "vllm" : "sglang"),
                               std::string("scheduler.mixed_chunks=") + (seed % 3 == 1 ? "true" : "false"),
                               key("scheduler.chunk_tokens", random.between(16, 200)),
                               key("scheduler.max_running", seed % 4 == 1 ? 16 : random.between(1, 16)),
                               key("scheduler.burst_steps", random.between(1, 32)),
                               key("tiers.device.tokens", std::max(page, random.between(longest / 2, 2 * longest))),
                               "workload.time_scale=0.1"};
  if (random.chance(30)) settings.push_back(key("scheduler.max_waiting", random.between(1, 8)));
  if (random.chance(90)) settings.push_back(key("tiers.host.tokens", std::max(page, random.between(64, 6 * longest))));
  return settings;
}

TEST(RealReplay, DecidesWhatTheRunDecided) {
  std::map<std::string, std::uint64_t> happened;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Folder folder;
    const Simulated real = run_for_real(folder, draw(seed, folder));
    EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
    const Outcome outcome = run({"replay", folder / "run", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    const Json again = outcome.json();
    EXPECT_EQ(again.at("verdict"), "equal");
    EXPECT_EQ(again.at("decisions"), real.report.at("decisions"));
    EXPECT_EQ(again.at("inputs"), real.report.at("real").at("inputs"));

    happened["evicted from the device"] += real.tier("device").at("evicted_pages").get<std::uint64_t>();
    happened["evicted from the host"] += real.tier("host").at("evicted_pages").get<std::uint64_t>();
    happened["hit on the host"] += real.tokens("hit_host");
    happened["retracted"] += real.requests("retractions");
    if (seed % 3 == 2) {
      happened["preempted by vllm"] += real.requests("retractions");
      happened["loaded before admission"] += real.report.at("loads").at("pages").get<std::uint64_t>();
    }
    happened["rejected"] += real.requests("rejected");
    for (const auto& [reason, count] : real.report.at("requests").at("rejected_reasons").items()) {
      happened["rejected: " + reason] += count.get<std::uint64_t>();
    }
  }
  for (const char* what :
       {"evicted from the device", "evicted from the host", "hit on the host", "retracted", "preempted by vllm",
        "loaded before admission", "rejected: too_long", "rejected: queue_full"}) {
    EXPECT_GT(happened[what], 0U) << what;
  }
}

// The purpose of a journal: replay it with another policy and find the first decision that is different.
TEST(RealReplay, NamesTheFirstDecisionThatAnotherPolicyTakes) {
  const Folder folder;
  run_for_real(folder, draw(3, folder) + Settings{"cache.eviction=lru", "tiers.device.tokens=600"});
  const Outcome outcome = run({"replay", folder / "run", "--set", "cache.eviction=mru", "--json"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_NE(Json::parse(outcome.out).at("verdict"), "equal");
}

// In a closed loop, arrivals depend on the time of earlier answers. The journal has the actual arrivals.
TEST(RealReplay, ClosedLoopsAreDecidedAgain) {
  const Folder folder;
  constexpr std::uint64_t kSessions = 5, kTurns = 6;
  std::string trace;
  std::uint64_t ms = 0;
  for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
    for (std::uint64_t session = 0; session < kSessions; ++session) {
      // Each request has a different length, which identifies it.
      const Json line{{"timestamp", ms},     {"input_length", 16 + turn * kSessions + session},
                      {"output_length", 20}, {"hash_ids", {session, 100 + turn * kSessions + session, 7, 8}},
                      {"session", session},  {"think_time", 1}};
      Json fits = line;
      fits["hash_ids"].resize((16 + turn * kSessions + session + 15) / 16);
      trace += fits.dump() + "\n";
      ms += turn % 2;
    }
  }
  write_text(folder / "trace.jsonl", trace);
  const Settings settings =
      small_model(folder) + Settings{"workload.trace=" + (folder / "trace.jsonl"), "workload.block_tokens=16",
                                     "workload.loop=closed", "cache.page_tokens=16", "tiers.device.tokens=400"};
  const Simulated real = run_for_real(folder, settings);
  EXPECT_EQ(real.requests("completed"), kSessions * kTurns);
  const Table rows(real.requests_csv);
  std::map<std::uint64_t, std::pair<double, double>> served;  // length to arrival and answer time
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const double arrival = rows.number(row, "arrival_s");
    served[rows.integer(row, "prompt_tokens")] = {arrival, arrival + rows.number(row, "e2e_s")};
  }
  ASSERT_EQ(served.size(), kSessions * kTurns);
  for (std::uint64_t length = 16 + kSessions; length < 16 + kSessions * kTurns; ++length) {
    EXPECT_GE(served[length].first, served[length - kSessions].second + 0.001 - 1e-8) << length;
  }
  const Outcome again = run({"replay", folder / "run"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

}  // namespace
}  // namespace kvtwin::test
#endif
