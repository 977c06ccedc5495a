// A flat hash table with linear probing, for tables far larger than the CPU caches. A look-up costs one cache miss,
// because probing begins where a cache line does. Places are roughly in the order of hashes. Erasing leaves no mark.
// Requires: the owner keeps the table from becoming full, because a search ends at an empty place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

namespace kvtwin {

// Requires of Place: 8 bytes; Place{} is empty; bool is_empty() const; std::uint32_t spread() const, a uniform number
// that decides the place.
template <typename Place>
class FlatTable {
 public:
  static constexpr std::size_t kLine = 64 / sizeof(Place);  // places per cache line

  std::size_t lines() const { return lines_.size(); }
  std::size_t places() const { return kLine * lines_.size(); }
  Place& at(std::size_t place) { return lines_[place / kLine].places[place % kLine]; }
  const Place& at(std::size_t place) const { return lines_[place / kLine].places[place % kLine]; }

  // Require lines() > 0. The first place to probe, and the place to probe after a place.
  std::size_t home_of(std::uint32_t spread) const { return kLine * (std::uint64_t{spread} * lines_.size() >> 32); }
  std::size_t after(std::size_t place) const { return place + 1 < places() ? place + 1 : 0; }
  // Returns the first place on the probe path for which is_it(place) is true; the empty place at the end of the path if
  // there is none.
  template <typename Is>
  std::size_t find(std::uint32_t spread, Is is_it) const {
    const CacheLine* const lines = lines_.data();
    for (std::size_t line = home_of(spread) / kLine;; line = line + 1 < lines_.size() ? line + 1 : 0) {
      for (std::size_t i = 0; i < kLine; ++i) {
        const Place& place = lines[line].places[i];
        if (place.is_empty() || is_it(place)) return kLine * line + i;
      }
    }
  }

  // Warms the CPU cache for a search that begins at home_of(spread).
  void prefetch(std::uint32_t spread) const { __builtin_prefetch(&lines_[home_of(spread) / kLine]); }

  void erase(std::size_t place) {
    // Places behind the gap move up if they lie there only because their own place was taken.
    for (std::size_t next = after(place); !at(next).is_empty(); next = after(next)) {
      if (distance(home_of(at(next).spread()), next) < distance(place, next)) continue;
      at(place) = at(next);
      place = next;
    }
    at(place) = {};
  }

  // Resizes the table to `lines` lines. Keeps the places for which keep(place) is true, and returns their number. Reads
  // and writes both tables from one end to the other.
  template <typename Keep>
  std::size_t rebuild(std::size_t lines, Keep keep) {
    const std::pmr::vector<CacheLine> before = std::exchange(lines_, std::pmr::vector<CacheLine>(lines));
    std::size_t kept = 0;
    for (const CacheLine& line : before) {
      for (const Place& known : line.places) {
        if (known.is_empty() || !keep(known)) continue;
        at(find(known.spread(), [](const Place&) { return false; })) = known;
        ++kept;
      }
    }
    return kept;
  }

 private:
  struct alignas(64) CacheLine {
    std::array<Place, kLine> places{};
  };

  std::size_t distance(std::size_t from, std::size_t to) const { return to >= from ? to - from : to + places() - from; }

  std::pmr::vector<CacheLine> lines_;
};

}  // namespace kvtwin
