// `mpirun -np N*R kvtwin run` with several engines: one stream of requests, the router of the simulated cluster, one
// report. The decisions are compared with those of the simulated cluster.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/route.hpp"
#include "tests/engines_run.hpp"
#if KVTWIN_HAVE_REDIS
#include "tests/redis_server.hpp"
#endif

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

constexpr const char* kCounts[] = {
    "engine", "prompt_tokens", "output_tokens",         "hit_device",         "hit_host", "hit_remote",
    "miss",   "outcome",       "recomputed_after_stop", "retracted_recompute"};

// The same engine serves each request, with the same hits.
void expect_equal_requests(const Simulated& simulated, const Simulated& real) {
  const Table expected(simulated.requests_csv), got(real.requests_csv);
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t row = 0; row < expected.size(); ++row) {
    const std::uint64_t request = expected.integer(row, "request");
    const std::size_t at = got.row_of("request", request);
    for (const char* count : kCounts) {
      EXPECT_EQ(expected.text(row, count), got.text(at, count)) << count << " of request " << request;
    }
  }
}

void expect_no_wrong_page(const Simulated& real) {
  EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_GT(real.report.at("real").at("verified").at("pages_read").get<std::uint64_t>(), 0U);
}

class Routes : public testing::TestWithParam<std::string_view> {};

TEST_P(Routes, ChooseTheSameEnginesAsInTheSimulation) {
  const Folder folder;
  const Settings settings = model_of_ranks(folder) + one_after_another(folder, 5, 40) + small_engines(2) +
                            Settings{"cluster.route=" + std::string(GetParam()), "cluster.route_min_prefix=0.1"};
  const Simulated expected = simulate(settings);
  const Outcome outcome = run_ranks(folder, settings, 2);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  expect_equal_requests(expected, real);
  for (const char* count : {"prompt", "hit_device", "hit_host", "miss", "output"}) {
    EXPECT_EQ(real.tokens(count), expected.tokens(count)) << count;
  }
  EXPECT_EQ(real.requests("completed"), expected.requests("completed"));
  EXPECT_GT(real.tokens("hit_device"), 0U);
  expect_no_wrong_page(real);
  expect_equal_journals(folder, real.report, 2, 1);
  EXPECT_EQ(real.report.at("gpus"), 2);
  EXPECT_EQ(run({"replay", folder / "run", "--json"}).json().at("verdict"), "equal") << "the folder";
}

INSTANTIATE_TEST_SUITE_P(Each, Routes, testing::ValuesIn(route_names().begin(), route_names().end()),
                         [](const auto& param) { return std::string(param.param); });

// Requests at the times of the trace, several at once on each engine.
TEST(RealEngines, ServeABusyStreamOnTwoRanksEach) {
  const Folder folder;
  const Settings settings =
      busy_ranks(folder, 4, 120) + small_engines(2, 2) + Settings{"cluster.route=score", "workload.time_scale=0.5"};
  const Outcome outcome = run_ranks(folder, settings, 4);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  EXPECT_EQ(real.requests("total"), 120U);
  EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 120U);
  EXPECT_EQ(Table(real.requests_csv).size(), 120U);
  expect_no_wrong_page(real);
  expect_equal_journals(folder, real.report, 2, 2);
  std::uint64_t of_engine[2] = {};
  const Table rows(real.requests_csv);
  for (std::size_t row = 0; row < rows.size(); ++row) ++of_engine[rows.integer(row, "engine")];
  EXPECT_GT(of_engine[0], 10U);
  EXPECT_GT(of_engine[1], 10U);
  EXPECT_EQ(outcome.err, "run folder: " + (folder / "run") + "\n") << "said once";
  for (const char* lane : {"engine0.gpu0.h2d", "engine0.gpu1.h2d", "engine1.gpu0.h2d", "engine1.gpu1.h2d"}) {
    EXPECT_GT(real.lane_bytes(lane), 0U) << lane;
  }
  EXPECT_EQ(real.lane_bytes("engine1.gpu0.d2h"), real.lane_bytes("engine1.gpu1.d2h"));
  const Outcome again = run({"simulate", folder / "run/experiment.resolved.toml", "--world", kAnyWorld, "--json"});
  EXPECT_EQ(again.json().at("requests").at("total"), 120) << "the experiment of a real run can be simulated";
}

TEST(RealEngines, MayBeThreeWithoutAFolder) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 1, 30) + small_engines(3);
  const Outcome outcome = run_ranks(folder, settings, 3, "");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("engines").size(), 3U);
  EXPECT_EQ(outcome.err, "");
}

struct Refusal {
  Settings settings;
  std::size_t processes;
  std::vector<std::string> says;
};

TEST(RealEngines, RefuseOnceWhatTheyCantServe) {
  const Folder folder;
  const Settings good = busy_ranks(folder, 1) + small_engines(2, 2);
  const std::vector<Refusal> refusals{
      {{}, 2, {"cluster.engines", "is 2", "parallel.tp", "2 processes", "mpirun -np 4"}},
      {{"parallel.tp=1"}, 1, {"cluster.engines", "is 2", "one process", "mpirun -np 2"}},
      {{"parallel.tp=1"}, 3, {"cluster.engines", "is 2", "3 processes", "mpirun -np 2"}},
      {{"parallel.tp=1", "report.bounds=true"}, 2, {"report.bounds", "simulate"}},
      {{"parallel.tp=1", "cache.eviction=luck"}, 2, {"luck"}},
      {{"parallel.tp=1", "workload.trace=/nowhere"}, 2, {"/nowhere"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.says.front() + " of " + std::to_string(refusal.processes));
    expect_refused(folder, run_ranks(folder, good + refusal.settings, refusal.processes), refusal.says);
  }
}

// Only process 0 reads the trace while requests are served. Its error ends all engines.
TEST(RealEngines, EndTogetherWhenTheTraceTurnsBad) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 1) + small_engines(2);
  write_text(folder / "trace.jsonl", text_of(folder / "trace.jsonl") + "{\"timestamp\": 99999, \"input_length\": \n");
  const Outcome outcome = run_ranks(folder, settings);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("trace.jsonl"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));
}

TEST(RealEngines, FindAFlippedBit) {
  const Folder folder;
  const Outcome outcome = run_ranks(folder, busy_ranks(folder, 1) + small_engines(2) + Settings{"real.flip=device"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  const Json wrong = Json::parse(text_of(folder / "run/report.json")).at("real").at("verified").at("wrong");
  EXPECT_NE(wrong.dump().find("on engine 0"), std::string::npos) << wrong;
  EXPECT_NE(wrong.dump().find("on engine 1"), std::string::npos) << wrong;
}

#if KVTWIN_HAVE_REDIS
// Engines in turn, so a conversation's pages are on the other engine: they come from the pool.
TEST(RealEngines, ReadFromASharedPoolWhatAnotherEngineWrote) {
  for (const std::size_t ranks : {1U, 2U}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const Folder folder;
    const RedisProcess server;
    Settings settings = model_of_ranks(folder) + one_after_another(folder, 6, 40, 80) + small_engines(2, ranks) +
                        Settings{"cluster.route=round_robin",           "cache.prefetch_min_tokens=4",
                                 "cache.prefetch_policy=wait_complete", "cache.rules.prefetch_host_share=1",
                                 "tiers.remote.tokens=1000000",         "tiers.remote.timeout_s=60"};
    const Simulated expected = simulate(settings);
    settings.push_back("tiers.remote.url=" + server.url());
    const Outcome outcome = run_ranks(folder, settings, 2 * ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder.path() / "run");
    EXPECT_GT(real.tokens("hit_remote"), 0U);
    EXPECT_EQ(real.report.at("real").at("storage").at("remote").at("objects_per_page"), ranks);
    expect_no_wrong_page(real);
    expect_equal_journals(folder, real.report, 2, ranks);
    expect_equal_requests(expected, real);
  }
}
#endif

}  // namespace
}  // namespace kvtwin::test
#endif
