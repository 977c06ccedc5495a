// Which of the index's nodes begins with a page: a flat table with linear probing over (32 bits of the page's hash,
// node number), 13 to 27 bytes a node. The nodes' own first keys are the truth: a node is read only where the hashes
// agree, and then its whole key is compared.
//
// A key's first word is uniform, and enough to place it by. Its table is far larger than any cache, so what a look-up
// costs is a miss here: probing begins where a cache line does, and four places in ten are empty. It comes in parts, by
// the hash's upper bits, that grow one by one: with ten million nodes the longest stall is that of one part's eight
// megabytes at most. What is taken out leaves no mark.
//
// It never shows an order, so that nobody can depend on one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <utility>
#include <vector>

#include "policy/check.hpp"
#include "policy/eviction.hpp"
#include "policy/types.hpp"

namespace kvtwin {

class NodeTable {
 public:
  // key_of(NodeId) is the first key of a node that is in the table. None if the page begins no node.
  template <typename KeyOf>
  NodeId find(const PageKey& key, KeyOf key_of) const {
    const std::uint32_t hash = hash_of(key);
    const Part& part = parts_[hash >> kPartShift];
    if (part.used == 0) return NodeId::none;
    for (std::size_t place = part.home_of(hash);; place = part.after(place)) {
      const Place& at = part.at(place);
      if (at.node == NodeId::none || (at.hash == hash && key_of(at.node) == key)) return at.node;
    }
  }

  // The same, most likely: by 32 bits of the page's hash alone. Reads no node.
  NodeId guess(const PageKey& key) const {
    const std::uint32_t hash = hash_of(key);
    const Part& part = parts_[hash >> kPartShift];
    if (part.used == 0) return NodeId::none;
    std::size_t place = part.home_of(hash);
    while (part.at(place).node != NodeId::none && part.at(place).hash != hash) place = part.after(place);
    return part.at(place).node;
  }

  // False, and nothing changes, if another node begins with it.
  template <typename KeyOf>
  [[nodiscard]] bool insert(const PageKey& key, NodeId node, KeyOf key_of) {
    const std::uint32_t hash = hash_of(key);
    Part& part = parts_[hash >> kPartShift];
    if (10 * (part.used + 1) > 6 * part.places()) part.grow();
    std::size_t place = part.home_of(hash);
    for (; part.at(place).node != NodeId::none; place = part.after(place)) {
      if (part.at(place).hash == hash && key_of(part.at(place).node) == key) return false;
    }
    part.at(place) = {hash, node};
    ++part.used;
    ++size_;
    return true;
  }

  // The node that begins with the page has got another number. Reads no node, nor does what follows.
  void renumber(const PageKey& key, NodeId before, NodeId now) {
    const std::uint32_t hash = hash_of(key);
    Part& part = parts_[hash >> kPartShift];
    part.at(part.place_of(hash, before)).node = now;
  }

  void erase(const PageKey& key, NodeId node) {
    const std::uint32_t hash = hash_of(key);
    Part& part = parts_[hash >> kPartShift];
    part.remove(part.place_of(hash, node));
    --part.used;
    --size_;
  }

  std::size_t size() const { return size_; }

  // The page will be looked for. Inlined whatever it takes: to GCC a function that does nothing else has no effect.
  [[gnu::always_inline]] void prefetch(const PageKey& key) const {
    const std::uint32_t hash = hash_of(key);
    const Part& part = parts_[hash >> kPartShift];
    if (part.used != 0) __builtin_prefetch(&part.at(part.home_of(hash)));
  }

 private:
  struct Place {
    std::uint32_t hash = 0;
    NodeId node = NodeId::none;  // none: it is empty
  };
  static constexpr std::size_t kLine = 8;
  struct alignas(64) CacheLine {
    std::array<Place, kLine> places{};
  };
  static constexpr std::size_t kPartBits = 5, kPartShift = 32 - kPartBits;

  struct Part {
    std::pmr::vector<CacheLine> lines;
    std::size_t used = 0;

    std::size_t places() const { return kLine * lines.size(); }
    Place& at(std::size_t place) { return lines[place / kLine].places[place % kLine]; }
    const Place& at(std::size_t place) const { return lines[place / kLine].places[place % kLine]; }
    std::size_t after(std::size_t place) const { return place + 1 < places() ? place + 1 : 0; }
    std::size_t distance(std::size_t from, std::size_t to) const {
      return to >= from ? to - from : to + places() - from;
    }
    std::size_t home_of(std::uint32_t hash) const {
      return kLine * (std::uint64_t{hash << kPartBits} * lines.size() >> 32);
    }

    std::size_t place_of(std::uint32_t hash, NodeId node) const {
      KV_CHECK(used > 0, "a node that is in the table is found there");
      std::size_t place = home_of(hash);
      for (; at(place).node != node; place = after(place)) {
        KV_CHECK(at(place).node != NodeId::none, "a node that is in the table is found there");
      }
      return place;
    }

    // Places are in the order of hashes, about, so both tables are gone through from one end to the other.
    void grow() {
      const std::pmr::vector<CacheLine> before =
          std::exchange(lines, std::pmr::vector<CacheLine>(std::max<std::size_t>(1, 2 * lines.size())));
      for (const CacheLine& line : before) {
        for (const Place& known : line.places) {
          if (known.node == NodeId::none) continue;
          std::size_t place = home_of(known.hash);
          while (at(place).node != NodeId::none) place = after(place);
          at(place) = known;
        }
      }
    }

    void remove(std::size_t place) {
      // Whatever came to lie behind the gap because its own place was taken moves up.
      for (std::size_t next = after(place); at(next).node != NodeId::none; next = after(next)) {
        if (distance(home_of(at(next).hash), next) < distance(place, next)) continue;
        at(place) = at(next);
        place = next;
      }
      at(place) = {};
    }
  };

  static std::uint32_t hash_of(const PageKey& key) {
    return static_cast<std::uint32_t>((key.words[0] * 0x9e3779b97f4a7c15ULL) >> 32);
  }

  std::array<Part, std::size_t{1} << kPartBits> parts_;
  std::size_t size_ = 0;
};

}  // namespace kvtwin
