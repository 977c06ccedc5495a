// One bit of the disk tier's stored data flips. Then exactly the page with this bit must be a miss and be counted as
// corrupt, and all other pages must be read correctly.
//   KVTWIN_SEED=n build/tests/property_impl --gtest_filter='FlippedBits*'     other random flips
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "tests/direct_pages.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/program.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form(65);  // 1040 bytes, so the last block of a page is only partly filled
constexpr std::uint64_t kPages = 16;

std::uint64_t seed() {
  const char* text = std::getenv("KVTWIN_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

SegmentStoreConfig config_on(std::shared_ptr<Files> files) {
  SegmentStoreConfig config;
  config.capacity_pages = kPages;
  config.form = kForm;
  config.depth = 4;
  config.segment_bytes = 4 * slot_bytes(kForm);
  config.files = std::move(files);
  return config;
}

void set_all(SegmentStore& store) {
  ListedWork work(kForm);
  for (std::uint64_t i = 0; i < kPages; ++i) work.add(StorageVerb::set, numbered_key(i));
  store.write(work);
}

// Chooses a bit of page `page` at random and returns its place, in the header block or the payload of the newest copy.
struct Spot {
  FileNumber number = 0;
  Bytes at = 0;
  std::byte bit{};
};
template <typename Blocks>  // a map from file number to the bytes of the file
Spot spot_of(const Blocks& files, std::uint64_t page, Splitmix& rng) {
  Spot spot;
  for (const auto& [number, bytes] : files) {
    for (std::uint32_t slot = 0; slot_offset(kForm, slot + 1) <= bytes.size(); ++slot) {
      const std::span<const std::byte> it(bytes.data() + slot_offset(kForm, slot), kBlockBytes);
      PageClaim claim;
      const HeaderKind kind = read_header_block(kForm, number, slot, it.template first<kBlockBytes>(), claim);
      if (kind == HeaderKind::page && claim.key == numbered_key(page)) spot = {number, slot_offset(kForm, slot), {}};
    }
  }
  spot.at += rng.chance(50) ? rng.below(kBlockBytes) : kBlockBytes + rng.below(kForm.bytes());
  spot.bit = static_cast<std::byte>(1U << rng.below(8));
  return spot;
}
std::map<FileNumber, std::span<std::byte>> bytes_of(const PowerLossFiles& files) {
  std::map<FileNumber, std::span<std::byte>> all;
  for (const auto& [number, image] : files.images()) all.emplace(number, image->now);
  return all;
}

// Checks that page `flipped` cannot be read and that all others are read correctly. Returns the error, or "" if none.
std::string check(SegmentStore& store, std::uint64_t flipped, Tier memory = Tier::host) {
  ListedWork work(kForm);
  work.memory = memory;
  for (std::uint64_t i = 0; i < kPages; ++i) work.add(StorageVerb::get, numbered_key(i));
  store.read(work);
  if (work.wrong_bytes != 0) return "wrong bytes";
  for (std::uint64_t i = 0; i < kPages; ++i) {
    if ((work.cause(i) == Cause::none) != (i != flipped)) {
      return "page " + std::to_string(i) + ": " + std::string(name_of(work.cause(i)));
    }
  }
  return "";
}

TEST(FlippedBits, AreCountedMissesOfALiveStore) {
  const auto files = std::make_shared<PowerLossFiles>(seed());
  SegmentStore store(config_on(files));
  set_all(store);
  Splitmix rng(seed());
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const std::uint64_t page = rng.below(kPages);
    const auto bytes = bytes_of(*files);
    const Spot spot = spot_of(bytes, page, rng);
    std::byte& hit = bytes.at(spot.number)[spot.at];
    hit ^= spot.bit;
    ASSERT_EQ(check(store, page), "") << "KVTWIN_SEED=" << seed() << ", flip " << i << " of page " << page;
    ASSERT_EQ(counter(store, "corrupt_pages"), i + 1);
    ASSERT_EQ(set_page(store, kForm, page), Cause::none);
    if (i % 64 == 0) store.sync();  // lets the simulated disk drop its record of unsynced writes
  }
  store.check_invariants();
}

// A direct load to the GPU (L1) uses a different checksum than a load to host memory.
TEST(FlippedBits, AreCountedMissesOnTheDirectWayIntoL1) {
  const auto files = std::make_shared<PowerLossFiles>(seed());
  HostDirectPages direct(kForm, *files, 3);
  SegmentStoreConfig config = config_on(files);
  config.direct = &direct;
  SegmentStore store(config);
  set_all(store);
  Splitmix rng(seed() + 4);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const std::uint64_t page = rng.below(kPages);
    const auto bytes = bytes_of(*files);
    const Spot spot = spot_of(bytes, page, rng);
    bytes.at(spot.number)[spot.at] ^= spot.bit;
    ASSERT_EQ(check(store, page, Tier::device), "")
        << "KVTWIN_SEED=" << seed() << ", flip " << i << " of page " << page;
    ASSERT_EQ(counter(store, "corrupt_pages"), i + 1);
    ASSERT_EQ(direct.wrong_pages, 0U);
    ASSERT_EQ(set_page(store, kForm, page), Cause::none);
    if (i % 64 == 0) store.sync();
  }
  EXPECT_EQ(counter(store, "direct_pages"), 20'000 * (kPages - 1));
  store.check_invariants();
}

// An error of the direct load costs no page: the page is then loaded through host memory.
TEST(FlippedBits, OfTheDirectWayItselfAreNeverServed) {
  const auto files = std::make_shared<PowerLossFiles>(seed());
  HostDirectPages direct(kForm, *files, 3);
  SegmentStoreConfig config = config_on(files);
  config.direct = &direct;
  SegmentStore store(config);
  Splitmix rng(seed() + 5);
  direct.read_fault = [&] { return rng.chance(10) ? -EIO : rng.chance(10) ? -EOPNOTSUPP : rng.chance(10) ? 4096 : 0; };
  direct.headers_fail = [&] { return rng.chance(10); };
  direct.land_fails = [&] { return rng.chance(10); };
  std::uint64_t flips = 0;
  direct.damage = [&](std::span<std::byte> page) {
    if (!rng.chance(2)) return;
    ++flips;
    page[rng.below(page.size())] ^= static_cast<std::byte>(1U << rng.below(8));
  };
  for (std::uint64_t round = 0; round < 500; ++round) {
    set_all(store);
    ListedWork work(kForm);
    work.memory = Tier::device;
    for (std::uint64_t i = 0; i < kPages; ++i) work.add(StorageVerb::get, numbered_key(i));
    store.read(work);
    ASSERT_EQ(work.wrong_bytes + direct.wrong_pages, 0U) << "KVTWIN_SEED=" << seed() << ", round " << round;
    ASSERT_EQ(counter(store, "corrupt_pages"), 0U) << "the disk is blamed";
    for (std::uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(work.cause(i), Cause::none) << name_of(work.cause(i));
  }
  EXPECT_GT(flips, 0U);
  EXPECT_GE(counter(store, "direct_errors"), flips);
  for (const char* kind : {"direct_pages", "direct_refused"}) EXPECT_GT(counter(store, kind), 0U) << kind;
  store.check_invariants();
}

TEST(FlippedBits, AreCountedMissesOfAStoreOpenedAfterwards) {
  const auto files = std::make_shared<PowerLossFiles>(seed());
  {
    SegmentStore store(config_on(files));
    set_all(store);
  }
  Splitmix rng(seed() + 1);
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::uint64_t page = rng.below(kPages);
    const auto bytes = bytes_of(*files);
    const Spot spot = spot_of(bytes, page, rng);
    bytes.at(spot.number)[spot.at] ^= spot.bit;
    SegmentStore store(config_on(files));
    ASSERT_EQ(check(store, page), "") << "KVTWIN_SEED=" << seed() << ", flip " << i << " of page " << page;
    ASSERT_EQ(counter(store, "corrupt_pages"), 1U);
    bytes.at(spot.number)[spot.at] ^= spot.bit;
  }
}

TEST(FlippedBits, OfASuperblockCostItsSegment) {
  Splitmix rng(seed() + 2);
  for (std::uint64_t i = 0; i < 2'000; ++i) {
    const auto files = std::make_shared<PowerLossFiles>(seed());
    {
      SegmentStore store(config_on(files));
      set_all(store);
    }
    const auto bytes = bytes_of(*files);
    const auto hit = std::next(bytes.begin(), static_cast<std::ptrdiff_t>(rng.below(bytes.size())));
    hit->second[rng.below(kBlockBytes)] ^= static_cast<std::byte>(1U << rng.below(8));
    SegmentStore store(config_on(files));
    ASSERT_EQ(counter(store, "damaged_segments"), 1U);
    ASSERT_EQ(counter(store, "pages_found"), kPages - 4);
    std::uint64_t there = 0;
    for (std::uint64_t page = 0; page < kPages; ++page) there += get_page(store, kForm, page) == Cause::none ? 1 : 0;
    ASSERT_EQ(there, kPages - 4);
  }
}

// A crash may leave two copies of a page. If the newer one is torn, the older one is used, by gets and by sets.
TEST(FlippedBits, OfOneOfTwoCopiesCostNothing) {
  for (const bool claims : {false, true}) {
    const auto files = std::make_shared<PowerLossFiles>(seed());
    {
      SegmentStore store(config_on(files));
      ASSERT_EQ(set_page(store, kForm, 1), Cause::none);
      ASSERT_EQ(remove_page(store, kForm, 1), Cause::none);
      ASSERT_EQ(set_page(store, kForm, 1), Cause::none);
    }
    Splitmix rng(seed());
    const auto bytes = bytes_of(*files);
    const Spot spot = spot_of(bytes, 1, rng);
    bytes.at(spot.number)[slot_offset(kForm, 1) + kBlockBytes + 7] ^= std::byte{1};
    SegmentStore store(config_on(files));
    if (claims) {
      EXPECT_EQ(set_page(store, kForm, 1), Cause::none);
      EXPECT_EQ(counter(store, "pages_written"), 0U);
    }
    EXPECT_EQ(get_page(store, kForm, 1), Cause::none);
    EXPECT_EQ(counter(store, "corrupt_pages"), 1U);
    store.check_invariants();
  }
}

class FlippedBitsOnDisk : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ways, FlippedBitsOnDisk, testing::Bool(),
                         [](const auto& param) { return std::string(param.param ? "Threads" : "Default"); });

TEST_P(FlippedBitsOnDisk, AreCountedMisses) {
  const Folder folder;
  SegmentStoreConfig config = config_on(nullptr);
  config.folder = folder / "tier";
  config.force_threads = GetParam();
  Splitmix rng(seed() + 3);
  auto store = std::make_unique<SegmentStore>(config);
  set_all(*store);
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::uint64_t page = rng.below(kPages);
    std::map<FileNumber, std::string> texts;
    std::map<FileNumber, std::span<const std::byte>> files;
    for (const auto& entry : fs::directory_iterator(config.folder)) {
      const FileNumber number = std::stoull(entry.path().filename().string(), nullptr, 16);
      if (number == 0) continue;
      texts[number] = text_of(entry.path());
      files[number] = std::as_bytes(std::span(texts[number]));
    }
    const Spot spot = spot_of(files, page, rng);
    char name[17];
    std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(spot.number));
    const int file = open((config.folder / name).c_str(), O_WRONLY);
    ASSERT_GE(file, 0);
    const std::byte wrong = files.at(spot.number)[spot.at] ^ spot.bit;
    ASSERT_EQ(pwrite(file, &wrong, 1, static_cast<off_t>(spot.at)), 1);
    close(file);
    if (rng.chance(50)) {
      store.reset();
      store = std::make_unique<SegmentStore>(config);
    }
    const std::uint64_t corrupt = counter(*store, "corrupt_pages");
    // After the store was reopened, an older copy of the page may be used. If there is one, its bytes are correct.
    ListedWork work(kForm);
    for (std::uint64_t n = 0; n < kPages; ++n) work.add(StorageVerb::get, numbered_key(n));
    store->read(work);
    EXPECT_EQ(work.wrong_bytes, 0U);
    for (std::uint64_t n = 0; n < kPages; ++n) {
      if (n != page) {
        ASSERT_EQ(work.cause(n), Cause::none) << n << ", flip " << i;
      }
    }
    EXPECT_GE(counter(*store, "corrupt_pages") + (corrupt > 0 ? 1 : 0), 1U);
    for (std::uint64_t n = 0; n < kPages; ++n) ASSERT_EQ(set_page(*store, kForm, n), Cause::none);
  }
  store->check_invariants();
}

}  // namespace
}  // namespace kvtwin::test
