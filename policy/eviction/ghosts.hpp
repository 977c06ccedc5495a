// What a policy remembers of pages that have left the tier: a number for each, by page, for the `most` that left last;
// the one that left longest ago is forgotten first. A page is known by its key's first word, which is uniform: two of
// 2^24 remembered pages are taken for each other with a chance of 2^-16, and then share a history.
//
// Pages leave from their paths' ends on. A line has them in that order, so a path's pages are neighbours there, from
// the last one to the first: a run. A flat table tells where the runs' first pages, their heads, are in the line. A
// page is found if it is a head, or comes behind the page found before it (Walk). Nothing is missed so where a path's
// pages come back from the first one on; what is left of a run then gets its own head. In other tiers each page is a
// run. Both grow with what is remembered, the line to 16 or 32 bytes a page, the table to 20 to 58 a run.
//
// Where runs are short the table is far larger than any cache, and a run costs one cache miss in it: half of the places
// are empty. The line is read only where 32 bits of the page's hash agree. The oldest is forgotten by the line alone:
// what the table has of it is stale, as its number in the line says, and goes when the next page comes by; about one
// place in each cache line is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "policy/base/check.hpp"
#include "policy/base/flat_table.hpp"
#include "policy/base/types.hpp"
#include "policy/eviction.hpp"
#include "policy/eviction/line.hpp"

namespace kvtwin {

class Ghosts {
 public:
  Ghosts(Pages most, const EvictionSetup& setup) : most_(std::min(most, kMost)), in_runs_(setup.prefix_closed) {}

  // How far one has come along a path, asking for page after page, from the first one on that isn't in the tier.
  class Walk {
    friend class Ghosts;
    std::uint32_t number = 0;  // of the last page that was asked for
    bool inside = false;       // it is remembered
  };
  // Null if it isn't remembered. Borrowed until the next change.
  const std::uint64_t* find(const PageKey& key, Walk& walk) const {
    walk.inside = size() > 0 && locate(page_of(key), walk);
    return walk.inside ? &line_.at(walk.number).value : nullptr;
  }
  // The same, and it isn't remembered any more. Afterwards the walk is to be left.
  std::optional<std::uint64_t> take(const PageKey& key, Walk& walk) {
    const Walk before = walk;
    if (find(key, walk) == nullptr || walk.number != before.number - 1) leave(before);
    if (!walk.inside) return std::nullopt;
    const Entry entry = line_.at(walk.number);
    if (entry.head) clear(place_of_head(entry.page, walk.number));
    forget(walk.number);
    return entry.value;
  }
  void leave(const Walk& walk) {
    const std::uint32_t rest = walk.number - 1;
    if (walk.inside && line_.reaches(rest) && !line_.at(rest).is_gap() && !line_.at(rest).head) name_head(rest);
  }

  void forget_oldest() { forget(line_.front()); }
  Pages size() const { return line_.size(); }

  // ---- of a run of pages
  // They are back: each one's place among them and number to `each`, if it is remembered. None is any more.
  template <typename Each>
  void recall_each(std::span<const PageKey> keys, Each each) {
    Walk walk;
    for (std::size_t i = 0; i < keys.size() && size() > 0; ++i) {
      if (const auto value = take(keys[i], walk)) each(i, *value);
    }
    leave(walk);
  }
  // The same: the last one's number, 0 if it isn't remembered.
  std::uint64_t recall(std::span<const PageKey> keys) {
    std::uint64_t last = 0;
    recall_each(keys, [&](std::size_t i, std::uint64_t value) {
      if (i + 1 == keys.size()) last = value;
    });
    return last;
  }
  // The last `pages` of them leave, from the end on. None of them is remembered: they were recalled when they came.
  // (Else it is remembered twice for a while, one of the two being found.)
  void put_tail(std::span<const PageKey> keys, Pages pages, std::uint64_t value) {
    if (most_ == 0 || pages == 0) return;
    const std::size_t first = keys.size() - pages;
    // Behind what left last, of the same path?
    if (in_runs_ && before_last_ == page_of(keys.back()) && size() > 0 && line_.at(line_.back()).head) {
      Entry& last = line_.at(line_.back());
      clear(place_of_head(last.page, line_.back()));
      last.head = false;
      --heads_;
    }
    for (std::size_t i = keys.size(); i-- > first;) {
      if (size() == most_) forget_oldest();
      line_.push({page_of(keys[i]), value}, [this](const Entry& entry, auto before, auto now) {
        if (entry.head) table_.at(place_of_head(entry.page, before)).number = now;
      });
      if (!in_runs_ || i == first) name_head(line_.back());
    }
    before_last_ = first == 0 ? 0 : page_of(keys[first - 1]);
  }
  // How many of the first ones have the first one's number, or are not remembered if it isn't.
  Pages shared_history_prefix(std::span<const PageKey> keys) const {
    if (size() == 0) return keys.size();
    Walk walk;
    const std::uint64_t* const first = find(keys.front(), walk);
    std::size_t pages = 1;
    for (; pages < keys.size(); ++pages) {
      const std::uint64_t* const other = find(keys[pages], walk);
      if ((first == nullptr) != (other == nullptr) || (first != nullptr && *first != *other)) break;
    }
    return pages;
  }
  // Is the last one of a path's first pages remembered? It is in the run of the last head among them.
  bool remembers_last(std::span<const PageKey> keys) const {
    if (size() == 0) return false;
    for (std::size_t behind = 0; behind < (in_runs_ ? keys.size() : 1); ++behind) {
      Walk walk;
      if (find(keys[keys.size() - 1 - behind], walk) == nullptr) continue;
      const std::uint32_t number = walk.number - static_cast<std::uint32_t>(behind);
      return line_.reaches(number) && line_.at(number).page == page_of(keys.back());
    }
    return false;
  }

 private:
  static constexpr std::uint64_t kPages = ~std::uint64_t{0} >> 1;  // as many have names
  struct Entry {
    Entry() = default;
    Entry(std::uint64_t of, std::uint64_t number) : page(of & kPages), value(number) {}

    std::uint64_t page : 63 = 0, head : 1 = 0;
    std::uint64_t value = 0;
    bool is_gap() const { return page == 0; }
  };
  struct Place {
    std::uint32_t hash = 0, number = 0;

    bool is_empty() const { return hash == 0; }
    std::uint32_t spread() const { return hash; }
  };
  static constexpr Pages kMost = 1U << 31;

  static std::uint64_t page_of(const PageKey& key) { return std::max<std::uint64_t>(1, key.words[0] >> 1); }
  static std::uint32_t hash_of(std::uint64_t page) {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>((page * 0x9e3779b97f4a7c15ULL) >> 32));
  }

  // Is it remembered, and where?
  bool locate(std::uint64_t page, Walk& walk) const {
    if (const std::uint32_t next = walk.number - 1; walk.inside && line_.reaches(next) && line_.at(next).page == page) {
      walk.number = next;
      return true;
    }
    const Place& place = table_.at(place_of(page));
    walk.number = place.number;
    return !place.is_empty();
  }

  // Where a head of that page is, or the empty place where it would be.
  std::size_t place_of(std::uint64_t page) const {
    const std::uint32_t hash = hash_of(page);
    return table_.find(hash, [&](const Place& at) {
      return at.hash == hash && line_.reaches(at.number) && line_.at(at.number).page == page;
    });
  }
  std::size_t place_of_head(std::uint64_t page, std::uint32_t number) const {
    const std::uint32_t hash = hash_of(page);
    const std::size_t place =
        table_.find(hash, [&](const Place& at) { return at.number == number && at.hash == hash; });
    KV_CHECK(!table_.at(place).is_empty(), "a head is found in the table");
    return place;
  }

  void name_head(std::uint32_t number) {
    if (const std::size_t places = table_.places(); 10 * (heads_ + 1) > 4 * places) {
      rebuild(std::max<std::size_t>(2, std::min<std::size_t>(2 * table_.lines(), most_ / 3 + 1)));
    } else if (10 * (used_ + 1) > 7 * places) {
      rebuild(table_.lines());
    }
    Entry& entry = line_.at(number);
    entry.head = true;
    ++heads_;
    const std::uint32_t hash = hash_of(entry.page);
    table_.at(make_place(hash)) = {hash, number};
    ++used_;
  }

  void forget(std::uint32_t number) {
    heads_ -= line_.at(number).head;
    line_.take(number);
  }

  // Without what is stale.
  void rebuild(std::size_t lines) {
    used_ = table_.rebuild(lines, [this](const Place& known) { return line_.reaches(known.number); });
  }

  // An empty place for a head. Of what is stale on the way there, one gives its place; the rest goes.
  std::size_t make_place(std::uint32_t hash) {
    constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t made = kNone;
    std::size_t place = table_.home_of(hash);
    while (!table_.at(place).is_empty()) {
      if (line_.reaches(table_.at(place).number)) {
        place = table_.after(place);
      } else if (made == kNone) {
        made = place;
        place = table_.after(place);
      } else {
        clear(place);  // and what moves up is looked at in turn
      }
    }
    if (made == kNone) return place;
    table_.at(made) = {};
    --used_;
    return made;
  }

  void clear(std::size_t place) {
    table_.take_out(place);
    --used_;
  }

  const Pages most_;
  const bool in_runs_;  // else each page is a head
  Line<Entry> line_;
  FlatTable<Place> table_;
  std::size_t used_ = 0;  // of its places, by heads or what is stale
  std::size_t heads_ = 0;
  std::uint64_t before_last_ = 0;  // the page that comes before the one that left last, on its path; 0: isn't known
};

}  // namespace kvtwin
