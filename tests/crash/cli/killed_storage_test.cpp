// kill -9 in the middle of a real run with four tiers. The next run uses the pages in the folder and on the server:
// each page, window and state is correct or absent.
#include <gtest/gtest.h>

#include <string>

#include "tests/fed_run.hpp"
#include "tests/hybrid_run.hpp"

#if KVTWIN_TEST_REAL && KVTWIN_HAVE_REDIS
#include "tests/redis_server.hpp"

namespace kvtwin::test {
namespace {

struct Stored {
  const char* name;
  const char* format = "segments";
  const HybridKind* hybrid = nullptr;  // null: a model with full attention
};

class KilledStorage : public testing::TestWithParam<Stored> {};

TEST_P(KilledStorage, IsServedInTheNextLife) {
  const Folder folder;
  const RedisProcess server;
  Settings settings =
      fed_settings(folder) + Settings{"tiers.disk.tokens=200000", "tiers.disk.path=" + (folder / "disk"),
                                      std::string("tiers.disk.format=") + GetParam().format,
                                      "tiers.remote.tokens=1000000", "tiers.remote.url=" + server.url()};
  if (GetParam().hybrid != nullptr) settings = settings + settings_of(*GetParam().hybrid, folder);
  FedRun first(folder, settings);
  first.feed_until([&] { return server.keys() > 200; });
  first.feed_and_see_progress();
  EXPECT_EQ(first.kill().signal, SIGKILL);
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));

  write_text(folder / "again.jsonl", first.text());
  const Settings again = settings + Settings{"workload.trace=" + (folder / "again.jsonl")};
  EXPECT_EQ(run(run_arguments(folder, again)).exit_code, 2) << "a run isn't replaced by accident";
  const Outcome outcome = run(run_arguments(folder, again, "run", {"--force"}));
  const Json report = expect_served(folder, outcome, first.fed());
  ASSERT_TRUE(report.is_object());
  // This run has not computed the prompt of the first request before, so its hits come from the killed run. The prompt
  // is too short for a state on the way.
  if (GetParam().hybrid != &kHybridKinds[1]) {
    const Table requests(text_of(folder / "run/requests.csv"));
    EXPECT_GT(requests.integer(requests.row_of("request", 0), "hit_disk"), 0U);
  }
  EXPECT_GT(report.at("tokens").at("hit_disk"), 0);
  EXPECT_GT(count_of(report.at("real").at("storage").at("remote"), "set_pages_there_already"), 0U);
}

INSTANTIATE_TEST_SUITE_P(Formats, KilledStorage,
                         testing::Values(Stored{.name = "segments"},
                                         Stored{.name = "hicache_files", .format = "hicache_files"},
                                         Stored{.name = "windows", .hybrid = &kHybridKinds[0]},
                                         Stored{.name = "states", .hybrid = &kHybridKinds[1]}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvtwin::test
#endif
