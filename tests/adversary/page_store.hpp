// The bytes of one storage tier in the adversarial world: places for pages, and an index of which page should lie
// where. The medium may do anything to the bytes of a place; a reader believes nothing that doesn't hold, so a damaged
// page is a miss at worst. What a place holds of a page:
//
//   u64 magic | u32 version | u32 payload bytes | 32 space | 32 key | u64 check of the payload | u64 check of what is
//   before it | payload
//
// The index goes by storage_page_key; what is read is compared by the whole space and key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/seam/substrate.hpp"
#include "tests/adversary/page_arena.hpp"

namespace kvtwin {

// What a medium does wrong.
enum class MediumFault : std::uint8_t {
  none,
  // when it writes
  write_error,
  torn_write,         // the tail of the place keeps what it held
  misdirected_write,  // into another place
  lost_write,         // told done, and gone with the power
  flipped_payload,    // a bit
  flipped_header,
  flipped_key,
  no_room,  // though there was
  // when it reads
  read_error,
  short_read,
  misdirected_read,
  count
};

class PageStore {
 public:
  static constexpr std::size_t kHeaderBytes = 96;
  static constexpr std::size_t kPlaceBytes = kHeaderBytes + kPageBytes;

  // `evicts`: what was used least recently makes room; else a full store refuses.
  PageStore(Pages capacity, bool evicts);

  Pages capacity() const { return places_.size(); }
  Pages used() const { return index_.size(); }
  std::uint64_t evicted() const { return evicted_; }
  std::uint64_t quarantined() const { return quarantined_; }

  bool contains(const PageKey& space, const PageKey& key) const;
  // `none` if it is stored now, as far as anybody can tell.
  Cause put(const PageKey& space, const PageKey& key, const PageImage& payload, MediumFault fault, Chance& chance);
  // `payload` gets what the medium gave, right or not. A page that doesn't hold is dropped.
  Cause get(const PageKey& space, const PageKey& key, MediumFault fault, Chance& chance, PageImage& payload);
  void remove(const PageKey& space, const PageKey& key);
  void clear();

  // For tests that want to see what would happen: pages are believed unseen.
  void trust_the_medium() { verifies_ = false; }

 private:
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};
  using Image = std::array<std::byte, kPlaceBytes>;
  struct Place {
    Image bytes{};
    PageKey name;  // in the index; this and the next two only if `taken`
    bool taken = false;
    std::uint32_t older = kNowhere, newer = kNowhere;  // in the order of use
  };

  static Image packed(const PageKey& space, const PageKey& key, const PageImage& payload);
  static bool holds(const Image& bytes, const PageKey& space, const PageKey& key);
  void write(std::uint32_t place, const Image& bytes, MediumFault fault, Chance& chance);
  std::uint32_t any_other(std::uint32_t place, Chance& chance) const;
  void use(std::uint32_t place);
  void unlink(std::uint32_t place);
  void release(std::uint32_t place);

  bool evicts_;
  bool verifies_ = true;
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<PageKey, std::uint32_t, PageKeyHash> index_;
  std::uint32_t oldest_ = kNowhere, newest_ = kNowhere;
  std::uint64_t evicted_ = 0, quarantined_ = 0;
};

}  // namespace kvtwin
