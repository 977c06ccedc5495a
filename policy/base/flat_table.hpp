// A flat hash table with linear probing, for tables far larger than any cache: what a look-up costs is a miss here, so
// probing begins where a cache line does. Places are in the order of hashes, about. What is taken out leaves no mark.
// Who keeps it sees to it that it is never full: a search ends at an empty place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

namespace kvtwin {

// Place: eight bytes; a Place{} is empty; bool is_empty() const; std::uint32_t spread() const, uniform, where it goes.
template <typename Place>
class FlatTable {
 public:
  static constexpr std::size_t kLine = 64 / sizeof(Place);  // places

  std::size_t lines() const { return lines_.size(); }
  std::size_t places() const { return kLine * lines_.size(); }
  Place& at(std::size_t place) { return lines_[place / kLine].places[place % kLine]; }
  const Place& at(std::size_t place) const { return lines_[place / kLine].places[place % kLine]; }

  // Of a table with lines: where probing begins, and how it goes on.
  std::size_t home_of(std::uint32_t spread) const { return kLine * (std::uint64_t{spread} * lines_.size() >> 32); }
  std::size_t after(std::size_t place) const { return place + 1 < places() ? place + 1 : 0; }
  // The first place of those that `is_it` says is the one looked for; the empty one where it would be if there is none.
  template <typename Is>
  std::size_t find(std::uint32_t spread, Is is_it) const {
    std::size_t place = home_of(spread);
    while (!at(place).is_empty() && !is_it(at(place))) place = after(place);
    return place;
  }

  void take_out(std::size_t place) {
    // Whatever came to lie behind the gap because its own place was taken moves up.
    for (std::size_t next = after(place); !at(next).is_empty(); next = after(next)) {
      if (distance(home_of(at(next).spread()), next) < distance(place, next)) continue;
      at(place) = at(next);
      place = next;
    }
    at(place) = {};
  }

  // To so many lines. What isn't to be kept goes; returns how many are there then. Both tables are gone through from
  // one end to the other.
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
