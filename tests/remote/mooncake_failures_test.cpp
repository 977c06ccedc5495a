// Mooncake Stores that are full, restart, die, or stand still, and real runs on them. The tests wait for the state of
// the store, never for a fixed time.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "tests/fed_run.hpp"
#include "tests/folder.hpp"
#include "tests/remote/mooncake_servers.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

constexpr TimeNs kMs = 1'000'000;
const PageForm kLargeForm{{4, 2, 4, 128, 16}, Layout::page_first};  // 64 KiB

// A configuration whose clock of back-offs passes each time that it is asked for.
MooncakeConfig impatient(const MooncakeMaster& master, TimeNs timeout) {
  MooncakeConfig config = master.config();
  config.timeout = timeout;
  config.now = [time = std::make_shared<std::atomic<TimeNs>>(0), step = config.back_off.longest] {
    return *time += step;
  };
  return config;
}

void until_done(const std::function<Completion()>& call, Pages pages) {
  while (call().pages != pages) continue;
}

TEST(MooncakeFailures, WithoutRoomPagesAreRefusedOrForgotten) {
  MooncakeMaster master;
  MooncakeNode node(master, 16);
  StoreRig rig(make_mooncake_backend(master.config(), kLargeForm), {.form = kLargeForm});
  bool was_full = false;
  for (std::uint64_t document = 0; document < 100; ++document) {
    const Completion stored = rig.set(keys_of(8, document));
    EXPECT_TRUE(stored.status == Status::done || stored.cause == Cause::full) << name_of(stored.cause);
    was_full = was_full || stored.cause == Cause::full;
  }
  EXPECT_TRUE(was_full);
  Pages there = 0;
  for (std::uint64_t document = 0; document < 100; ++document) {
    const Completion got = rig.get(keys_of(8, document));
    EXPECT_TRUE(got.status == Status::done || got.cause == Cause::missing) << name_of(got.cause);
    there += got.pages;
  }
  EXPECT_GT(there, 0u);
  EXPECT_LT(there, 800u);
}

// A node with a drive behind its memory. While everything in memory still has to be written there, pages are refused;
// what was stored stays, and is read from the drive.
TEST(MooncakeFailures, ADriveKeepsWhatTheMemoryEvicts) {
  const Folder drives;
  MooncakeMaster master({"-enable_offload=true", "-offload_on_evict=true", "-default_kv_lease_ttl=100"});
  MooncakeNode node(master, 16, drives.path().string());
  StoreRig rig(make_mooncake_backend(impatient(master, 60 * kNsPerSecond), kLargeForm), {.form = kLargeForm});
  Pages refused = 0;
  for (std::uint64_t document = 0; document < 100; ++document) {  // three times the memory
    const std::vector<PageKey> keys = keys_of(8, document);
    for (Completion stored = rig.set(keys); stored.pages != 8; stored = rig.set(keys)) {
      ASSERT_EQ(stored.cause, Cause::full);
      refused += 8 - stored.pages;
    }
  }
  EXPECT_GT(refused, 0u);
  for (std::uint64_t document = 0; document < 100; ++document) {
    // A read that takes longer than its lease, on a busy machine, is a miss, and the pages stay on the drive.
    Pages read = 0;
    for (int tries = 0; tries < 20 && read != 8; ++tries) read = rig.get(keys_of(8, document)).pages;
    EXPECT_EQ(read, 8u) << document;
  }
  EXPECT_FALSE(std::filesystem::is_empty(drives.path()));
}

TEST(MooncakeFailures, AMasterThatRestartsHasForgottenThePages) {
  MooncakeMaster master;
  MooncakeNode node(master, 64);
  StoreRig rig(make_mooncake_backend(impatient(master, 60 * kNsPerSecond), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  EXPECT_EQ(rig.set(keys).status, Status::done);
  master.restart();
  while (rig.get(keys).cause != Cause::missing) continue;
  until_done([&] { return rig.set(keys); }, 5);  // when the node has announced its memory to the new master
  EXPECT_EQ(rig.get(keys).status, Status::done);
}

TEST(MooncakeFailures, PagesOfADeadNodeAreGone) {
  MooncakeMaster master;
  MooncakeNode node(master, 64);
  StoreRig rig(make_mooncake_backend(impatient(master, 60 * kNsPerSecond), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  EXPECT_EQ(rig.set(keys).status, Status::done);
  node.process().kill();
  EXPECT_EQ(rig.get(keys).pages, 0u);
  while (rig.get(keys).cause != Cause::missing) continue;  // the master notices it
  const MooncakeNode other(master, 64);
  until_done([&] { return rig.set(keys); }, 5);
  EXPECT_EQ(rig.get(keys).status, Status::done);
}

TEST(MooncakeFailures, AStoppedNodeIsUnreachableUntilItGoesOn) {
  MooncakeMaster master({"-client_ttl=1000"});
  MooncakeNode node(master, 64);
  StoreRig rig(make_mooncake_backend(impatient(master, 100 * kMs), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  until_done([&] { return rig.set(keys); }, 5);
  until_done([&] { return rig.get(keys); }, 5);
  node.process().stop();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable));
  node.process().go_on();
  until_done([&] { return rig.get(keys); }, 5);
  rig.finish();
  EXPECT_GT(rig.counter("unreachable_slow"), 0u);
}

TEST(MooncakeFailures, AStoppedMasterIsUnreachableUntilItGoesOn) {
  MooncakeMaster master({"-client_ttl=1000"});
  MooncakeNode node(master, 64);
  StoreRig rig(make_mooncake_backend(impatient(master, 100 * kMs), kSmallForm));
  const std::vector<PageKey> keys = keys_of(5);
  until_done([&] { return rig.set(keys); }, 5);
  master.process().stop();
  EXPECT_EQ(rig.look_up(keys), 0u);
  EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(name_of(rig.set(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(name_of(rig.remove(keys).cause), name_of(Cause::unreachable));
  master.process().go_on();
  until_done([&] { return rig.get(keys); }, 5);
  until_done([&] { return rig.remove(keys); }, 5);
}

TEST(MooncakeFailures, ChecksSayWhatIsWrong) {
  MooncakeMaster master;
  EXPECT_EQ(make_mooncake_backend(master.config(), kSmallForm)->check(), "");
  master.process().stop();
  auto backend = make_mooncake_backend(impatient(master, 50 * kMs), kSmallForm);
  EXPECT_EQ(backend->check(), "The store does not answer in time.");
  backend.reset();
  master.process().go_on();
  master.process().kill();
  EXPECT_EQ(make_mooncake_backend(master.config(), kSmallForm)->check(),
            "No Mooncake master answers at " + master.address() + ".");
}

// ---- real runs

Settings remote(const MooncakeMaster& master, const std::string& timeout) {
  return {"tiers.remote.tokens=1000000", "tiers.remote.url=" + master.url(), "tiers.remote.timeout_s=" + timeout};
}

TEST(MooncakeRun, ServesFromAMooncakeStore) {
  const Folder folder;
  MooncakeMaster master;
  MooncakeNode node(master, 256);
  const Json report = serve_twice(folder, fed_settings(folder) + remote(master, "10"), 150);
  ASSERT_TRUE(report.is_object());
  EXPECT_GT(report.at("tokens").at("hit_remote"), 0) << report.at("tokens");
  const Json& counters = report.at("real").at("storage").at("remote");
  EXPECT_GT(count_of(counters, "got_pages"), 0u);
  EXPECT_EQ(count_of(counters, "corrupt_pages") + unreachable_in(counters), 0u) << counters;
  EXPECT_GT(report.at("real").at("verified").at("pages_read"), 0) << report.at("real").at("verified");
}

TEST(MooncakeRun, GoesOnWithoutMasterOrNode) {
  const Folder folder;
  MooncakeMaster master;
  auto node = std::make_unique<MooncakeNode>(master, 256);
  FedRun real(folder, fed_settings(folder) + remote(master, "0.1"));
  real.feed_and_see_progress();
  node->process().stop();
  real.feed_and_see_progress();
  node->process().go_on();
  real.feed_and_see_progress();
  node = nullptr;
  real.feed_and_see_progress();
  node = std::make_unique<MooncakeNode>(master, 256);
  master.restart();
  real.feed_and_see_progress();
  master.process().kill();
  real.feed_and_see_progress();
  const Json report = expect_served(folder, real.end(), real.fed());
  ASSERT_TRUE(report.is_object());
  EXPECT_GT(unreachable_in(report.at("real").at("storage").at("remote")), 0u);
}

}  // namespace
}  // namespace kvtwin::test
