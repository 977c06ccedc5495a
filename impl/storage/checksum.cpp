#include "impl/storage/checksum.hpp"

#include <memory>
#include <new>

namespace kvtwin {

std::uint64_t checksum(const Pieces& pieces) {
  if (pieces.size() == 1) return checksum(pieces.front());
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
  if (!state || XXH3_64bits_reset(state.get()) != XXH_OK) throw std::bad_alloc();
  for (const std::span<std::byte> piece : pieces) XXH3_64bits_update(state.get(), piece.data(), piece.size());
  return XXH3_64bits_digest(state.get());
}

}  // namespace kvtwin
