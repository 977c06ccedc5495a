// After a regular end of the disk tier, no page can be found that was removed, evicted or overwritten. After a crash,
// at most the older copy of a page may be found while the younger one is wrong.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();

using Step = PowerLossFiles::Step;

SegmentStoreConfig config_on(std::shared_ptr<Files> files, Pages capacity = 32, std::uint32_t slots = 8) {
  SegmentStoreConfig config;
  config.capacity_pages = capacity;
  config.form = kForm;
  config.depth = 4;
  config.segment_bytes = slots * slot_bytes(kForm);
  config.files = std::move(files);
  return config;
}

// One page with a version in its first byte.
class VersionWork final : public PageWork {
 public:
  VersionWork(StorageVerb verb, std::uint64_t page, std::byte v = {})
      : PageWork(kForm), version(v), task_{verb, some_space(), numbered_key(page)} {}
  bool next(PageTask& task) override {
    task = task_;
    return !std::exchange(begun_, true);
  }
  void take_bare(const PageTask&, std::span<std::byte> payload) override { std::ranges::fill(payload, version); }
  Cause give_bare(const PageTask&, std::span<const std::byte> payload) override {
    version = payload.front();
    return Cause::none;
  }
  void end(const PageTask&, Cause c) override { cause = c; }
  Cause cause = Cause::missing;
  std::byte version;

 private:
  PageTask task_;
  bool begun_ = false;
};

constexpr std::byte kOld{0xA}, kNew{0xB};

void put(SegmentStore& store, std::uint64_t page, std::byte version) {
  VersionWork work(StorageVerb::set, page, version);
  store.write(work);
  ASSERT_EQ(work.cause, Cause::none) << page;
}
// Returns the version of the page; none if it is a miss.
std::optional<std::byte> version_of(SegmentStore& store, std::uint64_t page) {
  VersionWork work(StorageVerb::get, page);
  store.read(work);
  return work.cause == Cause::none ? std::optional(work.version) : std::nullopt;
}

// Returns how often a header block on the disk names each page, as the next run would find it.
std::map<PageKey, int> findable(const PowerLossFiles& files) {
  std::map<PageKey, int> pages;
  for (const auto& [number, image] : files.images()) {
    std::uint64_t slots = 0;
    const std::span<const std::byte> bytes = image->now;
    if (read_superblock(kForm, number, bytes.first<kBlockBytes>(), slots) != SuperblockKind::ours) continue;
    for (std::uint32_t slot = 0; slot_offset(kForm, slot + 1) <= bytes.size(); ++slot) {
      PageClaim claim;
      const auto block = bytes.subspan(slot_offset(kForm, slot)).first<kBlockBytes>();
      if (read_header_block(kForm, number, slot, block, claim) == HeaderKind::page) ++pages[claim.key];
    }
  }
  return pages;
}

// Page 1 is set, removed and set again with other bytes.
void overwrite_page_1(SegmentStore& store) {
  put(store, 1, kOld);
  for (std::uint64_t page = 10; page < 17; ++page) put(store, page, kOld);
  ASSERT_EQ(remove_page(store, kForm, 1), Cause::none);
  put(store, 1, kNew);
  for (std::uint64_t page = 20; page < 27; ++page) put(store, page, kNew);
}

void flip_payloads(const PowerLossFiles& files, const PageKey& key, std::byte version) {
  for (const auto& [number, image] : files.images()) {
    for (std::uint32_t slot = 0; slot_offset(kForm, slot + 1) <= image->now.size(); ++slot) {
      const std::span<std::byte> bytes = std::span(image->now).subspan(slot_offset(kForm, slot), slot_bytes(kForm));
      PageClaim claim;
      if (read_header_block(kForm, number, slot, bytes.first<kBlockBytes>(), claim) != HeaderKind::page) continue;
      if (claim.key == key && bytes[kBlockBytes] == version) bytes[kBlockBytes + 1] ^= std::byte{1};
    }
  }
}

TEST(SegmentEnd, an_overwritten_page_does_not_come_back_after_a_regular_end) {
  for (const bool damaged : {false, true}) {
    const auto files = std::make_shared<PowerLossFiles>();
    {
      SegmentStore store(config_on(files));
      overwrite_page_1(store);
      EXPECT_EQ(version_of(store, 1), kNew);
      store.finish();
    }
    EXPECT_EQ(findable(*files)[numbered_key(1)], 1);
    if (damaged) flip_payloads(*files, numbered_key(1), kNew);
    SegmentStore store(config_on(files));
    if (!damaged) {
      EXPECT_EQ(version_of(store, 1), kNew);
    }
    // Claims the older segment, so that the segment of the younger copy is reclaimed first.
    for (std::uint64_t page = 10; page < 17; ++page) put(store, page, kOld);
    for (std::uint64_t page = 100; page < 150; ++page) {
      const std::optional<std::byte> version = version_of(store, 1);
      ASSERT_TRUE(!version || (!damaged && *version == kNew)) << page;
      put(store, page, kOld);
      ASSERT_EQ(remove_page(store, kForm, page), Cause::none);
    }
  }
}

// A crash leaves both copies. As soon as the younger one has been read, the older one is gone.
TEST(SegmentEnd, after_a_crash_the_older_copy_is_gone_once_the_younger_one_was_right) {
  for (const bool reads : {false, true}) {
    const auto files = std::make_shared<PowerLossFiles>();
    {
      SegmentStore store(config_on(files));
      overwrite_page_1(store);
    }
    EXPECT_EQ(findable(*files)[numbered_key(1)], 2);
    SegmentStore store(config_on(files));
    if (reads) {
      EXPECT_EQ(version_of(store, 1), kNew);
      flip_payloads(*files, numbered_key(1), kNew);
      EXPECT_EQ(version_of(store, 1), std::nullopt);
    }
    // The segment of the younger copy is reclaimed first: the page is evicted, whatever the number of its copies is.
    for (std::uint64_t page = 10; page < 17; ++page) put(store, page, kOld);
    for (std::uint64_t page = 100; page < 150; ++page) {
      if (reads) {
        ASSERT_NE(version_of(store, 1), kOld) << page;
      }
      put(store, page, kOld);
      ASSERT_EQ(remove_page(store, kForm, page), Cause::none);
    }
    EXPECT_EQ(version_of(store, 1), std::nullopt);
    store.check_invariants();
  }
}

TEST(SegmentEnd, after_a_crash_a_remove_takes_all_copies) {
  const auto files = std::make_shared<PowerLossFiles>();
  {
    SegmentStore store(config_on(files));
    overwrite_page_1(store);
  }
  SegmentStore store(config_on(files));
  ASSERT_EQ(remove_page(store, kForm, 1), Cause::none);
  EXPECT_EQ(version_of(store, 1), std::nullopt);
  store.finish();
  EXPECT_FALSE(findable(*files).contains(numbered_key(1)));
}

// The run after a crash ends regularly without a read of the page: its end reads the younger copy.
TEST(SegmentEnd, a_regular_end_after_a_crash_keeps_one_right_copy) {
  for (const bool torn : {false, true}) {
    const auto files = std::make_shared<PowerLossFiles>();
    {
      SegmentStore store(config_on(files));
      overwrite_page_1(store);
    }
    if (torn) flip_payloads(*files, numbered_key(1), kNew);
    SegmentStore(config_on(files)).finish();
    EXPECT_EQ(findable(*files)[numbered_key(1)], 1);
    SegmentStore store(config_on(files));
    EXPECT_EQ(version_of(store, 1), torn ? kOld : kNew);
  }
}

// A disk on which the header blocks cannot be overwritten loses pages rather than to bring removed ones back.
TEST(SegmentEnd, a_removed_page_that_cannot_be_overwritten_goes_with_its_segment) {
  for (const Step failing : {Step::write, Step::sync}) {
    const auto files = std::make_shared<PowerLossFiles>();
    {
      SegmentStore store(config_on(files));
      overwrite_page_1(store);
      ASSERT_TRUE(store.sync());
      files->fault = [failing](Step step) { return step == failing ? -EIO : 0; };
      store.finish();
    }
    files->fault = [](Step) { return 0; };
    const std::map<PageKey, int> pages = findable(*files);
    EXPECT_FALSE(pages.contains(numbered_key(10))) << "of the segment of the removed page";
    EXPECT_EQ(pages.at(numbered_key(1)), 1);
    EXPECT_EQ(pages.at(numbered_key(20)), 1);
  }
}

// A reclaimed segment whose file could not be removed is removed at the end, or loses its superblock.
TEST(SegmentEnd, a_segment_that_cannot_be_removed_brings_nothing_back) {
  for (const bool for_ever : {false, true}) {
    const auto files = std::make_shared<PowerLossFiles>();
    {
      SegmentStore store(config_on(files));
      files->fault = [](Step step) { return step == Step::remove ? -EIO : 0; };
      for (std::uint64_t page = 100; page < 200; ++page) {
        put(store, page, kOld);
        ASSERT_EQ(remove_page(store, kForm, page), Cause::none);
      }
      EXPECT_GT(counter(store, "io_errors"), 0U);
      if (!for_ever) files->fault = [](Step) { return 0; };
      store.finish();
    }
    files->fault = [](Step) { return 0; };
    EXPECT_TRUE(findable(*files).empty());
    EXPECT_EQ(counter(SegmentStore(config_on(files)), "pages_found"), 0U);
  }
}

// A removed segment does not come back with a power loss after the end.
TEST(SegmentEnd, a_power_loss_after_a_regular_end_brings_nothing_back) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto files = std::make_shared<PowerLossFiles>(seed);
    {
      SegmentStore store(config_on(files));
      for (std::uint64_t page = 100; page < 150; ++page) {
        put(store, page, kOld);
        ASSERT_EQ(remove_page(store, kForm, page), Cause::none);
      }
      put(store, 1, kNew);
      store.finish();
    }
    files->restart(CutMode::tear_512);
    EXPECT_EQ(findable(*files), (std::map<PageKey, int>{{numbered_key(1), 1}}));
  }
}

// Random histories with failing steps and crashes: after a regular end on a disk that works again, the pages that the
// next run can find are those that were present, once each.
TEST(SegmentEnd, leaves_exactly_the_present_pages) {
  constexpr std::uint64_t kPages = 14;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto files = std::make_shared<PowerLossFiles>(seed);
    Splitmix rng(seed);
    for (int life = 0; life < 3; ++life) {
      SegmentStore store(config_on(files, 8, 2));
      const std::uint64_t failing = rng.chance(50) ? 10 : 0;
      files->fault = [&rng, failing](Step) { return rng.chance(failing) ? -EIO : 0; };
      for (int i = 0; i < 40; ++i) {
        const std::uint64_t page = rng.below(kPages);
        if (rng.chance(60)) {
          set_page(store, kForm, page);
        } else {
          remove_page(store, kForm, page);
        }
        if (rng.chance(20)) get_page(store, kForm, rng.below(kPages));
        if (rng.chance(10)) store.sync();
      }
      files->fault = [](Step) { return 0; };
      if (rng.chance(30)) continue;  // a crash
      store.finish();
      std::map<PageKey, int> present;
      for (std::uint64_t page = 0; page < kPages; ++page) {
        if (looks_up(store, page)) present[numbered_key(page)] = 1;
      }
      ASSERT_EQ(findable(*files), present) << "life " << life;
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
