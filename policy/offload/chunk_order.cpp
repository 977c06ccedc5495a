#include "policy/offload/chunk_order.hpp"

namespace kvtwin {

std::unique_ptr<ChunkOrder> make_chunk_order(ChunkEviction eviction, std::size_t capacity) {
  return eviction == ChunkEviction::lru ? make_lru_chunk_order() : make_arc_chunk_order(capacity);
}

}  // namespace kvtwin
