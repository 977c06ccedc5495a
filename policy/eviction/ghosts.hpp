// What a policy remembers of pages that have left the tier: a number for each, by page, for the `most` that left last;
// the one that left longest ago is forgotten first. A flat table with linear probing over entries in a list; it grows
// with what is remembered, to 32 to 64 bytes a page.
//
// A page is known by its key's first word, which is uniform: two of 2^24 remembered pages are taken for each other with
// a chance of 2^-17, and then share a history.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/types.hpp"

namespace kvtwin {

class Ghosts {
 public:
  explicit Ghosts(Pages most) : most_(std::min<Pages>(most, kNone - 1)) {}

  // Null if it isn't remembered. Borrowed until the next change.
  const std::uint64_t* find(const PageKey& key) const {
    const std::size_t at = place_of(key.words[0]);
    return table_.empty() || table_[at] == kNone ? nullptr : &entries_[table_[at]].value;
  }

  // As the one that left last; what was known of it is replaced.
  void put(const PageKey& key, std::uint64_t value) {
    if (most_ == 0) return;
    forget(key);
    if (size_ == most_) forget_oldest();
    if (2 * (size_ + 1) > table_.size()) grow();
    std::uint32_t entry = free_;
    if (entry == kNone) {
      entry = static_cast<std::uint32_t>(entries_.size());
      entries_.emplace_back();
    } else {
      free_ = entries_[entry].newer;
    }
    entries_[entry] = {key.words[0], value, newest_, kNone};
    (newest_ == kNone ? oldest_ : entries_[newest_].newer) = entry;
    newest_ = entry;
    table_[place_of(key.words[0])] = entry;
    ++size_;
  }

  bool forget(const PageKey& key) {
    const std::size_t at = place_of(key.words[0]);
    if (table_.empty() || table_[at] == kNone) return false;
    remove(at);
    return true;
  }
  void forget_oldest() { remove(place_of(entries_[oldest_].page)); }

  Pages size() const { return size_; }

  // ---- of a run of pages
  // They are back: the last one's number, 0 if it isn't remembered. None is any more.
  std::uint64_t recall(std::span<const PageKey> keys) {
    const std::uint64_t* const last = find(keys.back());
    const std::uint64_t value = last == nullptr ? 0 : *last;
    for (const PageKey& key : keys) forget(key);
    return value;
  }
  // The last `pages` of them leave, from the end on.
  void put_tail(std::span<const PageKey> keys, Pages pages, std::uint64_t value) {
    for (std::size_t i = keys.size(); i > keys.size() - pages; --i) put(keys[i - 1], value);
  }
  // How many of the first ones have the first one's number, or are not remembered if it isn't.
  Pages alike(std::span<const PageKey> keys) const {
    if (size_ == 0) return keys.size();
    constexpr std::size_t kAhead = 8;  // the table is far larger than any cache
    const std::uint64_t* const first = find(keys.front());
    std::size_t pages = 1;
    for (; pages < keys.size(); ++pages) {
      if (pages + kAhead < keys.size()) __builtin_prefetch(&table_[home_of(keys[pages + kAhead].words[0])]);
      const std::uint64_t* const other = find(keys[pages]);
      if ((first == nullptr) != (other == nullptr) || (first != nullptr && *first != *other)) break;
    }
    return pages;
  }

 private:
  struct Entry {
    std::uint64_t page = 0, value = 0;
    std::uint32_t older = 0, newer = 0;  // newer: also the next free one
  };
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::size_t home_of(std::uint64_t page) const {
    return static_cast<std::size_t>((page * 0x9e3779b97f4a7c15ULL) >> shift_);
  }
  // Where it is, or the empty place where it would be.
  std::size_t place_of(std::uint64_t page) const {
    if (table_.empty()) return 0;
    std::size_t at = home_of(page);
    while (table_[at] != kNone && entries_[table_[at]].page != page) at = (at + 1) & (table_.size() - 1);
    return at;
  }

  void grow() {
    const std::size_t places = std::max<std::size_t>(16, 2 * table_.size());
    shift_ = 64U - static_cast<unsigned>(std::countr_zero(places));
    table_.assign(places, kNone);
    for (std::uint32_t at = oldest_; at != kNone; at = entries_[at].newer) table_[place_of(entries_[at].page)] = at;
  }

  void remove(std::size_t at) {
    const std::uint32_t entry = table_[at];
    Entry& gone = entries_[entry];
    (gone.older == kNone ? oldest_ : entries_[gone.older].newer) = gone.newer;
    (gone.newer == kNone ? newest_ : entries_[gone.newer].older) = gone.older;
    gone.newer = free_;
    free_ = entry;
    --size_;
    // Whatever came to lie behind the gap because its own place was taken moves up.
    const std::size_t mask = table_.size() - 1;
    for (std::size_t next = (at + 1) & mask; table_[next] != kNone; next = (next + 1) & mask) {
      const std::size_t home = home_of(entries_[table_[next]].page);
      if (((next - home) & mask) < ((next - at) & mask)) continue;
      table_[at] = table_[next];
      at = next;
    }
    table_[at] = kNone;
  }

  Pages most_;
  Pages size_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> table_;  // into entries_; a power of two, half of it empty or more
  unsigned shift_ = 63;
  std::uint32_t oldest_ = kNone, newest_ = kNone, free_ = kNone;
};

}  // namespace kvtwin
