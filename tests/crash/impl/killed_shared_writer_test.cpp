// kill -9 of a process that stores pages in a folder which other processes read at the same time: no reader ever gets a
// torn page, and every page that the killed process acknowledged is there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <set>

#include "impl/disk/shared_files.hpp"
#include "tests/folder.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form(4096);  // 64 KiB: a write takes long enough to be interrupted
constexpr std::uint64_t kPages = 40;

// Stores and removes pages until the process is killed. Writes the number of each stored page to the pipe.
[[noreturn]] void store_pages_for_ever(const SharedFilesConfig& config, std::uint64_t seed, int pipe) {
  const auto store = make_shared_files(config, kForm);
  Splitmix rng(mix(seed));
  for (;;) {
    const std::uint64_t page = rng.below(kPages);
    if (set_page(*store, kForm, page) != Cause::none) _exit(1);
    if (write(pipe, &page, sizeof page) != sizeof page) _exit(1);
    // Only pages of the upper half are ever removed.
    if (rng.chance(70)) remove_page(*store, kForm, kPages / 2 + rng.below(kPages / 2));
  }
}

TEST(KilledSharedWriter, LeavesNoTornPage) {
  const Folder folder;
  const SharedFilesConfig config{.folder = folder.path() / "shared",
                                 .capacity = 10 * kPages * shared_file_bytes(kForm)};
  const auto reader = make_shared_files(config, kForm);
  Splitmix rng(1);
  std::set<std::uint64_t> kept;
  std::uint64_t got = 0;
  for (std::uint64_t round = 0; round < 20; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[0]);
      store_pages_for_ever(config, round, ends[1]);
    }
    close(ends[1]);
    const std::uint64_t wanted = 1 + rng.below(100);
    std::uint64_t told = 0;
    for (std::uint64_t page = 0; read(ends[0], &page, sizeof page) == sizeof page;) {
      if (page < kPages / 2) kept.insert(page);
      if (++told == wanted) kill(child, SIGKILL);
      // get_page aborts on a wrong byte.
      const Cause cause = get_page(*reader, kForm, rng.below(kPages));
      ASSERT_TRUE(cause == Cause::none || cause == Cause::missing);
      got += cause == Cause::none;
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "round " << round;
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const Cause cause = get_page(*reader, kForm, page);
      ASSERT_TRUE(cause == Cause::none || (cause == Cause::missing && !kept.contains(page)))
          << "page " << page << ", round " << round;
    }
  }
  EXPECT_GT(got, 0U);
  EXPECT_EQ(counter(*reader, "corrupt_pages"), 0U);
}

}  // namespace
}  // namespace kvtwin::test
