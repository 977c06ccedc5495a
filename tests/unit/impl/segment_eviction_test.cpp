// A disk tier that makes room by itself: by an eviction policy, on a small medium, and while pages are read.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <set>
#include <thread>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "policy/eviction.hpp"
#include "tests/folder.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();

SegmentStoreConfig config_on(std::shared_ptr<Files> files, Pages capacity, std::string eviction = "lru") {
  SegmentStoreConfig config;
  config.capacity_pages = capacity;
  config.form = kForm;
  config.depth = 4;
  config.eviction = std::move(eviction);
  config.files = std::move(files);
  return config;
}

std::set<std::uint64_t> present(SegmentStore& store, std::uint64_t pages) {
  std::set<std::uint64_t> there;
  for (std::uint64_t page = 0; page < pages; ++page) {
    if (looks_up(store, page)) there.insert(page);
  }
  return there;
}

TEST(SegmentEviction, evicts_what_was_used_longest_ago) {
  SegmentStore store(config_on(std::make_shared<PowerLossFiles>(), 8));
  for (std::uint64_t page = 0; page < 8; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
  EXPECT_EQ(get_page(store, kForm, 0), Cause::none);
  EXPECT_EQ(set_page(store, kForm, 1), Cause::none);  // a set of a page that is there is a use, too
  for (std::uint64_t page = 10; page < 16; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
  EXPECT_EQ(present(store, 20), (std::set<std::uint64_t>{0, 1, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(counter(store, "pages_evicted"), 6U);
  EXPECT_EQ(counter(store, "full"), 0U);
  EXPECT_EQ(remove_page(store, kForm, 0), Cause::none);
  EXPECT_EQ(set_page(store, kForm, 16), Cause::none);
  EXPECT_EQ(counter(store, "pages_evicted"), 6U) << "a removed page makes room";
  store.check_invariants();
}

// The pages that are being written are no victims, so that the call waits for them.
TEST(SegmentEviction, one_call_may_set_more_pages_than_the_store_holds) {
  SegmentStore store(config_on(std::make_shared<PowerLossFiles>(), 2));
  ListedWork work(kForm);
  for (std::uint64_t page = 0; page < 20; ++page) work.add(StorageVerb::set, numbered_key(page));
  store.write(work);
  for (std::uint64_t page = 0; page < 20; ++page) EXPECT_EQ(work.cause(page), Cause::none) << page;
  EXPECT_EQ(present(store, 20).size(), 2U);
  store.check_invariants();
}

TEST(SegmentEviction, found_pages_are_evicted_in_the_order_of_their_use) {
  const auto files = std::make_shared<PowerLossFiles>();
  {
    SegmentStore store(config_on(files, 8));
    for (std::uint64_t page = 0; page < 8; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
    store.finish();
  }
  {
    SegmentStore store(config_on(files, 8));
    EXPECT_EQ(counter(store, "pages_found"), 8U);
    EXPECT_EQ(get_page(store, kForm, 0), Cause::none);
    for (std::uint64_t page = 10; page < 13; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
    EXPECT_EQ(present(store, 20), (std::set<std::uint64_t>{0, 4, 5, 6, 7, 10, 11, 12}));
    store.check_invariants();
    store.finish();
  }
  SegmentStore store(config_on(files, 3));  // a smaller store
  EXPECT_EQ(present(store, 20).size(), 3U);
  store.check_invariants();
}

TEST(SegmentEviction, each_policy_keeps_the_store_full_and_right) {
  constexpr Pages kCapacity = 16;
  for (const std::string_view eviction : eviction_names()) {
    SCOPED_TRACE(eviction);
    const auto files = std::make_shared<PowerLossFiles>();
    Splitmix rng(1);
    for (int life = 0; life < 3; ++life) {
      SegmentStore store(config_on(files, kCapacity, std::string(eviction)));
      for (int i = 0; i < 200; ++i) {
        const std::uint64_t page = rng.below(40);
        if (rng.chance(5)) {
          ASSERT_EQ(remove_page(store, kForm, page), Cause::none);
        } else if (rng.chance(50)) {
          ASSERT_EQ(set_page(store, kForm, page), Cause::none);
          ASSERT_TRUE(looks_up(store, page));
        } else {
          const Cause cause = get_page(store, kForm, page);
          ASSERT_TRUE(cause == Cause::none || cause == Cause::missing);
        }
      }
      store.check_invariants();
      EXPECT_GE(present(store, 40).size(), kCapacity - 4);
      EXPECT_LE(present(store, 40).size(), kCapacity);
      if (life != 1) store.finish();
    }
  }
}

TEST(SegmentEviction, an_unknown_policy_is_refused) {
  const Folder folder;
  SegmentStoreConfig config = config_on(nullptr, 8, "best");
  config.folder = folder / "tier";
  EXPECT_THROW(SegmentStore{config}, std::runtime_error);
  EXPECT_FALSE(fs::exists(config.folder));
}

// ---- a medium with less room than the capacity

TEST(SegmentEviction, a_small_medium_holds_what_fits) {
  for (const Bytes room : {Bytes{30} << 10, Bytes{100} << 10, Bytes{300} << 10, Bytes{3000} << 10}) {
    SCOPED_TRACE(room);
    const auto files = std::make_shared<PowerLossFiles>();
    files->room = room;
    for (int life = 0; life < 2; ++life) {
      SegmentStore store(config_on(files, 1000));
      for (std::uint64_t page = 0; page < 1500; ++page) {
        ASSERT_EQ(set_page(store, kForm, page), Cause::none) << page;
        ASSERT_EQ(get_page(store, kForm, page), Cause::none) << page;
      }
      store.check_invariants();
      const std::uint64_t fit = room / slot_bytes(kForm);
      EXPECT_GE(present(store, 1500).size(), fit / 2);
      EXPECT_LE(counter(store, "capacity_pages"), fit);
      EXPECT_EQ(counter(store, "full") + counter(store, "io_errors"), 0U);
      EXPECT_TRUE(looks_up(store, 1499));
      store.finish();
    }
  }
}

// Segments were halved when the medium was full, so they have different sizes: a reclaim takes those that give room.
TEST(SegmentEviction, a_small_medium_of_any_size_does_not_rewrite_itself) {
  for (Bytes slots = 16; slots < 700; slots += slots / 3) {
    SCOPED_TRACE(slots);
    const auto files = std::make_shared<PowerLossFiles>();
    files->room = slots * slot_bytes(kForm);
    SegmentStore store(config_on(files, 4096));
    for (std::uint64_t page = 0; page < 2000; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none) << page;
    EXPECT_EQ(counter(store, "full") + counter(store, "io_errors"), 0U);
    EXPECT_LT(counter(store, "pages_moved"), 2000U);
    EXPECT_TRUE(looks_up(store, 1999));
    store.check_invariants();
  }
}

// Other programs fill the medium while the store is open.
TEST(SegmentEviction, a_medium_that_becomes_small_costs_pages_only) {
  const auto files = std::make_shared<PowerLossFiles>();
  SegmentStore store(config_on(files, 200));
  for (std::uint64_t page = 0; page < 100; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
  files->room = 100 * slot_bytes(kForm);
  for (std::uint64_t page = 100; page < 1000; ++page) {
    ASSERT_EQ(set_page(store, kForm, page), Cause::none) << page;
    ASSERT_EQ(get_page(store, kForm, page), Cause::none) << page;
  }
  EXPECT_GE(present(store, 1000).size(), 50U);
  store.check_invariants();
}

// No room at all, and a limit of the size of a file: pages that are there stay.
TEST(SegmentEviction, a_limit_that_evictions_do_not_change_costs_no_page) {
  const auto files = std::make_shared<PowerLossFiles>();
  SegmentStore store(config_on(files, 64));
  for (std::uint64_t page = 0; page < 8; ++page) ASSERT_EQ(set_page(store, kForm, page), Cause::none);
  files->fault = [](PowerLossFiles::Step step) { return step == PowerLossFiles::Step::create ? -EFBIG : 0; };
  for (std::uint64_t page = 10; page < 20; ++page) EXPECT_EQ(set_page(store, kForm, page), Cause::full);
  EXPECT_EQ(present(store, 20).size(), 8U);
  files->fault = [](PowerLossFiles::Step) { return 0; };
  for (std::uint64_t page = 10; page < 66; ++page) EXPECT_EQ(set_page(store, kForm, page), Cause::none);
  EXPECT_EQ(present(store, 66).size(), 64U);
  store.check_invariants();
}

// Every kind of step fails sometimes. No page is ever wrong, every task ends, and the store recovers.
TEST(SegmentEviction, a_disk_that_fails_now_and_then_loses_pages_only) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto files = std::make_shared<PowerLossFiles>(seed);
    Splitmix rng(mix(seed));
    SegmentStoreConfig config = config_on(files, 8);
    config.segment_bytes = 2 * slot_bytes(kForm);
    SegmentStore store(config);
    files->fault = [&](PowerLossFiles::Step) { return rng.chance(10) ? (rng.chance(30) ? -ENOSPC : -EIO) : 0; };
    Splitmix choices(seed);
    for (int i = 0; i < 40; ++i) {
      ListedWork work(kForm);
      const StorageVerb verb = choices.chance(20) ? StorageVerb::remove : StorageVerb::set;
      for (int n = 0; n < 4; ++n) work.add(verb, numbered_key(choices.below(30)));
      store.write(work);
      ListedWork gets(kForm);
      for (std::uint64_t n = 0; n < 30; ++n) gets.add(StorageVerb::get, numbered_key(n));
      store.read(gets);
      ASSERT_EQ(gets.wrong_bytes, 0U) << "seed " << seed;
      store.check_invariants();
    }
    files->fault = [](PowerLossFiles::Step) { return 0; };
    for (std::uint64_t n = 100; n < 150; ++n) {
      ASSERT_EQ(set_page(store, kForm, n), Cause::none) << "seed " << seed;
      ASSERT_EQ(get_page(store, kForm, n), Cause::none) << "seed " << seed;
    }
  }
}

// A page that is being read may be evicted, and its segment removed. The read ends with the right bytes, or a miss.
TEST(SegmentEviction, pages_may_be_evicted_while_they_are_read) {
  const Folder folder;
  SegmentStoreConfig config = config_on(nullptr, 32);
  config.folder = folder / "tier";
  config.depth = 8;
  SegmentStore store(config);
  std::atomic<bool> writing = true;
  std::atomic<std::uint64_t> wrong = 0, other = 0, right = 0;
  std::thread reader([&] {
    Splitmix rng(1);
    while (writing) {
      ListedWork gets(kForm);
      for (int i = 0; i < 20; ++i) gets.add(StorageVerb::get, numbered_key(rng.below(60)));
      store.read(gets);
      wrong += gets.wrong_bytes;
      for (std::size_t i = 0; i < 20; ++i) {
        right += gets.cause(i) == Cause::none ? 1 : 0;
        other += gets.cause(i) != Cause::none && gets.cause(i) != Cause::missing ? 1 : 0;
      }
    }
  });
  Splitmix rng(2);
  for (int i = 0; i < 100; ++i) {
    ListedWork work(kForm);
    for (int n = 0; n < 20; ++n) work.add(StorageVerb::set, numbered_key(rng.below(60)));
    store.write(work);
    for (std::size_t n = 0; n < 20; ++n) ASSERT_EQ(work.cause(n), Cause::none);
    store.check_invariants();
  }
  writing = false;
  reader.join();
  EXPECT_EQ(wrong + other, 0U);
  EXPECT_GT(right, 0U);
  EXPECT_GT(counter(store, "pages_evicted"), 100U);
  EXPECT_GT(counter(store, "segments_reclaimed"), 0U);
}

}  // namespace
}  // namespace kvtwin::test
