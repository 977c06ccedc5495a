// vLLM's host tier: the chunks of all groups of layers in one pool of equal slots. It decides which chunk is stored in
// which slot, and which one leaves for it. A chunk is incomplete from prepare_store() to complete_store(); each
// prepare_load() keeps it until complete_load().
//
// Without room for all chunks of a call, nothing is stored. With `store_threshold` >= 2, a chunk is stored when it has
// been offered so often, as far as its earlier offers are still remembered. Rules: vLLM 0.33.0,
// v1/kv_offload/cpu/manager.py. Not here: the reset of a running server's cache. Cost: O(log n) per chunk; an eviction
// that passes over kept chunks O(n).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/offload/chunk.hpp"
#include "policy/offload/chunk_order.hpp"

namespace kvtwin {

struct HostChunksConfig {
  std::uint32_t chunks = 0;
  ChunkEviction eviction = ChunkEviction::lru;
  std::uint32_t store_threshold = 0;  // below 2: every offered chunk is stored
  std::size_t remembered_offers = 64'000;
};

class HostChunks {
 public:
  explicit HostChunks(const HostChunksConfig& config);

  Found look_up(const ChunkKey& key) const;

  struct Store {
    std::vector<Chunk> chunks;
    std::vector<SlotId> slots;      // of the chunks
    std::vector<ChunkKey> evicted;  // for them, in order
  };
  // Returns those of the offered chunks that the caller is to store now; none without room. Requires: no chunk is
  // offered twice in one call.
  std::optional<Store> prepare_store(std::span<const Chunk> offered, RequestId request);
  // Chunks that are not incomplete are passed over.
  void complete_store(std::span<const Chunk> chunks, bool success);

  // Keeps the chunks, and returns their slots. Requires: a look-up of each is a hit. `uses`: the request uses them;
  // else they are copied to a further tier.
  std::vector<SlotId> prepare_load(std::span<const Chunk> chunks, RequestId request, bool uses = true);
  void complete_load(std::span<const Chunk> chunks);

  void touch(std::span<const Chunk> chunks) { order_->touch(chunks); }
  // The request stores and loads nothing more. Operations under way may complete later.
  void finish(RequestId request);

  // What has happened since the last call, in order.
  struct Change {
    enum class Kind : std::uint8_t { evicted, failed, stored };
    Kind kind;
    std::vector<ChunkKey> chunks;
    std::vector<SlotId> slots;  // that have become free
  };
  std::vector<Change> take_changes() { return std::exchange(changes_, {}); }

  std::uint32_t capacity() const { return config_.chunks; }
  std::uint32_t free_slots() const {
    return static_cast<std::uint32_t>(freed_.size()) + config_.chunks - static_cast<std::uint32_t>(slots_.size());
  }
  std::uint32_t evictable_chunks() const { return evictable_; }
  std::uint32_t incomplete_chunks() const { return incomplete_; }
  std::uint32_t used_most() const { return static_cast<std::uint32_t>(slots_.size()); }  // at a time
  // Returns whether nothing is under way and no request runs.
  bool is_at_rest() const { return accesses_.empty() && evictable_ == slot_of_.size(); }

  // Compares counts with a computation from scratch.
  void check_invariants() const;

 private:
  static constexpr std::int32_t kIncomplete = -1;
  struct Held {
    ChunkKey key;
    std::int32_t loads = kIncomplete;
    bool is_free = true;
  };
  struct Use {
    bool seen = false, missed = false, stored = false, reused = false;
  };
  // What a request did, until it has finished.
  struct Access {
    std::map<std::uint32_t, std::vector<Chunk>> seen;     // by group, in order
    std::unordered_map<ChunkKey, Use, ChunkKeyHash> use;  // looked up only, never iterated
  };

  Held* find(const ChunkKey& key);
  bool has_been_offered_enough(const ChunkKey& key) const;
  void count_offers(std::span<const Chunk> offered);
  void see(std::span<const Chunk> chunks, RequestId request);
  bool make_room(std::span<const Chunk> offered, Store& store);
  SlotId take_slot(const ChunkKey& key);
  void free_slot(SlotId slot, Change& change);

  const HostChunksConfig config_;
  const std::unique_ptr<ChunkOrder> order_;
  std::unordered_map<ChunkKey, SlotId, ChunkKeyHash> slot_of_;  // looked up only, never iterated
  std::vector<Held> slots_;    // that have been taken once; others are taken before freed ones
  std::vector<SlotId> freed_;  // the last one is taken first
  std::uint32_t evictable_ = 0, incomplete_ = 0;
  std::map<RequestId, Access> accesses_;
  std::vector<Change> changes_;

  struct Offer {
    ChunkKey key;
    std::uint64_t count = 1;
  };
  std::list<Offer> offers_;  // the one that was made longest ago first
  std::unordered_map<ChunkKey, std::list<Offer>::iterator, ChunkKeyHash> offer_of_;  // looked up only, never iterated
};

}  // namespace kvtwin
