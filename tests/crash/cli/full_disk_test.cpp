// A disk that is full before the disk tier is, from the middle of a real run on: pages that find no room are dropped,
// which the report tells, and requests are served. The disk: a limit on what any one file may hold, less than a segment
// and more than the run's own files.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "tests/fed_run.hpp"

#if KVTWIN_TEST_REAL
namespace kvtwin::test {
namespace {

TEST(FullDisk, DropsPagesAndServesOn) {
  constexpr rlim_t kMaxFileBytes = 2 << 20;
  const Folder folder;
  const Settings disk{"tiers.disk.tokens=160000", "tiers.disk.path=" + (folder / "disk")};
  FedRun real(folder, fed_settings(folder) + disk, "run");
  real.feed_and_see_progress();
  const std::uint64_t before = real.fed();
  const rlimit limit{kMaxFileBytes, kMaxFileBytes};
  ASSERT_EQ(::prlimit(real.process(), RLIMIT_FSIZE, &limit, nullptr), 0);
  // Each request brings at least two new pages, together more than the existing segments have space for.
  real.feed_until([&] { return real.fed() == before + 600; });
  const Json report = expect_served(folder, real.end(), real.fed());
  ASSERT_TRUE(report.is_object());
  const Json& counters = report.at("real").at("storage").at("disk");
  EXPECT_GT(count_of(counters, "full"), 0U) << counters;
  EXPECT_GT(count_of(counters, "pages_written"), 0U) << counters;
  EXPECT_EQ(count_of(counters, "io_errors"), 0U) << counters;
  EXPECT_GT(report.at("tokens").at("hit_disk"), 0);
  EXPECT_GT(count_of(report.at("storage").at("fell_short"), "full"), 0U) << report.at("storage");
  const auto tier = std::ranges::find_if(report.at("tiers"), [](const Json& it) { return it.at("name") == "disk"; });
  EXPECT_GT(count_of(tier->at("dropped"), "transfer_failed"), 0U) << *tier;
}

}  // namespace
}  // namespace kvtwin::test
#endif
