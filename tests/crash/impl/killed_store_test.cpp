// kill -9 of a process that stores pages, at a random moment: every page that it acknowledged must be present and
// correct, and every other page must be absent or correct.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <set>

#include "impl/disk/segment_store.hpp"
#include "tests/program.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form(64);  // 1 KiB
constexpr Pages kCapacity = 150;
constexpr std::uint64_t kPages = 400;
constexpr std::uint64_t kRemoval = std::uint64_t{1} << 63;

SegmentStoreConfig config_in(const Folder& folder, bool threads) {
  SegmentStoreConfig config;
  config.folder = folder / "tier";
  config.capacity_pages = kCapacity;
  config.form = kForm;
  config.depth = 16;
  config.force_threads = threads;
  return config;
}

void tell(int pipe, std::uint64_t what) {
  if (write(pipe, &what, sizeof what) != sizeof what) _exit(1);
}

// Sets and removes pages until the process is killed. Reports each page that it is about to remove and each page that
// has been stored.
[[noreturn]] void store_for_ever(const SegmentStoreConfig& config, std::uint64_t seed, int pipe) {
  SegmentStore store(config);
  Splitmix rng(mix(seed));
  std::set<std::uint64_t> stored;
  for (;;) {
    ListedWork work(kForm);
    while (stored.size() > kCapacity - 40) {
      const auto victim = std::next(stored.begin(), static_cast<std::ptrdiff_t>(rng.below(stored.size())));
      tell(pipe, *victim | kRemoval);
      work.add(StorageVerb::remove, numbered_key(*victim));
      stored.erase(victim);
    }
    for (std::uint64_t i = rng.between(1, 40); i > 0; --i) {
      work.add(StorageVerb::set, numbered_key(rng.below(kPages)));
    }
    work.on_end = [&](const PageTask& task, Cause cause) {
      if (task.verb != StorageVerb::set || cause != Cause::none) return;
      stored.insert(task.key.words[3]);
      tell(pipe, task.key.words[3]);
    };
    store.write(work);
    if (rng.chance(2)) store.sync();
  }
}

class KilledStore : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, KilledStore, testing::Bool(),
                         [](const auto& param) { return std::string(param.param ? "Threads" : "Default"); });

TEST_P(KilledStore, KeepsWhatItAcknowledged) {
  const Folder folder;
  const SegmentStoreConfig config = config_in(folder, GetParam());
  const std::uint64_t rounds = std::getenv("KVTWIN_DEEP") != nullptr ? 200 : 20;
  Splitmix rng(1);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[0]);
      store_for_ever(config, round, ends[1]);
    }
    close(ends[1]);
    std::set<std::uint64_t> acknowledged;
    const std::uint64_t wanted = 1 + rng.below(600);
    std::uint64_t told = 0;
    for (std::uint64_t what = 0; read(ends[0], &what, sizeof what) == sizeof what;) {
      if ((what & kRemoval) != 0) {
        acknowledged.erase(what & ~kRemoval);
      } else {
        acknowledged.insert(what);
      }
      if (++told == wanted) kill(child, SIGKILL);
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "round " << round;
    SegmentStore store(config);
    ListedWork gets(kForm);
    for (std::uint64_t page = 0; page < kPages; ++page) gets.add(StorageVerb::get, numbered_key(page));
    store.read(gets);
    EXPECT_EQ(gets.wrong_bytes, 0U);
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const Cause cause = gets.cause(page);
      ASSERT_TRUE(cause == Cause::none || !acknowledged.contains(page)) << "page " << page << ", round " << round;
      ASSERT_TRUE(cause == Cause::none || cause == Cause::missing || cause == Cause::corrupt);
    }
    store.check_invariants();
  }
}

}  // namespace
}  // namespace kvtwin::test
