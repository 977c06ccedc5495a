// The bytes of one storage tier in the adversarial world: places for pages, and an index from pages to places. The
// medium may damage the bytes of a place in any way. A reader checks everything, so a damaged page becomes a miss. The
// bytes of a place:
//
//   u64 magic | u32 version | u32 payload bytes | 32 bytes space | 32 bytes key | u64 check of the payload |
//   u64 check of the fields before | payload
//
// The key of the index is storage_page_key. A reader compares the whole space and the whole key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/seam/substrate.hpp"
#include "tests/adversary/page_arena.hpp"

namespace kvtwin {

// The faults of a medium.
enum class MediumFault : std::uint8_t {
  none,
  // on a write
  write_error,
  torn_write,         // the tail of the place keeps the old bytes
  misdirected_write,  // goes to another place
  lost_write,         // reported as done, and lost with the power
  flipped_payload,    // one bit of the payload
  flipped_header,
  flipped_key,
  no_room,  // although there is room
  // on a read
  read_error,
  short_read,
  misdirected_read,
  count
};

class PageStore {
 public:
  static constexpr std::size_t kHeaderBytes = 96;
  static constexpr std::size_t kPlaceBytes = kHeaderBytes + kPageBytes;

  // `evicts`: a full store evicts the least recently used page; otherwise a full store refuses new pages.
  PageStore(Pages capacity, bool evicts);

  Pages capacity() const { return places_.size(); }
  Pages used() const { return index_.size(); }
  std::uint64_t evicted() const { return evicted_; }
  std::uint64_t quarantined() const { return quarantined_; }

  bool contains(const PageKey& space, const PageKey& key) const;
  // Returns `none` if no error is visible: some faults damage the page silently.
  Cause put(const PageKey& space, const PageKey& key, const PageImage& payload, MediumFault fault, Chance& chance);
  // Stores the bytes of the medium in `payload`, even if they are wrong. A page that fails its checks is dropped.
  Cause get(const PageKey& space, const PageKey& key, MediumFault fault, Chance& chance, PageImage& payload);
  void remove(const PageKey& space, const PageKey& key);
  void clear();

  // From now on, get() does not check pages: for tests that show where wrong bytes would be found.
  void trust_the_medium() { verifies_ = false; }

 private:
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};
  using Image = std::array<std::byte, kPlaceBytes>;
  struct Place {
    Image bytes{};
    PageKey name;  // key in the index. `name`, `older` and `newer` are valid only if `taken`
    bool taken = false;
    std::uint32_t older = kNowhere, newer = kNowhere;  // neighbours in the order of use
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
