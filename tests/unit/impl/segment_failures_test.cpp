// Tests failures of the disk tier: all resources are released; a full or failing disk gives a result, not an exception;
// and three threads at the same time.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "impl/disk/segment_store.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/program.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();

SegmentStoreConfig config_in(const Folder& folder, bool threads, Pages capacity = 64) {
  SegmentStoreConfig config;
  config.folder = folder / "tier";
  config.capacity_pages = capacity;
  config.form = kForm;
  config.depth = 4;
  config.force_threads = threads;
  return config;
}

// ---- what is acquired --------------------------------------------------------------------------------

struct Held {
  std::set<std::string> descriptors;  // number and target of each open file descriptor
  std::uint64_t locked_kib = 0, pinned_kib = 0, mappings = 0;
  friend bool operator==(const Held&, const Held&) = default;
};

Held held() {
  Held it;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of the listing itself may be closed
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (!gone && target.string().find("/proc/") == std::string::npos) {
      it.descriptors.insert(entry.path().filename().string() + " " + target.string());
    }
  }
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmLck:") status >> it.locked_kib;
    if (word == "VmPin:") status >> it.pinned_kib;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const bool ours = line.find("io_uring") != std::string::npos || line.find("stack") != std::string::npos;
    it.mappings += ours ? 1 : 0;
  }
  return it;
}

// Waits until the held resources equal `before`. The kernel destroys rings asynchronously.
bool comes_to(const Held& before) {
  for (int i = 0; i < 200'000; ++i) {
    if (held() == before) return true;
    std::this_thread::yield();
  }
  return false;
}

class DiskFailures : public testing::TestWithParam<bool> {
 protected:
  Folder folder_;
};
INSTANTIATE_TEST_SUITE_P(Ways, DiskFailures, testing::Bool(),
                         [](const auto& param) { return std::string(param.param ? "Threads" : "Default"); });

TEST_P(DiskFailures, EachStepGivesBackWhatWasAcquired) {
  std::vector<std::string> steps;
  SegmentStoreConfig config = config_in(folder_, GetParam());
  config.before = [&](const char* step) { steps.emplace_back(step); };
  const Held before = held();
  { SegmentStore store(config); }
  ASSERT_TRUE(comes_to(before));
  ASSERT_GE(steps.size(), 10U);
  for (std::size_t cycle = 0; cycle < 100; ++cycle) {
    const std::size_t failing = cycle % (steps.size() + 1);
    std::size_t at = 0;
    config.before = [&](const char*) {
      if (at++ == failing) throw std::runtime_error("the test's");
    };
    if (failing == steps.size()) {
      SegmentStore store(config);
      EXPECT_EQ(set_page(store, kForm, cycle), Cause::none);
      EXPECT_EQ(get_page(store, kForm, cycle), Cause::none);
      store.finish();
    } else {
      EXPECT_THROW(SegmentStore{config}, std::runtime_error) << steps[failing];
    }
    ASSERT_TRUE(comes_to(before)) << "after failing at " << (failing < steps.size() ? steps[failing] : "nothing");
  }
}

// ---- less than all of io_uring -----------------------------------------------------------------------

// Opens a store in a child process after `restrict` has removed permissions. Returns the description of the store;
// empty if stored pages cannot be read.
template <typename Restrict>
std::string description_under(const SegmentStoreConfig& config, Restrict restrict) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    std::string text;
    if (restrict()) {
      SegmentStore store(config);
      const bool works =
          set_page(store, config.form, 1) == Cause::none && get_page(store, config.form, 1) == Cause::none;
      if (works) text = store.description();
    } else {
      text = "it can't be restricted";
    }
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text(1000, ' ');
  const ssize_t count = read(ends[0], text.data(), text.size());
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text.substr(0, count < 0 ? 0 : static_cast<std::size_t>(count));
}

#if KVTWIN_HAVE_URING
TEST(DiskLadder, PlainBuffersWhereNoMoreMemoryMayBeLocked) {
  const Folder folder;
  SegmentStoreConfig config = config_in(folder, false);
  config.form = small_form(64 << 10);  // 1 MiB
  config.capacity_pages = 4;
  const auto restrict = [&folder] {
    // Memory that other processes of the user have locked counts too. So root switches to a user without processes.
    constexpr uid_t kNobody = 60'177;
    const bool root = geteuid() == 0;
    if (root && (chown(folder.path().c_str(), kNobody, getgid()) != 0 || setresuid(kNobody, kNobody, kNobody) != 0)) {
      return false;
    }
    const rlimit little{512 << 10, 512 << 10};  // enough for rings, but not for a page
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    if (syscall(SYS_capget, &header, data) != 0) return false;
    data[CAP_IPC_LOCK / 32].effective &= ~(1U << (CAP_IPC_LOCK % 32));
    return syscall(SYS_capset, &header, data) == 0 && setrlimit(RLIMIT_MEMLOCK, &little) == 0;
  };
  const std::string text = description_under(config, restrict);
  EXPECT_NE(text.find("io_uring with plain buffers"), std::string::npos) << text;
}
#endif

TEST(DiskLadder, ThreadsWhereThereMayBeNoRing) {
  const Folder folder;
  const auto restrict = [] {
    sock_filter program[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},  // loads the number of the system call
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_setup},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    const sock_fprog filter{4, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
  };
  const std::string text = description_under(config_in(folder, false), restrict);
  EXPECT_NE(text.find("threads"), std::string::npos) << text;
}

// ---- a full and a failing disk -----------------------------------------------------------------------

TEST(DiskErrors, AFullDiskIsFullUntilThereIsRoom) {
  const auto files = std::make_shared<PowerLossFiles>();
  SegmentStoreConfig config;
  config.capacity_pages = 40;
  config.form = kForm;
  config.segment_bytes = 4 * 8192;
  config.files = files;
  SegmentStore store(config);
  files->room = 2 * (4096 + 4 * 8192);
  for (std::uint64_t i = 0; i < 10; ++i) EXPECT_EQ(set_page(store, kForm, i), i < 8 ? Cause::none : Cause::full) << i;
  EXPECT_EQ(counter(store, "full"), 2U);
  EXPECT_EQ(counter(store, "io_errors"), 0U);
  // The tier makes room by removing pages ...
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(remove_page(store, kForm, i), Cause::none);
  EXPECT_EQ(set_page(store, kForm, 8), Cause::none);
  // ... or other files on the disk make room.
  for (std::uint64_t i = 10; i < 13; ++i) EXPECT_EQ(set_page(store, kForm, i), Cause::none);
  EXPECT_EQ(set_page(store, kForm, 13), Cause::full);
  files->room *= 2;
  EXPECT_EQ(set_page(store, kForm, 13), Cause::none);
  for (std::uint64_t i = 4; i < 8; ++i) EXPECT_EQ(get_page(store, kForm, i), Cause::none);
  store.check_invariants();
}

TEST(DiskErrors, WritesThatFindNoRoomAreFullAndOthersAreErrors) {
  const auto files = std::make_shared<PowerLossFiles>();
  SegmentStoreConfig config;
  config.capacity_pages = 40;
  config.form = kForm;
  config.files = files;
  SegmentStore store(config);
  int error = 0;
  files->fault = [&](PowerLossFiles::Step step) { return step == PowerLossFiles::Step::write ? error : 0; };
  error = -ENOSPC;
  EXPECT_EQ(set_page(store, kForm, 1), Cause::full);
  error = -EIO;
  EXPECT_EQ(set_page(store, kForm, 1), Cause::io_error);
  EXPECT_EQ(get_page(store, kForm, 1), Cause::missing);
  error = 0;
  EXPECT_EQ(set_page(store, kForm, 1), Cause::none);
  files->fault = [](PowerLossFiles::Step step) { return step == PowerLossFiles::Step::read ? -EIO : 0; };
  EXPECT_EQ(get_page(store, kForm, 1), Cause::io_error);
  files->fault = [](PowerLossFiles::Step) { return 0; };
  EXPECT_EQ(get_page(store, kForm, 1), Cause::none);
  store.check_invariants();
}

// A limit of open files or of memory is a setting that the user can change. So the store does not open, and no segment
// is lost.
TEST(DiskErrors, ALimitOfOpenFilesOrMemoryDropsNoSegment) {
  for (const int limit : {-EMFILE, -ENFILE, -ENOMEM}) {
    const auto files = std::make_shared<PowerLossFiles>();
    SegmentStoreConfig config;
    config.capacity_pages = 12;
    config.form = kForm;
    config.segment_bytes = 4 * 8192;
    config.files = files;
    {
      SegmentStore store(config);
      for (std::uint64_t i = 0; i < 12; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
      store.finish();
    }
    int opened = 0;
    files->fault = [&](PowerLossFiles::Step step) {
      return step == PowerLossFiles::Step::open && ++opened == 2 ? limit : 0;
    };
    EXPECT_THROW(SegmentStore{config}, std::system_error) << limit;
    files->fault = [](PowerLossFiles::Step) { return 0; };
    SegmentStore store(config);
    for (std::uint64_t i = 0; i < 12; ++i) EXPECT_EQ(get_page(store, kForm, i), Cause::none) << i;
  }
}

// Reclaim writes claimed pages to another segment before it removes their segment. Here, every second time the first of
// these writes fails.
TEST(DiskErrors, APageThatCannotBeMovedStaysWhereItIs) {
  const auto files = std::make_shared<PowerLossFiles>();
  SegmentStoreConfig config;
  config.capacity_pages = 8;
  config.form = kForm;
  config.segment_bytes = 2 * 8192;
  config.files = files;
  SegmentStore store(config);
  bool setting = false, moving = false;
  int moves = 0, failed = 0;
  files->fault = [&](PowerLossFiles::Step step) {
    if (setting && step == PowerLossFiles::Step::read) moving = true;  // a set of a new page reads pages to move them
    if (!moving || step != PowerLossFiles::Step::write) return 0;
    moving = false;
    if (++moves % 2 == 0) return 0;
    ++failed;
    return -EIO;
  };
  Splitmix rng(5);
  std::set<std::uint64_t> there;
  for (std::uint64_t page = 0; page < 200; ++page) {
    if (there.size() == 8) {
      const auto victim = std::next(there.begin(), static_cast<std::ptrdiff_t>(rng.below(8)));
      ASSERT_EQ(remove_page(store, kForm, *victim), Cause::none);
      there.erase(victim);
    }
    setting = true;
    const Cause cause = set_page(store, kForm, page);
    setting = moving = false;
    if (cause == Cause::none) there.insert(page);
    for (const std::uint64_t it : there) ASSERT_EQ(get_page(store, kForm, it), Cause::none) << it << " after " << page;
    store.check_invariants();
  }
  EXPECT_GT(failed, 10);
  EXPECT_GT(counter(store, "pages_moved"), 10U);
}

// Every kind of step fails sometimes. No page is ever wrong, every task ends, and the store recovers.
TEST(DiskErrors, ADiskThatFailsNowAndThenLosesPagesOnly) {
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    const auto files = std::make_shared<PowerLossFiles>(seed);
    Splitmix rng(mix(seed));
    SegmentStoreConfig config;
    config.capacity_pages = 8;
    config.form = kForm;
    config.depth = 3;
    config.segment_bytes = 2 * 8192;
    config.files = files;
    SegmentStore store(config);
    files->fault = [&](PowerLossFiles::Step) { return rng.chance(10) ? (rng.chance(30) ? -ENOSPC : -EIO) : 0; };
    Splitmix choices(seed);
    for (int i = 0; i < 40; ++i) {
      ListedWork work(kForm);
      const StorageVerb verb = choices.chance(30) ? StorageVerb::remove : StorageVerb::set;
      for (int n = 0; n < 4; ++n) work.add(verb, numbered_key(choices.below(14)));
      store.write(work);
      ListedWork gets(kForm);
      for (std::uint64_t n = 0; n < 14; ++n) gets.add(StorageVerb::get, numbered_key(n));
      store.read(gets);
      ASSERT_EQ(gets.wrong_bytes, 0U) << "seed " << seed;
      if (choices.chance(10)) store.sync();
      store.check_invariants();
    }
    files->fault = [](PowerLossFiles::Step) { return 0; };
    for (std::uint64_t n = 0; n < 14; ++n) remove_page(store, kForm, n);
    for (std::uint64_t n = 0; n < 8; ++n) ASSERT_EQ(set_page(store, kForm, n), Cause::none) << "seed " << seed;
    for (std::uint64_t n = 0; n < 8; ++n) ASSERT_EQ(get_page(store, kForm, n), Cause::none) << "seed " << seed;
  }
}

// ---- threads -----------------------------------------------------------------------------------------

TEST_P(DiskFailures, ReadsWritesAndLookUpsGoOnTogether) {
  SegmentStoreConfig config = config_in(folder_, GetParam());
  SegmentStore store(config);
  constexpr std::uint64_t kStaying = 20, kPages = 200;
  for (std::uint64_t i = 0; i < kStaying; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  std::atomic<bool> writing = true;
  std::atomic<std::uint64_t> wrong = 0, absent = 0;
  std::thread reader([&] {
    Splitmix rng(1);
    while (writing) {
      ListedWork gets(kForm);
      std::vector<bool> stays;
      for (int i = 0; i < 20; ++i) {
        const std::uint64_t page = rng.below(kPages);
        gets.add(StorageVerb::get, numbered_key(page));
        stays.push_back(page < kStaying);
      }
      store.read(gets);
      wrong += gets.wrong_bytes;
      for (std::size_t i = 0; i < stays.size(); ++i) {
        const Cause cause = gets.cause(i);
        if (cause != Cause::none && (stays[i] || cause != Cause::missing)) ++absent;
      }
    }
  });
  std::thread looker([&] {
    std::vector<PageKey> keys;
    for (std::uint64_t i = 0; i < kStaying; ++i) keys.push_back(numbered_key(i));
    while (writing) {
      if (store.look_up(some_space(), keys).pages != kStaying) ++absent;
      store.check_invariants();
      std::this_thread::yield();
    }
  });
  Splitmix rng(2);
  std::set<std::uint64_t> there;
  for (int i = 0; i < 60; ++i) {
    ListedWork work(kForm);
    while (there.size() > 30) {
      const auto victim = std::next(there.begin(), static_cast<std::ptrdiff_t>(rng.below(there.size())));
      work.add(StorageVerb::remove, numbered_key(*victim));
      there.erase(victim);
    }
    for (int n = 0; n < 10; ++n) {
      const std::uint64_t page = kStaying + rng.below(kPages - kStaying);
      work.add(StorageVerb::set, numbered_key(page));
      there.insert(page);
    }
    store.write(work);
    if (i % 10 == 0) {
      EXPECT_TRUE(store.sync());
    }
  }
  writing = false;
  reader.join();
  looker.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(absent, 0U);
  EXPECT_GT(counter(store, "pages_moved"), 0U);
  store.finish();
}

}  // namespace
}  // namespace kvtwin::test
