// ARC (Megiddo and Modha, 2003) as vLLM has it. Chunks stored and not reused are in T1, others in T2. B1 and B2
// remember the chunks evicted from each. A chunk that is stored again and is in B1 makes the aim of T1 larger; one in
// B2 makes it smaller. A stored chunk enters T1 in every case.
//
// The aim is a sum of fractions of chunks. vLLM adds them as floating-point numbers, and cuts the sum. A sum that
// misses a whole number by rounding counts as one chunk less there, so the same IEEE operations are needed here: one
// division, one addition or subtraction, each rounded once.
#include <algorithm>
#include <array>
#include <list>
#include <unordered_map>

#include "policy/base/check.hpp"
#include "policy/offload/chunk_order.hpp"

namespace kvtwin {
namespace {

class ArcChunkOrder final : public ChunkOrder {
 public:
  explicit ArcChunkOrder(std::size_t capacity) : capacity_(capacity) {}

  void enter(const Chunk& chunk, RequestId) override {
    forget(chunk.key);
    places_[chunk.key] = {kOnce, lists_[kOnce].insert(lists_[kOnce].end(), chunk.key), false, false};
  }
  void remove(const ChunkKey& key) override { forget(key); }
  void allow(const ChunkKey& key) override {
    Place& place = places_.at(key);
    place.allowed = place.complete = true;
  }
  void forbid(const ChunkKey& key) override { places_.at(key).allowed = false; }
  void touch(std::span<const Chunk> chunks) override {
    for (std::size_t i = chunks.size(); i-- > 0;) {
      const auto known = places_.find(chunks[i].key);
      if (known == places_.end()) continue;
      Place& place = known->second;
      if (place.list == kOnceGone || place.list == kOftenGone) {
        aim_at_ghost(place);
      } else {
        move(place, place.list == kOnce && place.complete ? kOften : place.list);
      }
    }
  }
  void miss(std::span<const Chunk> chunks) override {
    for (std::size_t i = chunks.size(); i-- > 0;) {
      const auto known = places_.find(chunks[i].key);
      if (known != places_.end()) aim_at_ghost(known->second);
    }
  }
  void see(std::span<const Chunk>, RequestId) override {}
  void finish(std::span<const Use> uses, RequestId) override {
    for (std::size_t i = uses.size(); i-- > 0;) {
      const auto known = places_.find(uses[i].chunk.key);
      if (known == places_.end() || !is_here(known->second)) continue;
      if (uses[i].reused) {
        move(known->second, kOften);
      } else if (uses[i].stored) {
        move(known->second, known->second.list);
      }
    }
  }
  std::optional<std::vector<ChunkKey>> evict(std::size_t chunks, const ChunkKeySet& kept) override {
    std::array<List::iterator, 2> at = {lists_[kOnce].begin(), lists_[kOften].begin()};
    const auto next = [&](unsigned list) {
      while (at[list] != lists_[list].end() && (!places_.at(*at[list]).allowed || kept.contains(*at[list]))) ++at[list];
      return at[list] != lists_[list].end();
    };
    std::vector<ChunkKey> victims;
    std::size_t once = lists_[kOnce].size();
    while (victims.size() < chunks) {
      unsigned list = once >= whole_aim() && next(kOnce) ? kOnce : kOften;
      if (!next(list)) list = kOnce;
      if (!next(list)) return std::nullopt;
      once -= list == kOnce ? 1 : 0;
      victims.push_back(*at[list]++);
    }
    for (const ChunkKey& key : victims) {
      Place& place = places_.at(key);
      move(place, place.list == kOnce ? kOnceGone : kOftenGone);
    }
    for (const unsigned ghosts : {kOnceGone, kOftenGone}) {
      while (lists_[ghosts].size() > capacity_) forget(ChunkKey(lists_[ghosts].front()));
    }
    return victims;
  }

 private:
  static constexpr unsigned kOnce = 0, kOften = 1, kOnceGone = 2, kOftenGone = 3;  // T1, T2, B1, B2
  using List = std::list<ChunkKey>;                                                // the least recently used one first
  struct Place {
    unsigned list = kOnce;
    List::iterator at;
    bool allowed = false;
    bool complete = false;  // has been stored
  };

  static bool is_here(const Place& place) { return place.list == kOnce || place.list == kOften; }
  std::size_t whole_aim() const { return static_cast<std::size_t>(aim_); }
  double size_of(unsigned list) const { return static_cast<double>(lists_[list].size()); }
  void forget(const ChunkKey& key) {
    const auto known = places_.find(key);
    if (known == places_.end()) return;
    lists_[known->second.list].erase(known->second.at);
    places_.erase(known);
  }
  void move(Place& place, unsigned to) {
    lists_[to].splice(lists_[to].end(), lists_[place.list], place.at);
    place.list = to;
  }
  // Does nothing for a chunk that is in the tier.
  void aim_at_ghost(Place& place) {
    if (is_here(place)) return;
    const bool grows = place.list == kOnceGone;
    const double here = size_of(place.list), other = size_of(grows ? kOftenGone : kOnceGone);
    const double step = std::max(1.0, other / here);
    aim_ = grows ? std::min(aim_ + step, static_cast<double>(capacity_)) : std::max(aim_ - step, 0.0);
    move(place, place.list);
  }

  const std::uint64_t capacity_;
  std::array<List, 4> lists_;
  std::unordered_map<ChunkKey, Place, ChunkKeyHash> places_;  // looked up only, never iterated
  double aim_ = 0;                                            // of the size of T1, in chunks
};

}  // namespace

std::unique_ptr<ChunkOrder> make_arc_chunk_order(std::size_t capacity) {
  return std::make_unique<ArcChunkOrder>(capacity);
}

}  // namespace kvtwin
