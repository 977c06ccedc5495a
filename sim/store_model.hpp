// What a storage tier holds, without its bytes: a set of keys in order of their last use. Open addressing over a slab
// of entries; nothing is allocated but when the table grows. Single-threaded, deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

// A storage_page_key without the words that are the same in all of them.
struct StoreKey {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const StoreKey&, const StoreKey&) = default;
};
inline StoreKey store_key(const PageKey& space, const PageKey& page) {
  const PageKey key = storage_page_key(space, page);
  return {key.words[0], key.words[1]};
}

class StoreModel {
 public:
  // `evicts_itself`: beyond its capacity, which is at least a page, it drops what was used longest ago.
  StoreModel(Pages capacity, bool evicts_itself);

  bool contains(const StoreKey& key) const { return table_[find(key)] != kNone; }
  // How many of the first ones are there.
  Pages leading(std::span<const StoreKey> keys) const;
  // Is it there? Then it is the one used last now.
  bool touch(const StoreKey& key);
  // As touch, but puts it there. False: no room.
  bool add(const StoreKey& key);
  bool remove(const StoreKey& key);

  Pages size() const { return size_; }
  // Further pages that it takes.
  Pages room() const { return evicts_itself_ ? ~Pages{0} : capacity_ - size_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    StoreKey key;
    std::uint32_t older = kNone, newer = kNone;
  };

  std::size_t home(const StoreKey& key) const { return static_cast<std::size_t>(key.a) & (table_.size() - 1); }
  // Its cell, or the free one where it would go.
  std::size_t find(const StoreKey& key) const;
  void grow();
  void unlink(std::uint32_t entry);
  void link_newest(std::uint32_t entry);
  void erase_cell(std::size_t cell);

  Pages capacity_;
  bool evicts_itself_;
  Pages size_ = 0;
  std::vector<std::uint32_t> table_;  // of entries; at most half full
  std::vector<Entry> entries_;
  std::uint32_t free_ = kNone;  // by Entry::older
  std::uint32_t oldest_ = kNone, newest_ = kNone;
};

}  // namespace kvtwin
