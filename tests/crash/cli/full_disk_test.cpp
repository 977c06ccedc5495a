// A disk that is full before the disk tier is, from the middle of a real run on: pages that find no room are dropped,
// which the report tells, and requests are served. The disk: a limit on what any one file may hold, less than a segment
// of 5 MB and more than the run's own files: the journal of these requests has about 1.5 MB.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "tests/fed_run.hpp"

#if KVTWIN_TEST_REAL
namespace kvtwin::test {
namespace {

TEST(FullDisk, DropsPagesAndServesOn) {
  constexpr rlim_t kMaxFileBytes = 4 << 20;
  const Folder folder;
  const Settings disk{"tiers.disk.tokens=160000", "tiers.disk.path=" + (folder / "disk")};
  // An earlier run has stored the first conversations, with a host large enough that no write is dropped. So the next
  // run's first request, which waits for its prefetch, is read from the disk.
  FedRun earlier(folder, fed_settings(folder) + disk + Settings{"tiers.host.tokens=80000"}, "earlier");
  for (std::uint64_t last_turn = 50; last_turn < 60; ++last_turn) earlier.feed(last_turn);
  const Json stored = expect_served(folder, earlier.end(), 10, "earlier");
  ASSERT_TRUE(stored.is_object());
  ASSERT_EQ(count_of(stored.at("real").at("storage").at("disk"), "pages_written"), 140U);

  FedRun real(folder, fed_settings(folder) + disk, "run");
  // Until the run has a new segment of its full length, beside those of the earlier run.
  const auto segments = [&] {
    return std::count_if(fs::directory_iterator(folder / "disk"), fs::directory_iterator(),
                         [](const fs::directory_entry& file) { return file.file_size() > kMaxFileBytes; });
  };
  const auto segments_before = segments();
  real.feed_until([&] { return segments() > segments_before; });
  const std::uint64_t before = real.fed();
  rlimit unlimited;
  ASSERT_EQ(::prlimit(real.process(), RLIMIT_FSIZE, nullptr, &unlimited), 0);
  const rlimit limit{kMaxFileBytes, unlimited.rlim_max};
  ASSERT_EQ(::prlimit(real.process(), RLIMIT_FSIZE, &limit, nullptr), 0);
  // Each request brings at least two new pages, together more than the existing segments have space for.
  real.feed_until([&] { return real.fed() == before + 600; });
  // At its end, the run zeroes the headers of removed pages in place. A full disk allows that, and this limit does not.
  ASSERT_EQ(::prlimit(real.process(), RLIMIT_FSIZE, &unlimited, nullptr), 0);
  const Json report = expect_served(folder, real.end(), real.fed());
  ASSERT_TRUE(report.is_object());
  const Json& counters = report.at("real").at("storage").at("disk");
  EXPECT_GT(count_of(counters, "full"), 0U) << counters;
  EXPECT_GT(count_of(counters, "pages_written"), 0U) << counters;
  EXPECT_EQ(count_of(counters, "io_errors"), 0U) << counters;
  EXPECT_GT(count_of(counters, "pages_read"), 0U) << counters;
  EXPECT_GT(count_of(report.at("storage").at("fell_short"), "full"), 0U) << report.at("storage");
  const auto tier = std::ranges::find_if(report.at("tiers"), [](const Json& it) { return it.at("name") == "disk"; });
  EXPECT_GT(count_of(tier->at("dropped"), "transfer_failed"), 0U) << *tier;

  // The disk that was full serves its pages. A request alone: under load, others may take the room of its prefetch.
  write_text(folder / "again.jsonl", fed_request(50));
  const Settings again{"workload.trace=" + (folder / "again.jsonl")};
  const Outcome alone = run(run_arguments(folder, fed_settings(folder) + disk + again, "again"));
  EXPECT_GT(expect_served(folder, alone, 1, "again").at("tokens").at("hit_disk"), 0);
}

}  // namespace
}  // namespace kvtwin::test
#endif
