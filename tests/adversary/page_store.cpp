#include "tests/adversary/page_store.hpp"

#include <xxhash.h>

#include <algorithm>

#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kPlaceMagic = 0x31656761'7074766BU;  // "kvtpage1"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kKeysAt = 16, kPayloadCheckAt = 80, kHeaderCheckAt = 88;

std::byte* store_key(std::byte* to, const PageKey& key) {
  for (const std::uint64_t word : key.words) to = store_le64(to, word);
  return to;
}

PageKey load_key(const std::byte* from) {
  PageKey key;
  for (std::size_t i = 0; i < key.words.size(); ++i) key.words[i] = load_le64(from + 8 * i);
  return key;
}

// Flips a random bit in the bytes [from, to).
void flip(std::byte* bytes, std::size_t from, std::size_t to, Chance& chance) {
  bytes[from + chance.below(to - from)] ^= std::byte{1} << chance.below(8);
}

}  // namespace

PageStore::PageStore(Pages capacity, bool evicts) : evicts_(evicts), places_(static_cast<std::size_t>(capacity)) {
  for (std::size_t i = places_.size(); i > 0; --i) free_.push_back(static_cast<std::uint32_t>(i - 1));
}

bool PageStore::contains(const PageKey& space, const PageKey& key) const {
  return index_.contains(storage_page_key(space, key));
}

Cause PageStore::put(const PageKey& space, const PageKey& key, const PageImage& payload, MediumFault fault,
                     Chance& chance) {
  const PageKey name = storage_page_key(space, key);
  if (const auto at = index_.find(name); at != index_.end()) {
    use(at->second);
    return Cause::none;
  }
  if (fault == MediumFault::no_room) return Cause::full;
  if (free_.empty()) {
    if (!evicts_ || oldest_ == kNowhere) return Cause::full;
    ++evicted_;
    release(oldest_);
  }
  const std::uint32_t place = free_.back();
  write(place, packed(space, key, payload), fault, chance);
  if (fault == MediumFault::write_error) return Cause::io_error;
  if (fault == MediumFault::lost_write) return Cause::none;
  free_.pop_back();
  places_[place].name = name;
  places_[place].taken = true;
  index_.emplace(name, place);
  use(place);
  return Cause::none;
}

Cause PageStore::get(const PageKey& space, const PageKey& key, MediumFault fault, Chance& chance, PageImage& payload) {
  const auto at = index_.find(storage_page_key(space, key));
  if (at == index_.end()) return Cause::missing;
  const std::uint32_t place = at->second;
  Image read = places_[fault == MediumFault::misdirected_read ? any_other(place, chance) : place].bytes;
  if (fault == MediumFault::short_read) {
    const auto whole = static_cast<std::ptrdiff_t>(chance.below(kPlaceBytes));
    std::fill(read.begin() + whole, read.end(), std::byte{});
  }
  if (fault == MediumFault::read_error) read.fill(std::byte{0xEE});
  std::copy_n(read.begin() + kHeaderBytes, kPageBytes, payload.begin());
  use(place);
  if (!verifies_) return Cause::none;
  if (fault == MediumFault::read_error || fault == MediumFault::short_read) return Cause::io_error;
  if (holds(read, space, key)) return Cause::none;
  ++quarantined_;
  release(place);
  return Cause::corrupt;
}

void PageStore::remove(const PageKey& space, const PageKey& key) {
  const auto at = index_.find(storage_page_key(space, key));
  if (at != index_.end()) release(at->second);
}

void PageStore::clear() {
  while (oldest_ != kNowhere) release(oldest_);
}

PageStore::Image PageStore::packed(const PageKey& space, const PageKey& key, const PageImage& payload) {
  Image bytes;
  std::byte* to = store_le64(bytes.data(), kPlaceMagic);
  to = store_le32(to, kVersion);
  to = store_le32(to, static_cast<std::uint32_t>(payload.size()));
  to = store_key(store_key(to, space), key);
  to = store_le64(to, XXH3_64bits(payload.data(), payload.size()));
  to = store_le64(to, XXH3_64bits(bytes.data(), kHeaderCheckAt));
  std::ranges::copy(payload, to);
  return bytes;
}

bool PageStore::holds(const Image& bytes, const PageKey& space, const PageKey& key) {
  const std::byte* const at = bytes.data();
  return load_le64(at) == kPlaceMagic && load_le32(at + 8) == kVersion && load_le32(at + 12) == kPageBytes &&
         load_le64(at + kHeaderCheckAt) == XXH3_64bits(at, kHeaderCheckAt) && load_key(at + kKeysAt) == space &&
         load_key(at + kKeysAt + 32) == key &&
         load_le64(at + kPayloadCheckAt) == XXH3_64bits(at + kHeaderBytes, kPageBytes);
}

void PageStore::write(std::uint32_t place, const Image& bytes, MediumFault fault, Chance& chance) {
  std::size_t whole = bytes.size();
  if (fault == MediumFault::torn_write || fault == MediumFault::write_error || fault == MediumFault::lost_write) {
    whole = chance.below(bytes.size());
  }
  const std::uint32_t target = fault == MediumFault::misdirected_write ? any_other(place, chance) : place;
  std::byte* const to = places_[target].bytes.data();
  std::copy_n(bytes.begin(), whole, to);
  if (fault == MediumFault::flipped_payload) flip(to, kHeaderBytes, kPlaceBytes, chance);
  if (fault == MediumFault::flipped_key) flip(to, kKeysAt, kPayloadCheckAt, chance);
  if (fault == MediumFault::flipped_header) {
    chance.in(1, 2) ? flip(to, 0, kKeysAt, chance) : flip(to, kPayloadCheckAt, kHeaderBytes, chance);
  }
}

std::uint32_t PageStore::any_other(std::uint32_t place, Chance& chance) const {
  if (places_.size() == 1) return place;
  const auto other = static_cast<std::uint32_t>(chance.below(places_.size() - 1));
  return other < place ? other : other + 1;
}

void PageStore::use(std::uint32_t place) {
  Place& used = places_[place];
  if (newest_ == place) return;
  unlink(place);
  used.older = newest_;
  if (newest_ != kNowhere) places_[newest_].newer = place;
  newest_ = place;
  if (oldest_ == kNowhere) oldest_ = place;
}

void PageStore::unlink(std::uint32_t place) {
  Place& gone = places_[place];
  if (oldest_ == place) oldest_ = gone.newer;
  if (newest_ == place) newest_ = gone.older;
  if (gone.older != kNowhere) places_[gone.older].newer = gone.newer;
  if (gone.newer != kNowhere) places_[gone.newer].older = gone.older;
  gone.older = gone.newer = kNowhere;
}

// Frees the place. The bytes stay, as on a real medium.
void PageStore::release(std::uint32_t place) {
  KV_CHECK(places_[place].taken, "a place is released once");
  unlink(place);
  places_[place].taken = false;
  index_.erase(places_[place].name);
  free_.push_back(place);
}

}  // namespace kvtwin
