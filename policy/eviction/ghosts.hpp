// What a policy remembers of pages that have left the tier: a number for each, by page, for the `most` that left last;
// the one that left longest ago is forgotten first. A line of them in the order in which they left, and a flat table
// with linear probing over their numbers in it; both grow with what is remembered, to 36 to 90 bytes a page.
//
// A page is known by its key's first word, which is uniform: two of 2^24 remembered pages are taken for each other with
// a chance of 2^-17, and then share a history.
//
// The table is far larger than any cache. Pages come in runs, which lie together in the line, so what a page costs is a
// miss in the table. It is asked for some pages ahead; so that this is all, probing begins where a cache line does, and
// half of the places are empty. The line is read only where 32 bits of the page's hash agree. The oldest is forgotten
// by the line alone: what the table has of it is stale, as its number in the line says, and goes when the next page
// comes by; about one place in each cache line is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include "policy/eviction/line.hpp"
#include "policy/types.hpp"

namespace kvtwin {

class Ghosts {
 public:
  explicit Ghosts(Pages most) : most_(std::min(most, kMost)) {}

  // Null if it isn't remembered. Borrowed until the next change.
  const std::uint64_t* find(const PageKey& key) const {
    if (size() == 0) return nullptr;
    const Place& place = at(place_of(page_of(key)));
    return place.hash == 0 ? nullptr : &line_.at(place.number).value;
  }

  // As the one that left last; what was known of it is replaced.
  void put(const PageKey& key, std::uint64_t value) {
    if (most_ == 0) return;
    if (const std::size_t places = kLine * table_.size(); 10 * (size() + 1) > 4 * places) {
      rebuild(std::max<std::size_t>(2, std::min<std::size_t>(2 * table_.size(), most_ / 3 + 1)));
    } else if (10 * (used_ + 1) > 7 * places) {
      rebuild(table_.size());
    }
    const std::uint64_t page = page_of(key);
    const std::uint32_t hash = hash_of(page);
    const std::size_t place = make_place(page, hash);
    if (size() == most_) forget_oldest();
    const std::uint32_t number = line_.push({page, value}, [this](const Entry& entry, auto before, auto now) {
      const std::uint32_t moved = hash_of(entry.page);
      std::size_t its = home_of(moved);
      while (at(its).number != before || at(its).hash != moved) its = after(its);
      at(its).number = now;
    });
    at(place) = {hash, number};
    ++used_;
  }

  bool forget(const PageKey& key) {
    if (size() == 0) return false;
    const std::size_t place = place_of(page_of(key));
    if (at(place).hash == 0) return false;
    remove(place);
    return true;
  }
  void forget_oldest() { line_.take(line_.front()); }

  Pages size() const { return line_.size(); }

  // ---- of a run of pages
  // They are back: each one's number to `each`, if it is remembered. None is any more.
  template <typename Each>
  void recall_each(std::span<const PageKey> keys, Each each) {
    for (std::size_t i = 0; i < keys.size() && size() > 0; ++i) {
      look_ahead(keys, i);
      const std::size_t place = place_of(page_of(keys[i]));
      if (at(place).hash == 0) continue;
      each(line_.at(at(place).number).value);
      remove(place);
    }
  }
  // The same: the last one's number, 0 if it isn't remembered.
  std::uint64_t recall(std::span<const PageKey> keys) {
    const std::uint64_t* const last = find(keys.back());
    const std::uint64_t value = last == nullptr ? 0 : *last;
    recall_each(keys, [](std::uint64_t) {});
    return value;
  }
  // The last `pages` of them leave, from the end on.
  void put_tail(std::span<const PageKey> keys, Pages pages, std::uint64_t value) {
    for (std::size_t i = 0; i < pages; ++i) {
      const std::span<const PageKey> rest = keys.first(keys.size() - i);
      if (i == 0) prefetch(rest.last(std::min<std::size_t>(kAhead, pages)));
      if (i + kAhead < pages) prefetch(rest.subspan(rest.size() - 1 - kAhead, 1));
      put(rest.back(), value);
    }
    if (pages < keys.size()) prefetch(keys.subspan(keys.size() - pages - 1, 1));  // who goes next, most often
  }
  // How many of the first ones have the first one's number, or are not remembered if it isn't.
  Pages alike(std::span<const PageKey> keys) const {
    if (size() == 0) return keys.size();
    look_ahead(keys, 0);
    const std::uint64_t* const first = find(keys.front());
    std::size_t pages = 1;
    for (; pages < keys.size(); ++pages) {
      look_ahead(keys, pages);
      const std::uint64_t* const other = find(keys[pages]);
      if ((first == nullptr) != (other == nullptr) || (first != nullptr && *first != *other)) break;
    }
    return pages;
  }
  [[gnu::always_inline]] void expect(const PageKey& page) const { prefetch({&page, 1}); }
  // To be called for each page i in turn, before it is looked for.
  [[gnu::always_inline]] void look_ahead(std::span<const PageKey> keys, std::size_t i) const {
    if (i == 0) prefetch(keys.first(std::min(kAhead, keys.size())));
    if (i + kAhead < keys.size()) prefetch(keys.subspan(i + kAhead, 1));
  }

 private:
  struct Entry {
    std::uint64_t page = 0, value = 0;
    bool is_gap() const { return page == 0; }
  };
  struct Place {
    std::uint32_t hash = 0, number = 0;  // hash 0: it is empty
  };
  static constexpr std::size_t kLine = 8;
  struct alignas(64) CacheLine {
    std::array<Place, kLine> places{};
  };
  static constexpr Pages kMost = 1U << 31;
  static constexpr std::size_t kAhead = 32;

  static std::uint64_t page_of(const PageKey& key) { return std::max<std::uint64_t>(1, key.words[0]); }
  static std::uint32_t hash_of(std::uint64_t page) {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>((page * 0x9e3779b97f4a7c15ULL) >> 32));
  }
  Place& at(std::size_t place) { return table_[place / kLine].places[place % kLine]; }
  const Place& at(std::size_t place) const { return table_[place / kLine].places[place % kLine]; }
  std::size_t home_of(std::uint32_t hash) const { return kLine * static_cast<std::size_t>(hash * table_.size() >> 32); }
  std::size_t after(std::size_t place) const { return place + 1 < kLine * table_.size() ? place + 1 : 0; }
  std::size_t distance(std::size_t from, std::size_t to) const {
    return to >= from ? to - from : to + kLine * table_.size() - from;
  }

  // Inlined whatever it takes: to GCC functions that do nothing else have no effect, and it drops the calls.
  [[gnu::always_inline]] void prefetch(std::span<const PageKey> keys) const {
    if (table_.empty()) return;
    for (const PageKey& key : keys) __builtin_prefetch(&at(home_of(hash_of(page_of(key)))));
  }

  // Where it is, or the empty place where it would be.
  std::size_t place_of(std::uint64_t page) const {
    const std::uint32_t hash = hash_of(page);
    std::size_t place = home_of(hash);
    for (; at(place).hash != 0; place = after(place)) {
      const std::uint32_t number = at(place).number;
      if (at(place).hash == hash && line_.reaches(number) && line_.at(number).page == page) break;
    }
    return place;
  }

  // Without what is stale. Places are in the order of hashes, about, so both tables are gone through from one end to
  // the other.
  void rebuild(std::size_t lines) {
    const std::pmr::vector<CacheLine> before = std::exchange(table_, std::pmr::vector<CacheLine>(lines));
    used_ = 0;
    for (const CacheLine& line : before) {
      for (const Place& known : line.places) {
        if (known.hash == 0 || !line_.reaches(known.number)) continue;
        std::size_t place = home_of(known.hash);
        while (at(place).hash != 0) place = after(place);
        at(place) = known;
        ++used_;
      }
    }
  }

  // An empty place for the page, which is forgotten. Of what is stale on the way there, one gives its place; the rest
  // goes.
  std::size_t make_place(std::uint64_t page, std::uint32_t hash) {
    constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t made = kNone;
    std::size_t place = home_of(hash);
    for (; at(place).hash != 0;) {
      const std::uint32_t number = at(place).number;
      const bool stale = !line_.reaches(number);
      const bool found = !stale && at(place).hash == hash && line_.at(number).page == page;
      if (found) line_.take(number);
      if (!stale && !found) {
        place = after(place);
      } else if (made == kNone) {
        made = place;
        place = after(place);
      } else {
        clear(place);  // and what moves up is looked at in turn
      }
      if (found) break;
    }
    if (made == kNone) return place;
    at(made) = {};
    --used_;
    return made;
  }

  void remove(std::size_t place) {
    line_.take(at(place).number);
    clear(place);
  }

  void clear(std::size_t place) {
    // Whatever came to lie behind the gap because its own place was taken moves up.
    for (std::size_t next = after(place); at(next).hash != 0; next = after(next)) {
      if (distance(home_of(at(next).hash), next) < distance(place, next)) continue;
      at(place) = at(next);
      place = next;
    }
    at(place) = {};
    --used_;
  }

  const Pages most_;
  Line<Entry> line_;
  std::pmr::vector<CacheLine> table_;
  std::size_t used_ = 0;  // of its places, by what is remembered or stale
};

}  // namespace kvtwin
