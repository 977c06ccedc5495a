// A storage tier in a folder that several runs use at the same time: which pages they see of each other, which pages
// are evicted when it is full, and what a killed writer leaves.
#include "impl/disk/shared_files.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>

#include "impl/disk/hicache_files.hpp"
#include "policy/index/page_key.hpp"
#include "tests/folder.hpp"
#include "tests/stored_pages.hpp"

// ThreadSanitizer has a close() of its own.
#if !defined(__SANITIZE_THREAD__)
namespace {
thread_local int close_error = 0;  // if set, close() closes and reports this error, as a network file system may
}
extern "C" int close(int descriptor) {
  const long result = ::syscall(SYS_close, descriptor);
  if (close_error == 0) return static_cast<int>(result);
  errno = close_error;
  return -1;
}
#endif

namespace kvtwin::test {
namespace {

namespace fs = std::filesystem;

const PageForm kForm = small_form();

class SharedFilesTest : public testing::Test {
 protected:
  std::unique_ptr<StorageBackend> open(Pages capacity = 1000, bool stores = true) const {
    return make_shared_files({.folder = place_, .capacity = capacity * shared_file_bytes(kForm), .stores = stores},
                             kForm);
  }
  fs::path file(std::uint64_t page) const {
    return place_ / shared_file_name(stored_page_key(kForm, some_space(), numbered_key(page)));
  }
  void age(const fs::path& path, int seconds) const {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  std::set<std::string> unfinished() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(place_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".kvtwin-unfinished-")) names.insert(name);
    }
    return names;
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  Folder folder_;
  fs::path place_ = folder_.path() / "shared";
};

// Pages of two forms share the bytes, and the one that was used longest ago goes, whatever its form.
TEST_F(SharedFilesTest, forms_share_the_bytes) {
  PageForm large = kForm;
  large.shape.layers *= 8;
  const Bytes capacity = 4 * shared_file_bytes(large);
  const auto small_pages = make_shared_files({.folder = place_, .capacity = capacity}, kForm);
  const auto large_pages = make_shared_files({.folder = place_, .capacity = capacity}, large);
  for (std::uint64_t page = 1; page <= 10; ++page) {
    EXPECT_EQ(set_page(*small_pages, kForm, page), Cause::none);
    age(file(page), 1000 - static_cast<int>(page));
  }
  for (std::uint64_t page = 1; page <= 4; ++page) EXPECT_EQ(set_page(*large_pages, large, page), Cause::none);
  Bytes bytes = 0;
  for (const auto& entry : fs::directory_iterator(place_)) bytes += entry.file_size();
  EXPECT_LE(bytes, capacity);
  EXPECT_FALSE(looks_up(*small_pages, 1));
  for (std::uint64_t page = 1; page <= 3; ++page) EXPECT_EQ(get_page(*large_pages, large, page), Cause::none) << page;
}

TEST_F(SharedFilesTest, runs_on_one_folder_find_each_others_pages) {
  const auto one = open(), two = open();
  EXPECT_EQ(set_page(*one, kForm, 1), Cause::none);
  EXPECT_EQ(set_page(*two, kForm, 2), Cause::none);
  EXPECT_TRUE(looks_up(*two, 1));
  EXPECT_EQ(get_page(*two, kForm, 1), Cause::none);
  EXPECT_EQ(get_page(*one, kForm, 2), Cause::none);
  EXPECT_EQ(set_page(*two, kForm, 1), Cause::none);
  EXPECT_EQ(counter(*two, "set_pages_there_already"), 1U) << "a page that is there isn't written again";
  EXPECT_EQ(remove_page(*one, kForm, 2), Cause::none);
  EXPECT_FALSE(looks_up(*two, 2));
  EXPECT_EQ(get_page(*two, kForm, 2), Cause::missing);
  EXPECT_EQ(counter(*open(), "found_pages"), 1U);
}

TEST_F(SharedFilesTest, beyond_the_capacity_what_was_used_longest_ago_goes) {
  const auto one = open(32), two = open(32);
  for (std::uint64_t page = 0; page < 32; ++page) {
    EXPECT_EQ(set_page(page % 2 == 0 ? *one : *two, kForm, page), Cause::none);
    age(file(page), 1000 - static_cast<int>(page));
  }
  EXPECT_EQ(get_page(*two, kForm, 0), Cause::none);  // makes it the most recently used page
  const auto three = open(32);
  EXPECT_EQ(set_page(*three, kForm, 100), Cause::none);
  EXPECT_EQ(counter(*three, "evicted_pages"), 2U) << "a sixteenth at once";
  for (const std::uint64_t page : {1U, 2U}) EXPECT_FALSE(looks_up(*one, page)) << page;
  for (const std::uint64_t page : {0U, 3U, 31U, 100U}) EXPECT_TRUE(looks_up(*one, page)) << page;
  EXPECT_EQ(set_page(*three, kForm, 101), Cause::none);
  EXPECT_EQ(counter(*three, "evicted_pages"), 2U) << "there is room again";
  // The first two runs counted 16 pages each when they opened the folder. They count again before they evict a page.
  for (std::uint64_t page = 200; page < 300; ++page) EXPECT_EQ(set_page(*one, kForm, page), Cause::none);
  const auto files =
      std::distance(fs::directory_iterator(place_), fs::directory_iterator()) - 1;  // without the marker file
  EXPECT_LE(files, 32 + 2);
}

TEST_F(SharedFilesTest, the_capacity_is_of_all_runs_together) {
  constexpr Pages kCapacity = 64;
  const std::vector<std::unique_ptr<StorageBackend>> runs = [&] {
    std::vector<std::unique_ptr<StorageBackend>> list;
    for (int i = 0; i < 4; ++i) list.push_back(open(kCapacity));  // the folder is empty when they open it
    return list;
  }();
  for (std::uint64_t page = 0; page < 4 * kCapacity; ++page) {
    EXPECT_EQ(set_page(*runs[page % 4], kForm, page), Cause::none);
  }
  const auto files =
      std::distance(fs::directory_iterator(place_), fs::directory_iterator()) - 1;  // without the marker file
  EXPECT_LE(files, 64 + 4 * 64 / 16);
  EXPECT_GE(files, 64 - 4);
}

TEST_F(SharedFilesTest, what_a_writer_leaves_in_the_middle_is_no_page_and_goes_after_an_hour) {
  {
    const auto one = open();
    EXPECT_EQ(set_page(*one, kForm, 1), Cause::none);
  }
  EXPECT_TRUE(unfinished().empty());
  const fs::path recent = place_ / ".kvtwin-unfinished-0123456789abcdef-1", old = place_ / ".kvtwin-unfinished-0-2";
  for (const fs::path& path : {recent, old}) std::ofstream(path) << "half a page";
  age(old, 4000);
  const auto two = open();
  EXPECT_EQ(unfinished(), (std::set<std::string>{recent.filename().string()})) << "it may be another run's";
  EXPECT_EQ(counter(*two, "found_pages"), 1U);
}

TEST_F(SharedFilesTest, a_page_that_is_none_is_a_miss_and_counted_and_goes) {
  const auto one = open();
  for (std::uint64_t page = 1; page <= 3; ++page) EXPECT_EQ(set_page(*one, kForm, page), Cause::none);
  fs::resize_file(file(1), 40);
  fs::copy_file(file(2), file(3), fs::copy_options::overwrite_existing);  // a complete page with a different key
  EXPECT_FALSE(looks_up(*one, 1)) << "torn";
  EXPECT_EQ(get_page(*one, kForm, 1), Cause::corrupt);
  EXPECT_EQ(get_page(*one, kForm, 3), Cause::corrupt);
  EXPECT_EQ(counter(*one, "corrupt_pages"), 2U);
  for (const std::uint64_t page : {1U, 3U}) {
    EXPECT_EQ(get_page(*one, kForm, page), Cause::missing);
    EXPECT_EQ(set_page(*one, kForm, page), Cause::none);
    EXPECT_EQ(get_page(*one, kForm, page), Cause::none);
  }
}

TEST_F(SharedFilesTest, a_folder_of_other_things_is_refused_and_left_alone) {
  fs::create_directory(place_);
  std::ofstream(place_ / "thesis.txt") << "x";
  EXPECT_NE(refusal([&] { open(); }).find("thesis.txt"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(place_), fs::directory_iterator()), 1);
  fs::remove(place_ / "thesis.txt");
  EXPECT_EQ(refusal([&] { open(); }), "");
  std::ofstream(place_ / "thesis.txt") << "x";
  EXPECT_EQ(refusal([&] { open(); }), "") << "the mark says whose it is";
  EXPECT_TRUE(fs::exists(place_ / "thesis.txt"));
  ASSERT_EQ(::chmod(place_.c_str(), 0777), 0);
  const std::string sentence = refusal([&] { open(); });
  EXPECT_TRUE(sentence.starts_with("The shared file system's folder ")) << sentence;
  EXPECT_NE(sentence.find("chmod go-w"), std::string::npos) << sentence;
}

// A limit of the file's size stands for a full disk that no eviction helps.
TEST_F(SharedFilesTest, a_full_disk_leaves_no_temporary_file) {
  const auto one = open();
  EXPECT_EQ(set_page(*one, kForm, 1), Cause::none);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{100, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_EQ(set_page(*one, kForm, 2), Cause::full);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(unfinished().empty());
  EXPECT_EQ(counter(*one, "full_pages"), 1U);
  EXPECT_EQ(get_page(*one, kForm, 1), Cause::none);
  EXPECT_EQ(get_page(*one, kForm, 2), Cause::missing);
}

#if !defined(__SANITIZE_THREAD__)
// A network file system may report only when the file is closed that the bytes did not reach the disk.
TEST_F(SharedFilesTest, a_page_whose_file_could_not_be_closed_is_not_stored) {
  HiCacheFilesConfig hicache{.folder = folder_.path() / "hicache", .model = "m", .space = some_space(), .capacity = 8};
  const auto one = open(), two = make_hicache_files(hicache, kForm);
  for (StorageBackend* store : {one.get(), two.get()}) {
    close_error = EIO;
    const Cause cause = set_page(*store, kForm, 1);
    close_error = 0;
    EXPECT_EQ(cause, Cause::io_error);
    EXPECT_EQ(get_page(*store, kForm, 1), Cause::missing);
  }
  EXPECT_TRUE(unfinished().empty());
}
#endif

// A link in the folder may lead to a right page of another store, or to any file.
TEST_F(SharedFilesTest, links_are_not_followed) {
  {
    const auto one = open();
    EXPECT_EQ(set_page(*one, kForm, 1), Cause::none);
    fs::rename(file(1), folder_.path() / "elsewhere");
    fs::create_symlink(folder_.path() / "elsewhere", file(1));
    EXPECT_FALSE(looks_up(*one, 1));
    EXPECT_NE(get_page(*one, kForm, 1), Cause::none);
    EXPECT_TRUE(fs::exists(folder_.path() / "elsewhere"));
  }
  fs::remove(place_ / ".kvtwin-shared");
  fs::create_symlink(folder_.path() / "mark", place_ / ".kvtwin-shared");
  EXPECT_NE(refusal([&] { open(); }), "");
  EXPECT_FALSE(fs::exists(folder_.path() / "mark"));
}

TEST_F(SharedFilesTest, without_storing_it_only_reads) {
  const auto one = open();
  EXPECT_EQ(set_page(*one, kForm, 1), Cause::none);
  const auto reader = open(1000, false);
  EXPECT_EQ(get_page(*reader, kForm, 1), Cause::none);
  EXPECT_EQ(remove_page(*reader, kForm, 1), Cause::none);
  EXPECT_TRUE(looks_up(*one, 1));
}

}  // namespace
}  // namespace kvtwin::test
