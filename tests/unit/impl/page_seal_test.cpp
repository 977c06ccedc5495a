// The keyed checksum of stored pages: without the secret, nobody can make a page that is accepted.
#include "impl/storage/page_seal.hpp"

#include <gtest/gtest.h>
#include <openssl/hmac.h>

#include <cstring>
#include <map>
#include <set>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "policy/base/byte_order.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();
constexpr std::uint64_t kPages = 8;

std::vector<std::byte> payload_of(std::uint64_t page) {
  std::vector<std::byte> payload(kForm.bytes());
  fill_page(numbered_key(page), payload);
  return payload;
}

TEST(PageSeal, IsHmacSha256CutToHalf) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const PageSeal seal(secret);
  const std::vector<std::byte> header(112, std::byte{7}), payload(1000, std::byte{9});
  std::vector<std::byte> both = header;
  both.insert(both.end(), payload.begin(), payload.end());
  std::array<unsigned char, 32> expected;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(both.data()), both.size(), expected.data(), nullptr);
  for (int again = 0; again < 2; ++again) {
    const PageMac mac = seal.of(header, payload);
    EXPECT_EQ(std::memcmp(mac.data(), expected.data(), mac.size()), 0);
  }
  EXPECT_NE(seal.id(), 0U);
  EXPECT_EQ(PageSeal(secret).id(), seal.id());
  EXPECT_NE(PageSeal(secret + "0").id(), seal.id());
}

TEST(PageSeal, SecretsHaveSixteenCharactersAtLeast) {
  EXPECT_NO_THROW(PageSeal(std::string(kMinSecretBytes, 'a')));
  for (const std::size_t length : {std::size_t{0}, kMinSecretBytes - 1}) {
    try {
      const PageSeal seal(std::string(length, 'q'));
      ADD_FAILURE() << length;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("16 characters"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("qqq"), std::string::npos) << error.what();
    }
  }
}

TEST(PageSeal, EveryBitOfAPageCounts) {
  const PageSeal seal("sixteen characters and more");
  const PageKey key = numbered_key(1), space = some_space();
  std::vector<std::byte> payload = payload_of(1);
  PageHeader header = make_page_header(kForm, space, key, payload, &seal);
  const auto holds = [&](const PageSeal* by) { return holds_page(kForm, space, key, header, payload, by); };
  EXPECT_TRUE(holds(&seal));
  for (const std::span<std::byte> part : {std::span<std::byte>(header), std::span<std::byte>(payload)}) {
    for (std::byte& it : part) {
      for (unsigned bit = 1; bit < 256; bit <<= 1) {
        it ^= static_cast<std::byte>(bit);
        ASSERT_FALSE(holds(&seal));
        it ^= static_cast<std::byte>(bit);
      }
    }
  }
  EXPECT_FALSE(holds(nullptr)) << "without the secret";
  const PageSeal other("sixteen characters and others");
  EXPECT_FALSE(holds(&other));
  header = make_page_header(kForm, space, key, payload);
  EXPECT_TRUE(holds(nullptr));
  EXPECT_FALSE(holds(&seal)) << "anybody can make this";
  // An attacker knows everything except the secret: also the id of the secret and the format of a correct page.
  header = make_page_header(kForm, space, key, payload, &other);
  store_le32(header.data() + 100, seal.id());
  EXPECT_FALSE(holds(&seal));
}

class SealedSegments : public testing::Test {
 protected:
  std::unique_ptr<SegmentStore> open(const PageSeal* seal) {
    SegmentStoreConfig config;
    config.capacity_pages = 32;
    config.form = kForm;
    config.segment_bytes = kPages * slot_bytes(kForm);
    config.files = files_;
    config.seal = seal;
    return std::make_unique<SegmentStore>(config);
  }
  std::uint64_t served(SegmentStore& store) {
    std::uint64_t pages = 0;
    for (std::uint64_t i = 0; i < kPages; ++i) pages += get_page(store, kForm, i) == Cause::none ? 1 : 0;
    return pages;
  }
  const std::shared_ptr<PowerLossFiles> files_ = std::make_shared<PowerLossFiles>();
  const PageSeal mine_{"sixteen characters and more"}, other_{"sixteen characters and others"};
};

TEST_F(SealedSegments, PagesOfAnotherSecretOrNoneAreMissesAndCounted) {
  const std::map<std::string, const PageSeal*> ways = {{"mine", &mine_}, {"other", &other_}, {"none", nullptr}};
  for (const auto& [writer, writes] : ways) {
    for (const auto& [reader, reads] : ways) {
      SCOPED_TRACE(writer + " read by " + reader);
      for (const auto& [number, image] : files_->images()) files_->remove(number, nullptr);
      {
        const auto store = open(writes);
        for (std::uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(set_page(*store, kForm, i), Cause::none);
        EXPECT_EQ(served(*store), kPages);
      }
      const auto store = open(reads);
      const bool same = writes == reads;
      EXPECT_EQ(served(*store), same ? kPages : 0);
      EXPECT_EQ(counter(*store, "pages_of_another_secret"), same ? 0 : kPages);
      EXPECT_EQ(counter(*store, "pages_found"), same ? kPages : 0);
      EXPECT_EQ(counter(*store, "corrupt_pages"), 0U);
      EXPECT_EQ(store->description().find("another secret") == std::string::npos, same) << store->description();
      for (std::uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(set_page(*store, kForm, i), Cause::none);
      EXPECT_EQ(served(*store), kPages);
      store->check_invariants();
    }
  }
}

// An attacker with write access to the folder changes the payload of a page, and recomputes every checksum that needs
// no secret.
TEST_F(SealedSegments, AForgedPageIsServedOnlyWithoutASecret) {
  for (const bool sealed : {false, true}) {
    for (const auto& [number, image] : files_->images()) files_->remove(number, nullptr);
    const PageSeal* seal = sealed ? &mine_ : nullptr;
    {
      const auto store = open(seal);
      for (std::uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(set_page(*store, kForm, i), Cause::none);
    }
    const auto [number, image] = *files_->images().begin();
    const auto slot = std::span(image->now).subspan(slot_offset(kForm, 3), slot_bytes(kForm));
    const std::span<std::byte> payload = slot.subspan(kBlockBytes, kForm.bytes());
    payload[0] ^= std::byte{1};
    const PageHeader forged = make_page_header(kForm, some_space(), numbered_key(3), payload);
    if (!sealed) std::ranges::copy(forged, slot.begin());
    seal_header_block(number, 3, slot.first<kBlockBytes>());
    const auto store = open(seal);
    ListedWork work(kForm, seal);
    work.add(StorageVerb::get, numbered_key(3));
    store->read(work);
    EXPECT_EQ(work.cause(0), sealed ? Cause::corrupt : Cause::none);
    EXPECT_EQ(work.wrong_bytes, sealed ? 0U : 1U);
    EXPECT_EQ(counter(*store, "corrupt_pages"), sealed ? 1U : 0U);
    // With a secret, a set does not accept the forged page as already stored, either.
    EXPECT_EQ(set_page(*store, kForm, 3), Cause::none);
    EXPECT_EQ(counter(*store, "pages_written"), sealed ? 1U : 0U);
  }
}

TEST_F(SealedSegments, MovedPagesKeepTheirCheck) {
  const auto store = open(&mine_);
  for (std::uint64_t i = 0; i < kPages; ++i) ASSERT_EQ(set_page(*store, kForm, i), Cause::none);
  Splitmix rng(7);
  std::set<std::uint64_t> others;
  for (std::uint64_t i = 100; i < 400; ++i) {
    if (others.size() == 32 - kPages) {
      const auto victim = std::next(others.begin(), static_cast<std::ptrdiff_t>(rng.below(others.size())));
      ASSERT_EQ(remove_page(*store, kForm, *victim), Cause::none);
      others.erase(victim);
    }
    ASSERT_EQ(set_page(*store, kForm, i), Cause::none);
    others.insert(i);
  }
  for (const std::uint64_t page : others) EXPECT_EQ(get_page(*store, kForm, page), Cause::none) << page;
  EXPECT_GT(counter(*store, "pages_moved"), 0U);
  EXPECT_EQ(served(*store), kPages);
}

}  // namespace
}  // namespace kvtwin::test
