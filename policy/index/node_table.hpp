// Finds the node of the index that begins with a page.
//
// A flat hash table over (32 bits of the page's hash, node number), 13 to 27 bytes per node; four places in ten are
// empty. The key itself is only in the node: a node is read only if the 32 bits are equal, and then the whole key is
// compared. The hash is computed from the key's first word alone, because that word is uniform. The table is divided by
// the upper bits of the hash into parts that grow one by one. So with ten million nodes, the longest stall is the
// growth of one part of at most eight megabytes.
//
// There is no iteration, so no caller can depend on an order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/base/check.hpp"
#include "policy/base/flat_table.hpp"
#include "policy/base/types.hpp"
#include "policy/eviction.hpp"

namespace kvtwin {

class NodeTable {
 public:
  // Returns the node that begins with the page, or none. key_of(NodeId) returns the first key of a node in the table.
  template <typename KeyOf>
  NodeId find(const PageKey& key, KeyOf key_of) const {
    const Place wanted = place_for(key);
    const Part& part = part_of(wanted);
    if (part.used == 0) return NodeId::none;
    return part.table.at(part.find(wanted, [&](NodeId node) { return key_of(node) == key; })).node;
  }

  // Returns false, and changes nothing, if another node begins with the page.
  template <typename KeyOf>
  [[nodiscard]] bool insert(const PageKey& key, NodeId node, KeyOf key_of) {
    const Place made = place_for(key, node);
    Part& part = part_of(made);
    if (10 * (part.used + 1) > 6 * part.table.places()) {
      part.table.rebuild(std::max<std::size_t>(1, 2 * part.table.lines()), [](const Place&) { return true; });
    }
    const std::size_t place = part.find(made, [&](NodeId other) { return key_of(other) == key; });
    if (!part.table.at(place).is_empty()) return false;
    part.table.at(place) = made;
    ++part.used;
    ++size_;
    return true;
  }

  // The node that begins with the page has a new number. Like erase(), reads no node.
  void renumber(const PageKey& key, NodeId before, NodeId now) {
    Part& part = part_of(place_for(key));
    part.table.at(part.find_node(place_for(key, before))).node = now;
  }

  void erase(const PageKey& key, NodeId node) {
    const Place known = place_for(key, node);
    Part& part = part_of(known);
    part.table.erase(part.find_node(known));
    --part.used;
    --size_;
  }

  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kPartBits = 5, kPartShift = 32 - kPartBits;
  struct Place {
    std::uint32_t hash = 0;
    NodeId node = NodeId::none;

    bool is_empty() const { return node == NodeId::none; }
    std::uint32_t spread() const { return hash << kPartBits; }
  };

  struct Part {
    FlatTable<Place> table;
    std::size_t used = 0;

    template <typename Is>
    std::size_t find(const Place& wanted, Is is_it) const {
      return table.find(wanted.spread(), [&](const Place& at) { return at.hash == wanted.hash && is_it(at.node); });
    }
    std::size_t find_node(const Place& known) const {
      KV_CHECK(used > 0, "a node that is in the table is found there");
      const std::size_t place = table.find(known.spread(), [&](const Place& at) { return at.node == known.node; });
      KV_CHECK(!table.at(place).is_empty(), "a node that is in the table is found there");
      return place;
    }
  };

  static Place place_for(const PageKey& key, NodeId node = NodeId::none) {
    return {static_cast<std::uint32_t>((key.words[0] * 0x9e3779b97f4a7c15ULL) >> 32), node};
  }
  Part& part_of(const Place& place) { return parts_[place.hash >> kPartShift]; }
  const Part& part_of(const Place& place) const { return parts_[place.hash >> kPartShift]; }

  std::array<Part, std::size_t{1} << kPartBits> parts_;
  std::size_t size_ = 0;
};

}  // namespace kvtwin
