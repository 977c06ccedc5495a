// The memory of pages that have left the tier (ghosts): one number per page, for the `max_pages` pages that left last.
// The page that left longest ago is forgotten first. The first word of the key identifies a page. Keys are uniform:
// among 2^24 remembered pages, two are confused with a probability of 2^-16. Confused pages share one history.
//
//   line_    pages in the order in which they left. A path leaves from its end, so its pages are neighbours here, from
//            the last page to the first: a run. The head of a run is its first page on the path.
//   table_   flat hash table from page to line number, for the heads of the runs only
//
// A look-up finds a page that is a head, or that follows the page found before (Walk). So no page is missed as long as
// the pages of a path come back from the first one on; the rest of a partly returned run gets a new head. In tiers that
// are not prefix-closed, each page is a run of its own. The line takes 16 to 32 bytes per page, the table 20 to 58
// bytes per run.
//
// Cost: if runs are short, the table is far larger than the CPU caches, and a run costs one cache miss in the table,
// because half of the places are empty. The line is read only if 32 bits of the page's hash match. To forget the oldest
// page, only the line changes. The table's entry is then stale, because its number is out of the line's range. The next
// insertion that meets the stale entry removes it. About one place in each cache line is stale.
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
  Ghosts(Pages max_pages, const EvictionSetup& setup)
      : max_pages_(std::min(max_pages, kMaxPages)), in_runs_(setup.prefix_closed) {}

  // The position of a caller that looks up the pages of one path in order, from the first page that is not in the tier.
  class Walk {
    friend class Ghosts;
    std::uint32_t number = 0;  // line number of the page that was looked up last
    bool inside = false;       // that page is remembered
  };
  // Looks up the next page of the walk. Returns null if the page is not remembered. Borrowed until the next change.
  const std::uint64_t* find(const PageKey& key, Walk& walk) const {
    walk.inside = size() > 0 && locate(page_of(key), walk);
    return walk.inside ? &line_.at(walk.number).value : nullptr;
  }
  // Like find(), and forgets the page. After its last take(), the caller ends the walk.
  std::optional<std::uint64_t> take(const PageKey& key, Walk& walk) {
    const Walk before = walk;
    if (find(key, walk) == nullptr || walk.number != before.number - 1) end_walk(before);
    if (!walk.inside) return std::nullopt;
    const Entry entry = line_.at(walk.number);
    if (entry.head) remove_place(place_of_head(entry.page, walk.number));
    forget(walk.number);
    return entry.value;
  }
  // Ends the walk of take(): if a run was taken in part, the rest of the run gets a head.
  void end_walk(const Walk& walk) {
    const std::uint32_t rest = walk.number - 1;
    if (walk.inside && line_.in_range(rest) && !line_.at(rest).is_gap() && !line_.at(rest).head) add_head(rest);
  }

  void forget_oldest() { forget(line_.front()); }
  Pages size() const { return line_.size(); }

  // ---- several pages of a path, in order
  // The pages are back in the tier. Calls each(index in keys, number) for each remembered page, and forgets the page.
  template <typename Each>
  void recall_each(std::span<const PageKey> keys, Each each) {
    Walk walk;
    for (std::size_t i = 0; i < keys.size() && size() > 0; ++i) {
      if (const auto value = take(keys[i], walk)) each(i, *value);
    }
    end_walk(walk);
  }
  // Like recall_each(). Returns the last page's number; 0 if the last page is not remembered.
  std::uint64_t recall(std::span<const PageKey> keys) {
    std::uint64_t last = 0;
    recall_each(keys, [&](std::size_t i, std::uint64_t value) {
      if (i + 1 == keys.size()) last = value;
    });
    return last;
  }
  // The last `pages` pages of `keys` leave the tier, from the end on. Requires: none of them is remembered, because
  // recall() removed them when they entered. (A page that is remembered nevertheless gets a second entry. A look-up
  // returns either one.)
  void remember_tail(std::span<const PageKey> keys, Pages pages, std::uint64_t value) {
    if (max_pages_ == 0 || pages == 0) return;
    const std::size_t first = keys.size() - pages;
    // Do these pages continue the run of the page that left last? Then that run's head becomes an inner page.
    if (in_runs_ && before_last_ == page_of(keys.back()) && size() > 0 && line_.at(line_.back()).head) {
      Entry& last = line_.at(line_.back());
      remove_place(place_of_head(last.page, line_.back()));
      last.head = false;
      --heads_;
    }
    for (std::size_t i = keys.size(); i-- > first;) {
      if (size() == max_pages_) forget_oldest();
      line_.push({page_of(keys[i]), value}, [this](const Entry& entry, auto before, auto now) {
        if (entry.head) table_.at(place_of_head(entry.page, before)).number = now;
      });
      if (!in_runs_ || i == first) add_head(line_.back());
    }
    before_last_ = first == 0 ? 0 : page_of(keys[first - 1]);
  }
  // Returns how many of the first pages have the same number as the first page. If the first page is not remembered:
  // how many are not.
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
  // `keys`: the first pages of a path. Returns whether the last of them is remembered. That page can only be in the run
  // of the last head among `keys`.
  bool remembers_last(std::span<const PageKey> keys) const {
    if (size() == 0) return false;
    for (std::size_t behind = 0; behind < (in_runs_ ? keys.size() : 1); ++behind) {
      Walk walk;
      if (find(keys[keys.size() - 1 - behind], walk) == nullptr) continue;
      const std::uint32_t number = walk.number - static_cast<std::uint32_t>(behind);
      return line_.in_range(number) && line_.at(number).page == page_of(keys.back());
    }
    return false;
  }

 private:
  static constexpr std::uint64_t kPageMask = ~std::uint64_t{0} >> 1;  // a page is identified by 63 bits
  struct Entry {
    Entry() = default;
    Entry(std::uint64_t of, std::uint64_t number) : page(of & kPageMask), value(number) {}

    std::uint64_t page : 63 = 0, head : 1 = 0;
    std::uint64_t value = 0;
    bool is_gap() const { return page == 0; }
  };
  struct Place {
    std::uint32_t hash = 0, number = 0;

    bool is_empty() const { return hash == 0; }
    std::uint32_t spread() const { return hash; }
  };
  static constexpr Pages kMaxPages = 1U << 31;

  static std::uint64_t page_of(const PageKey& key) { return std::max<std::uint64_t>(1, key.words[0] >> 1); }
  static std::uint32_t hash_of(std::uint64_t page) {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>((page * 0x9e3779b97f4a7c15ULL) >> 32));
  }

  // Returns whether the page is remembered. Sets walk.number to the page's line number.
  bool locate(std::uint64_t page, Walk& walk) const {
    if (const std::uint32_t next = walk.number - 1;
        walk.inside && line_.in_range(next) && line_.at(next).page == page) {
      walk.number = next;
      return true;
    }
    const Place& place = table_.at(place_of(page));
    walk.number = place.number;
    return !place.is_empty();
  }

  // Returns the table place of the page's head, or the empty place where the head would be.
  std::size_t place_of(std::uint64_t page) const {
    const std::uint32_t hash = hash_of(page);
    return table_.find(hash, [&](const Place& at) {
      return at.hash == hash && line_.in_range(at.number) && line_.at(at.number).page == page;
    });
  }
  std::size_t place_of_head(std::uint64_t page, std::uint32_t number) const {
    const std::uint32_t hash = hash_of(page);
    const std::size_t place =
        table_.find(hash, [&](const Place& at) { return at.number == number && at.hash == hash; });
    KV_CHECK(!table_.at(place).is_empty(), "a head is found in the table");
    return place;
  }

  void add_head(std::uint32_t number) {
    if (const std::size_t places = table_.places(); 10 * (heads_ + 1) > 4 * places) {
      rebuild(std::max<std::size_t>(2, std::min<std::size_t>(2 * table_.lines(), max_pages_ / 3 + 1)));
    } else if (10 * (used_places_ + 1) > 7 * places) {
      rebuild(table_.lines());
    }
    Entry& entry = line_.at(number);
    entry.head = true;
    ++heads_;
    const std::uint32_t hash = hash_of(entry.page);
    table_.at(find_empty_place(hash)) = {hash, number};
    ++used_places_;
  }

  void forget(std::uint32_t number) {
    heads_ -= line_.at(number).head;
    line_.take(number);
  }

  // Resizes the table to `lines` cache lines, without the stale entries.
  void rebuild(std::size_t lines) {
    used_places_ = table_.rebuild(lines, [this](const Place& known) { return line_.in_range(known.number); });
  }

  // Returns an empty place for a head. The first stale entry on the way gives up its place, the other stale entries are
  // removed.
  std::size_t find_empty_place(std::uint32_t hash) {
    constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t made = kNone;
    std::size_t place = table_.home_of(hash);
    while (!table_.at(place).is_empty()) {
      if (line_.in_range(table_.at(place).number)) {
        place = table_.after(place);
      } else if (made == kNone) {
        made = place;
        place = table_.after(place);
      } else {
        remove_place(place);  // an entry that moves up to this place is checked next
      }
    }
    if (made == kNone) return place;
    table_.at(made) = {};
    --used_places_;
    return made;
  }

  void remove_place(std::size_t place) {
    table_.erase(place);
    --used_places_;
  }

  const Pages max_pages_;
  const bool in_runs_;  // false: each page is a head
  Line<Entry> line_;
  FlatTable<Place> table_;
  std::size_t used_places_ = 0;  // places of the table that heads or stale entries use
  std::size_t heads_ = 0;
  std::uint64_t before_last_ = 0;  // the page before the one that left last, on the same path; 0 = unknown
};

}  // namespace kvtwin
