// A word for each page that was seen: the upper bits are the page's fingerprint, the lower ones its state. The words
// are in the order in which the pages were seen first. Pages of a chain mostly come together and in order, so after one
// page the next one is found at the next position, without a search.
//
// Cost: 8 bytes per page, and 4 in a hash table that is 3/8 to 3/4 full. Thread: one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include "policy/base/check.hpp"

namespace kvtwin {

class PageStates {
 public:
  static constexpr std::uint64_t kStateBits = (std::uint64_t{1} << 10) - 1;

  // Where a caller expects the next page: behind the last one that was found through this cursor.
  class Cursor {
    friend class PageStates;
    std::uint32_t next = 0;
  };

  // Returns a fingerprint: never 0, and with all state bits 0.
  static std::uint64_t fingerprint(std::uint64_t word) { return (word & ~kStateBits) | (kStateBits + 1); }

  // Returns the word of the page; null if the page is not known. Valid until the next add().
  const std::uint64_t* find(std::uint64_t page, Cursor& cursor) const {
    if (expects(page, cursor)) return &words_[cursor.next++];
    if (words_.empty()) return nullptr;
    const std::uint32_t entry = table_[cell_of(page)];
    if (entry == 0) return nullptr;
    cursor.next = at(entry);
    return &words_[cursor.next++];
  }

  // The same, but adds an unknown page, with the state 0. Returns whether the page was added, too.
  std::pair<std::uint64_t*, bool> add(std::uint64_t page, Cursor& cursor) {
    if (expects(page, cursor)) return {&words_[cursor.next++], false};
    if (4 * (words_.size() + 1) > 3 * table_.size()) grow();
    std::uint32_t& entry = table_[cell_of(page)];
    const bool is_new = entry == 0;
    if (is_new) {
      entry = entry_of(page, words_.size());
      words_.push_back(page);
    }
    cursor.next = at(entry);
    return {&words_[cursor.next++], is_new};
  }

  // Warms the CPU cache for a search of the page.
  void prefetch(std::uint64_t page) const {
    if (!table_.empty()) __builtin_prefetch(&table_[home_of(page)]);
  }

 private:
  bool expects(std::uint64_t page, const Cursor& cursor) const {
    return cursor.next < words_.size() && (words_[cursor.next] ^ page) <= kStateBits;
  }
  std::size_t home_of(std::uint64_t page) const { return (page >> 32) * table_.size() >> 32; }
  // An entry has the position + 1 in its lower bits, and some bits of the fingerprint above, so that nearly no other
  // word is read.
  std::uint32_t tag_of(std::uint64_t page) const { return static_cast<std::uint32_t>(page >> 11) << position_bits_; }
  std::uint32_t entry_of(std::uint64_t page, std::size_t position) const {
    return tag_of(page) | static_cast<std::uint32_t>(position + 1);
  }
  std::uint32_t at(std::uint32_t entry) const { return (entry & ((std::uint32_t{1} << position_bits_) - 1)) - 1; }
  std::size_t after(std::size_t cell) const { return cell + 1 < table_.size() ? cell + 1 : 0; }

  // Returns the cell of the page, or the empty cell for it.
  std::size_t cell_of(std::uint64_t page) const {
    const std::uint32_t tag = tag_of(page);
    std::size_t cell = home_of(page);
    for (; table_[cell] != 0; cell = after(cell)) {
      const bool may_be = (table_[cell] ^ tag) >> position_bits_ == 0;
      if (may_be && (words_[at(table_[cell])] ^ page) <= kStateBits) break;
    }
    return cell;
  }

  void grow() {
    constexpr std::size_t kAhead = 16;
    const std::size_t cells = std::max<std::size_t>(1024, 2 * table_.size());
    KV_CHECK(cells < std::size_t{1} << 31, "the history has a number for every page");
    table_ = std::pmr::vector<std::uint32_t>();  // the old one goes first
    table_.resize(cells);
    position_bits_ = static_cast<unsigned>(std::bit_width(cells));
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (i + kAhead < words_.size()) prefetch(words_[i + kAhead]);
      std::size_t cell = home_of(words_[i]);
      while (table_[cell] != 0) cell = after(cell);
      table_[cell] = entry_of(words_[i], i);
    }
  }

  std::pmr::vector<std::uint64_t> words_;
  std::pmr::vector<std::uint32_t> table_;  // 0: empty
  unsigned position_bits_ = 0;
};

}  // namespace kvtwin
