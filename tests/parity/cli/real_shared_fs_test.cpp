// Two real runs at the same time with one storage folder: each finds the pages that the other has stored, every page is
// checked, and the journal of each run replays to the same decisions.
#include <gtest/gtest.h>

#include <string>

#include "tests/fed_run.hpp"

#if KVTWIN_TEST_REAL

namespace kvtwin::test {
namespace {

Settings shared_settings(const Folder& folder, const std::string& place) {
  return fed_settings(folder) +
         Settings{"hardware.name=cpu-host", "tiers.shared_fs.tokens=1000000", "tiers.shared_fs.path=" + place};
}

std::size_t pages_in(const std::string& place) {
  std::size_t pages = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(place, error)) {
    pages += entry.path().extension() == ".page" ? 1U : 0U;
  }
  return pages;
}

TEST(RealSharedFs, TwoRunsAtOnceFindEachOthersPages) {
  const Folder one, two;
  const std::string place = one / "shared";
  FedRun first(one, shared_settings(one, place));
  first.feed_until([&] { return pages_in(place) > 100; });
  // A second run, which has computed nothing yet, serves the same requests.
  FedRun second(two, shared_settings(two, place));
  for (int i = 0; i < 60; ++i) second.feed();
  const Json later = expect_served(two, second.end(), second.fed());
  first.feed_and_see_progress();
  const Json report = expect_served(one, first.end(), first.fed());
  ASSERT_TRUE(later.is_object() && report.is_object());
  const Table requests(text_of(two / "run/requests.csv"));
  EXPECT_GT(requests.integer(requests.row_of("request", 0), "hit_shared_fs"), 0U) << "the other run has stored them";
  EXPECT_GT(later.at("tokens").at("hit_shared_fs"), 0);
  const Json& counters = later.at("real").at("storage").at("shared_fs");
  EXPECT_GT(count_of(counters, "got_pages"), 0U);
  EXPECT_EQ(count_of(counters, "corrupt_pages"), 0U);
  const Json& tokens = later.at("tokens");
  std::uint64_t sum = 0;
  for (const char* part :
       {"hit_device", "hit_host", "hit_disk", "hit_shared_fs", "hit_remote", "recomputed_after_stop", "miss"}) {
    sum += tokens.at(part).get<std::uint64_t>();
  }
  EXPECT_EQ(tokens.at("prompt").get<std::uint64_t>(), sum);
}

TEST(RealSharedFs, AsksWhereItIs) {
  const Folder folder;
  const Settings settings = fed_settings(folder) + Settings{"hardware.name=cpu-host", "tiers.shared_fs.tokens=1000"};
  const Outcome outcome = run(run_arguments(folder, settings));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("tiers.shared_fs.path (default): is empty; a real run"), std::string::npos) << outcome.err;
  fs::create_directory(folder / "other");
  write_text(folder / "other/thesis.txt", "x");
  const Outcome slip = run(run_arguments(folder, settings + Settings{"tiers.shared_fs.path=" + (folder / "other")}));
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_NE(slip.err.find("thesis.txt"), std::string::npos) << slip.err;
}

}  // namespace
}  // namespace kvtwin::test
#endif
