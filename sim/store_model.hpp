// The content of a storage tier, without bytes: a set of keys, in the order of their last use. Objects may be of
// different sizes: pages, and the windows and states beside them.
//
// Open addressing over a slab of entries. Only growth of the table allocates memory.
// Thread: single-threaded. Deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/planned_faults.hpp"
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

struct StoreRules {
  bool evicts_itself = false;  // a full store drops the least recently used page; otherwise it refuses new pages
  Bytes page_bytes = 0;        // of a page; 0 = all objects are pages, and their sizes don't count
  TimeNs lease_ns = 0;         // a page is not dropped for this time after a look-up, get or set; 0 = no leases
  // Drives behind the memory, which `capacity` is then. A new page is in memory, and is written to the drives one after
  // another. A full memory evicts a page that has been written, which is then on the drives only, and stays there; if
  // none has been written, it refuses new pages. Full drives drop what came first. Source: Mooncake Store, offload at
  // eviction (tests/remote/mooncake_failures_test.cpp).
  Pages drive_pages = 0;             // 0 = no drives
  std::uint64_t drive_write_ps = 0;  // to write a page
  std::uint32_t nodes = 1;           // the pages are spread over these nodes (pool_node_of)
  std::vector<NodeDown> downs{};
};

class StoreModel {
 public:
  // Requires: `capacity` is at least 1 page.
  StoreModel(Pages capacity, StoreRules rules);
  StoreModel(Pages capacity, bool evicts_itself) : StoreModel(capacity, StoreRules{.evicts_itself = evicts_itself}) {}

  // Sets the time for leases and failures. A node that goes down loses its pages. Requires: times do not decrease.
  void advance_to(TimeNs now);
  // Returns whether the page's node is down now.
  bool is_down(const StoreKey& key) const;
  // Returns whether the page's node has gone down after `time`, and so has lost what it had then.
  bool lost_since(const StoreKey& key, TimeNs time) const;
  TimeNs lease_ns() const { return rules_.lease_ns; }
  std::uint32_t node_of(const StoreKey& key) const { return pool_node_of(key.a, key.b, rules_.nodes); }

  bool contains(const StoreKey& key) const { return table_[find(key)] != kNone; }
  // Returns the part of these present keys' bytes that is on the drives only, 0 to 1.
  double drive_share(std::span<const StoreKey> keys) const;
  // Returns how many leading keys are present, on nodes that answer.
  Pages leading(std::span<const StoreKey> keys) const;
  // Makes present keys that were looked up the most recently used ones, if the store has leases.
  void renew_leases(std::span<const StoreKey> keys);
  // Makes a present key the most recently used one. Returns false if the key is absent.
  bool touch(const StoreKey& key);
  // Like touch(), but inserts an absent key. Returns false if the store is full: with leases, also if every page has
  // one. `bytes`: of the object.
  bool add(const StoreKey& key, Bytes bytes = 0);
  bool remove(const StoreKey& key);

  // In pages, rounded up.
  Pages size() const { return pages_of(size_); }
  Pages size_max() const { return pages_of(size_max_); }
  // Returns how many pages were dropped to make room.
  Pages evicted() const { return evicted_; }
  // Returns how many new objects of this size the store accepts.
  Pages room(Bytes bytes = 0) const {
    return rules_.evicts_itself ? ~Pages{0} : (capacity_ - memory_.size) / units_of(bytes);
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    StoreKey key;
    Bytes units = 1;
    std::uint32_t older = kNone, newer = kNone;
    bool on_drives = false;  // only there
    TimeNs written = 0;      // when it is on the drives too
  };
  struct Medium {
    Bytes size = 0;  // in units
    std::uint32_t oldest = kNone, newest = kNone;
  };
  // Sizes are counted in bytes, or in pages if all objects are pages.
  Bytes units_of(Bytes bytes) const { return rules_.page_bytes == 0 ? 1 : bytes; }
  Pages pages_of(Bytes units) const {
    return rules_.page_bytes == 0 ? units : (units + rules_.page_bytes - 1) / rules_.page_bytes;
  }

  std::size_t home(const StoreKey& key) const { return static_cast<std::size_t>(key.a) & (table_.size() - 1); }
  // Returns the cell of the key, or the free cell for the key.
  std::size_t find(const StoreKey& key) const;
  bool make_room(Bytes units);
  bool move_to_drives(std::uint32_t entry);
  bool is_leased(std::uint32_t entry) const { return rules_.lease_ns != 0 && leased_until_[entry] > now_; }
  Medium& medium_of(std::uint32_t entry) { return entries_[entry].on_drives ? drives_ : memory_; }
  void lose_node(std::uint32_t node);
  void grow();
  void unlink(std::uint32_t entry);
  void link_newest(std::uint32_t entry);
  void erase_cell(std::size_t cell);

  Bytes capacity_;    // in units
  StoreRules rules_;  // downs: in the order of their begins
  TimeNs now_ = 0;
  std::size_t next_down_ = 0;      // the first one whose pages are not lost yet
  Bytes size_ = 0, size_max_ = 0;  // in units, on both media
  Bytes drive_capacity_ = 0;       // in units
  TimeNs drives_busy_until_ = 0;
  Pages evicted_ = 0;
  std::vector<std::uint32_t> table_;  // entry numbers; at most half full
  std::vector<Entry> entries_;
  std::vector<TimeNs> leased_until_;  // by entry; empty without leases
  std::uint32_t free_ = kNone;        // list of free entries, linked by Entry::older
  Medium memory_, drives_;
};

}  // namespace kvtwin
