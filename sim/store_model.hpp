// The content of a storage tier, without bytes: a set of keys, in the order of their last use.
//
// Open addressing over a slab of entries. Only growth of the table allocates memory.
// Thread: single-threaded. Deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

// A storage_page_key without the words that are equal in all such keys.
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
  // Requires: `capacity` is at least 1 page. `evicts_itself`: a full store drops the least recently used page;
  // otherwise a full store refuses new pages.
  StoreModel(Pages capacity, bool evicts_itself);

  bool contains(const StoreKey& key) const { return table_[find(key)] != kNone; }
  // Returns how many leading keys are present.
  Pages leading(std::span<const StoreKey> keys) const;
  // Makes a present key the most recently used one. Returns false if the key is absent.
  bool touch(const StoreKey& key);
  // Like touch(), but inserts an absent key. Returns false if the store is full.
  bool add(const StoreKey& key);
  bool remove(const StoreKey& key);

  Pages size() const { return size_; }
  // Returns how many new pages the store accepts.
  Pages room() const { return evicts_itself_ ? ~Pages{0} : capacity_ - size_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    StoreKey key;
    std::uint32_t older = kNone, newer = kNone;
  };

  std::size_t home(const StoreKey& key) const { return static_cast<std::size_t>(key.a) & (table_.size() - 1); }
  // Returns the cell of the key, or the free cell for the key.
  std::size_t find(const StoreKey& key) const;
  void grow();
  void unlink(std::uint32_t entry);
  void link_newest(std::uint32_t entry);
  void erase_cell(std::size_t cell);

  Pages capacity_;
  bool evicts_itself_;
  Pages size_ = 0;
  std::vector<std::uint32_t> table_;  // entry numbers; at most half full
  std::vector<Entry> entries_;
  std::uint32_t free_ = kNone;  // list of free entries, linked by Entry::older
  std::uint32_t oldest_ = kNone, newest_ = kNone;
};

}  // namespace kvtwin
