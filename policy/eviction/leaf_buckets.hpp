// Leaves in numbered buckets, each a heap of its own; a leaf is in one of them. O(log n) to set and remove.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {

class LeafBuckets {
 public:
  explicit LeafBuckets(std::size_t buckets) : heaps_(buckets) {}

  void set(NodeId node, std::size_t bucket, const LeafRank& rank) {
    const auto index = static_cast<std::size_t>(node);
    if (index >= places_.size()) places_.resize(index + 1);
    if (places_[index].bucket != bucket) remove(node);
    LargeVector<Entry>& heap = heaps_[bucket];
    Place& place = places_[index];
    if (place.bucket == kNone) {
      place = {static_cast<std::uint32_t>(bucket), static_cast<std::uint32_t>(heap.size())};
      heap.push_back({rank, node});
      ++size_;
    } else {
      heap[place.at].rank = rank;
    }
    settle(heap, place.at);
  }

  void remove(NodeId node) {
    if (!contains(node)) return;
    Place& place = places_[static_cast<std::size_t>(node)];
    LargeVector<Entry>& heap = heaps_[place.bucket];
    const std::uint32_t at = place.at;
    place = {};
    --size_;
    const Entry last = heap.back();
    heap.pop_back();
    if (last.node == node) return;
    put(heap, at, last);
    settle(heap, at);
  }

  bool empty(std::size_t bucket) const { return heaps_[bucket].empty(); }
  NodeId smallest(std::size_t bucket) const { return heaps_[bucket].front().node; }  // not of an empty one
  const LeafRank& smallest_rank(std::size_t bucket) const { return heaps_[bucket].front().rank; }
  std::size_t size() const { return size_; }
  bool contains(NodeId node) const {
    const auto index = static_cast<std::size_t>(node);
    return index < places_.size() && places_[index].bucket != kNone;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Entry {
    LeafRank rank;
    NodeId node;
  };
  struct Place {
    std::uint32_t bucket = kNone, at = 0;
  };

  void put(LargeVector<Entry>& heap, std::uint32_t at, const Entry& entry) {
    heap[at] = entry;
    places_[static_cast<std::size_t>(entry.node)].at = at;
  }

  // The entry carries on up or down until it is in order, and is written once.
  void settle(LargeVector<Entry>& heap, std::uint32_t at) {
    const Entry entry = heap[at];
    for (; at > 0 && entry.rank < heap[(at - 1) / 2].rank; at = (at - 1) / 2) put(heap, at, heap[(at - 1) / 2]);
    const auto size = static_cast<std::uint32_t>(heap.size());
    for (;;) {
      std::uint32_t child = 2 * at + 1;
      if (child >= size) break;
      if (child + 1 < size && heap[child + 1].rank < heap[child].rank) ++child;
      if (!(heap[child].rank < entry.rank)) break;
      put(heap, at, heap[child]);
      at = child;
    }
    put(heap, at, entry);
  }

  std::vector<LargeVector<Entry>> heaps_;
  LargeVector<Place> places_;  // by NodeId
  std::size_t size_ = 0;
};

}  // namespace kvtwin
