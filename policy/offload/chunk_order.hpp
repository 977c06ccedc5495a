// Which chunk leaves vLLM's host tier if it is full (`eviction_policy` of its offloading connector: lru, arc). A
// ChunkOrder has the order of the chunks and what it remembers of chunks that have left; HostChunks has the chunks.
//
// A request counts once, when it has finished: the order of its chunks is that of their positions, and the last one
// goes first. Until then its chunks have a place of the request's own. Rules: vLLM 0.33.0, v1/kv_offload/cpu/policies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "policy/offload/chunk.hpp"

namespace kvtwin {

enum class ChunkEviction : std::uint8_t { lru, arc };
constexpr std::string_view name_of(ChunkEviction eviction) {
  switch (eviction) {
    case ChunkEviction::lru: return "lru";
    case ChunkEviction::arc: return "arc";
  }
  return "";
}

using ChunkKeySet = std::unordered_set<ChunkKey, ChunkKeyHash>;  // looked up only, never iterated

class ChunkOrder {
 public:
  // What a request did with a chunk. Stored and reused are both possible: it then reused what another request's failed
  // or evicted copy had left it to store.
  struct Use {
    Chunk chunk;
    bool stored = false, reused = false;
  };

  virtual ~ChunkOrder() = default;
  // The request stores the chunk. The chunk cannot be evicted before allow().
  virtual void enter(const Chunk& chunk, RequestId request) = 0;
  // Its store has failed.
  virtual void remove(const ChunkKey& key) = 0;
  // The chunk is complete, and nothing reads it; or something reads it.
  virtual void allow(const ChunkKey& key) = 0;
  virtual void forbid(const ChunkKey& key) = 0;
  // Makes the chunks recently used, the first ones most.
  virtual void touch(std::span<const Chunk> chunks) = 0;
  // A request wants to store chunks that the tier lacks. Called once for each request and chunk.
  virtual void miss(std::span<const Chunk> chunks) = 0;
  // The request uses chunks for the first time. Not all of them need be in the tier.
  virtual void see(std::span<const Chunk> chunks, RequestId request) = 0;
  // The request has finished. `uses`: in order of position.
  virtual void finish(std::span<const Use> uses, RequestId request) = 0;
  // Takes so many chunks out, none of `kept`. Returns them in the order in which they go; none, and changes nothing, if
  // there are too few.
  virtual std::optional<std::vector<ChunkKey>> evict(std::size_t chunks, const ChunkKeySet& kept) = 0;
};

// `capacity`: chunks of the tier.
std::unique_ptr<ChunkOrder> make_chunk_order(ChunkEviction eviction, std::size_t capacity);
std::unique_ptr<ChunkOrder> make_lru_chunk_order();
std::unique_ptr<ChunkOrder> make_arc_chunk_order(std::size_t capacity);

}  // namespace kvtwin
