// The disk tier in a real folder: each I/O mode, opening the same folder again, locks and permissions.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "impl/disk/segment_store.hpp"
#include "tests/program.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();

class DiskFolder : public testing::TestWithParam<bool> {
 protected:
  SegmentStoreConfig config(Pages capacity = 64) const {
    SegmentStoreConfig config;
    config.folder = folder_ / "tier";
    config.capacity_pages = capacity;
    config.form = kForm;
    config.depth = 8;
    config.force_threads = GetParam();
    return config;
  }
  std::vector<fs::path> segments() const {
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_ / "tier")) {
      if (entry.path().filename() != "0000000000000000") files.insert(entry.path());
    }
    return {files.begin(), files.end()};
  }
  Folder folder_;
};

INSTANTIATE_TEST_SUITE_P(Ways, DiskFolder, testing::Bool(),
                         [](const auto& param) { return std::string(param.param ? "Threads" : "Default"); });

TEST_P(DiskFolder, SaysHowItReadsAndWrites) {
  const SegmentStore store(config());
  const bool threads = store.description().find("threads") != std::string::npos;
  EXPECT_EQ(threads, GetParam() || !KVTWIN_HAVE_URING) << store.description();
  RecordProperty("description", store.description());
}

TEST_P(DiskFolder, GivesBackWhatWasSetNowAndInTheNextLife) {
  for (int life = 0; life < 2; ++life) {
    SegmentStore store(config());
    if (life == 0) {
      ListedWork sets(kForm);
      for (std::uint64_t i = 0; i < 64; ++i) sets.add(StorageVerb::set, numbered_key(i));
      store.write(sets);
      EXPECT_EQ(sets.ended(), 64U);
      EXPECT_GE(sets.max_under_way, 8U);
      EXPECT_EQ(set_page(store, kForm, 64), Cause::full);
      EXPECT_EQ(set_page(store, kForm, 3), Cause::none);
      EXPECT_EQ(counter(store, "pages_already_there"), 1U);
    }
    ListedWork gets(kForm);
    for (std::uint64_t i = 0; i < 65; ++i) gets.add(StorageVerb::get, numbered_key(i));
    store.read(gets);
    for (std::uint64_t i = 0; i < 65; ++i) EXPECT_EQ(gets.cause(i), i < 64 ? Cause::none : Cause::missing) << i;
    EXPECT_EQ(gets.wrong_bytes, 0U);
    EXPECT_FALSE(store.look_up(some_space(7), std::vector{numbered_key(3)}).pages);
    store.check_invariants();
    store.finish();
  }
}

// A thread gets the id of an ended one, but not its ring.
TEST_P(DiskFolder, ThreadsUseItOneAfterAnother) {
  constexpr std::uint64_t kThreads = 20;
  SegmentStore store(config());
  std::set<std::thread::id> ids;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    std::thread([&] {
      ids.insert(std::this_thread::get_id());
      EXPECT_EQ(set_page(store, kForm, i), Cause::none);
    }).join();
  }
  EXPECT_LT(ids.size(), kThreads) << "no thread got the id of an ended one: nothing was tested";
  store.finish();
}

TEST_P(DiskFolder, FoundPagesAreClaimedBySetsAndGoOldestFirst) {
  {
    SegmentStore store(config());
    for (std::uint64_t i = 0; i < 64; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  SegmentStore store(config());
  EXPECT_EQ(counter(store, "pages_found"), 64U);
  EXPECT_EQ(set_page(store, kForm, 1), Cause::none);
  EXPECT_EQ(counter(store, "pages_written"), 0U);
  EXPECT_EQ(counter(store, "pages_already_there"), 1U);
  for (std::uint64_t i = 100; i < 110; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  EXPECT_FALSE(looks_up(store, 0));
  EXPECT_TRUE(looks_up(store, 1));
  EXPECT_FALSE(looks_up(store, 2));
  EXPECT_TRUE(looks_up(store, 63));
  for (std::uint64_t i = 0; i < 64; ++i) {
    const Cause cause = get_page(store, kForm, i);
    EXPECT_TRUE(cause == Cause::none || cause == Cause::missing);
  }
  store.check_invariants();
}

// The folder is opened with a smaller capacity than before: a page that was found counts against the capacity when it
// is set again.
TEST_P(DiskFolder, FoundPagesAreClaimedAsFarAsThereIsRoom) {
  {
    SegmentStore store(config());
    for (std::uint64_t i = 0; i < 32; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  SegmentStore store(config(8));
  for (std::uint64_t i = 0; i < 32; ++i) EXPECT_EQ(set_page(store, kForm, i), i < 8 ? Cause::none : Cause::full) << i;
  EXPECT_EQ(counter(store, "pages_claimed"), 8U);
  EXPECT_EQ(set_page(store, kForm, 100), Cause::full);
  EXPECT_EQ(get_page(store, kForm, 31), Cause::none);
  store.check_invariants();
  EXPECT_EQ(remove_page(store, kForm, 0), Cause::none);
  EXPECT_EQ(set_page(store, kForm, 31), Cause::none);
  store.check_invariants();
}

TEST_P(DiskFolder, RewritesAndUnlinksSegmentsUnderLoad) {
  SegmentStore store(config());
  Splitmix rng(7);
  std::set<std::uint64_t> there;
  for (std::uint64_t i = 0; i < 400; ++i) {
    if (there.size() == 64) {
      const auto victim = std::next(there.begin(), static_cast<std::ptrdiff_t>(rng.below(64)));
      ASSERT_EQ(remove_page(store, kForm, *victim), Cause::none);
      there.erase(victim);
    }
    ASSERT_EQ(set_page(store, kForm, i), Cause::none) << i;
    there.insert(i);
  }
  for (const std::uint64_t page : there) EXPECT_EQ(get_page(store, kForm, page), Cause::none) << page;
  EXPECT_GT(counter(store, "pages_moved"), 30U);
  EXPECT_EQ(counter(store, "io_errors") + counter(store, "corrupt_pages") + counter(store, "full"), 0U);
  // 64 pages in segments of 8 pages, plus two segments.
  EXPECT_LE(segments().size(), 10U);
  store.check_invariants();
}

// Two stores share the room, and only the one with pages has segments: removed pages give theirs back, also where some
// pages of a segment stay. A store without `shares_room` keeps its segments.
TEST_P(DiskFolder, RemovedPagesGiveTheRoomBackThatIsShared) {
  for (const bool shares : {false, true}) {
    SCOPED_TRACE(shares);
    SegmentStoreConfig shared = config();
    shared.folder = folder_ / "tier";
    shared.shares_room = shares;
    {
      SegmentStore store(shared);
      for (std::uint64_t page = 0; page < 64; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
      EXPECT_EQ(segments().size(), 8U);
      for (std::uint64_t page = 0; page < 64; ++page) {
        if (page % 8 == 0) continue;
        EXPECT_EQ(remove_page(store, kForm, page), Cause::none);
      }
      // Eight pages stay: a segment of 8 and the two that a reclaim needs.
      if (shares) {
        EXPECT_LE(segments().size(), 3U);
      } else {
        EXPECT_EQ(segments().size(), 8U);
      }
      for (std::uint64_t page = 0; page < 64; page += 8) EXPECT_EQ(get_page(store, kForm, page), Cause::none);
      for (std::uint64_t page = 100; page < 156; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none) << page;
      for (std::uint64_t page = 100; page < 156; ++page) EXPECT_EQ(get_page(store, kForm, page), Cause::none) << page;
      EXPECT_EQ(counter(store, "io_errors") + counter(store, "full"), 0U);
      store.check_invariants();
      store.finish();
    }
    fs::remove_all(folder_ / "tier");
  }
}

TEST_P(DiskFolder, IsOneLifesAtATime) {
  const SegmentStore first(config());
  try {
    const SegmentStore second(config());
    ADD_FAILURE() << "opened twice";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string(error.what()), "The disk tier's folder " + (folder_ / "tier") + " is in use by another run.");
  }
}

TEST_P(DiskFolder, IsReadByNobodyElse) {
  const mode_t before = umask(0);
  {
    SegmentStore store(config());
    set_page(store, kForm, 1);
  }
  umask(before);
  EXPECT_EQ(fs::status(folder_ / "tier").permissions(), fs::perms::owner_all);
  ASSERT_EQ(segments().size(), 1U);
  for (const auto& entry : fs::directory_iterator(folder_ / "tier")) {
    EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write) << entry.path();
    EXPECT_EQ(entry.path().filename().string().size(), 16U);
  }
  fs::permissions(folder_ / "tier", fs::perms::group_write, fs::perm_options::add);
  EXPECT_THROW(SegmentStore{config()}, std::runtime_error);
}

TEST_P(DiskFolder, FollowsNoLinkAndLeavesOtherFilesAlone) {
  {
    SegmentStore store(config());
    set_page(store, kForm, 1);
  }
  write_text(folder_ / "outside", "not ours");
  fs::create_symlink(folder_ / "outside", fs::path(folder_ / "tier") / "00000000000000ff");
  write_text(folder_ / "tier/README", "hello");
  {
    SegmentStore store(config());
    EXPECT_EQ(get_page(store, kForm, 1), Cause::none);
    for (std::uint64_t i = 0; i < 300; ++i) {
      set_page(store, kForm, 1000 + i);
      remove_page(store, kForm, 1000 + i);
    }
  }
  EXPECT_EQ(text_of(folder_ / "outside"), "not ours");
  EXPECT_EQ(text_of(folder_ / "tier/README"), "hello");
}

TEST_P(DiskFolder, AnotherFormsSegmentsGoWhenRoomIsWanted) {
  {
    SegmentStore store(config());
    for (std::uint64_t i = 0; i < 64; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  SegmentStoreConfig other = config();
  other.form = small_form(8);
  {
    SegmentStore store(other);
    EXPECT_EQ(counter(store, "foreign_segments"), 8U);
    EXPECT_EQ(counter(store, "pages_found"), 0U);
    EXPECT_EQ(get_page(store, other.form, 1), Cause::missing);
    for (std::uint64_t i = 0; i < 64; ++i) ASSERT_EQ(set_page(store, other.form, i), Cause::none);
    for (std::uint64_t i = 0; i < 64; ++i) ASSERT_EQ(get_page(store, other.form, i), Cause::none);
    EXPECT_GT(counter(store, "foreign_reclaimed"), 4U);
    store.check_invariants();
  }
  EXPECT_LE(segments().size(), 10U);
}

TEST_P(DiskFolder, ASmallerLifeMakesDoWithLess) {
  {
    SegmentStore store(config(500));
    for (std::uint64_t i = 0; i < 500; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  {
    SegmentStore store(config(16));
    EXPECT_EQ(get_page(store, kForm, 499), Cause::none);
    // The claimed pages are spread over the large segments, so that these must be rewritten.
    for (std::uint64_t i = 0; i < 16; ++i) ASSERT_EQ(set_page(store, kForm, 31 * i + 3), Cause::none);
    EXPECT_EQ(set_page(store, kForm, 1000), Cause::full);
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(remove_page(store, kForm, 31 * i + 3), Cause::none);
    for (std::uint64_t i = 0; i < 300; ++i) {
      ASSERT_EQ(set_page(store, kForm, 1000 + i), Cause::none) << i;
      ASSERT_EQ(remove_page(store, kForm, 1000 + i), Cause::none);
    }
    for (std::uint64_t i = 8; i < 16; ++i) EXPECT_EQ(get_page(store, kForm, 31 * i + 3), Cause::none) << i;
    store.check_invariants();
  }
  EXPECT_LE(segments().size(), 5U);
}

TEST_P(DiskFolder, DamagedSegmentsAreRemoved) {
  {
    SegmentStore store(config());
    for (std::uint64_t i = 0; i < 24; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  const std::vector<fs::path> files = segments();
  ASSERT_EQ(files.size(), 3U);
  {
    std::fstream file(files[1], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('x');
  }
  fs::resize_file(files[2], 4096 + 3 * 8192 + 100);
  SegmentStore store(config());
  EXPECT_FALSE(fs::exists(files[1]));
  EXPECT_EQ(counter(store, "damaged_segments"), 1U);
  for (std::uint64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(get_page(store, kForm, i), i < 8 || (i >= 16 && i < 19) ? Cause::none : Cause::missing) << i;
  }
}

TEST_P(DiskFolder, AFileCutOffWhileInUseIsAnError) {
  SegmentStore store(config());
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  fs::resize_file(segments().at(0), 4096 + 8192 + 4096);
  EXPECT_EQ(get_page(store, kForm, 0), Cause::none);
  EXPECT_EQ(get_page(store, kForm, 1), Cause::io_error);
  EXPECT_EQ(get_page(store, kForm, 1), Cause::missing);
}

// The buffer still holds the end of the page from the read before.
TEST_P(DiskFolder, AShortReadIsNoPage) {
  SegmentStore store(config());
  ASSERT_EQ(set_page(store, kForm, 0), Cause::none);
  EXPECT_EQ(get_page(store, kForm, 0), Cause::none);
  fs::resize_file(segments().at(0), 4096 + 4096);
  EXPECT_EQ(get_page(store, kForm, 0), Cause::io_error);
  EXPECT_EQ(get_page(store, kForm, 0), Cause::missing);
}

TEST_P(DiskFolder, WorksWhereThereIsNoDirectIo) {
  // Direct I/O is refused, as on file systems without it.
  const auto open = [&] {
    SegmentStoreConfig it = config();
    FolderOptions options;
    options.force_threads = it.force_threads;
    options.force_buffered = true;
    it.files = make_folder_files(it.folder, options);
    return it;
  };
  {
    SegmentStore store(open());
    EXPECT_NE(store.description().find("buffered"), std::string::npos) << store.description();
    EXPECT_EQ(set_page(store, kForm, 1), Cause::none);
    EXPECT_EQ(get_page(store, kForm, 1), Cause::none);
    store.finish();
  }
  SegmentStore store(open());
  EXPECT_EQ(get_page(store, kForm, 1), Cause::none);
}

}  // namespace
}  // namespace kvtwin::test
