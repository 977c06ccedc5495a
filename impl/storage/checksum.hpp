// The checksum of stored bytes: XXH3 (64 bits), with the widest vectors of this processor. Equal on all machines.
#pragma once

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // without this header, the library uses the narrowest vectors of the architecture
#endif

#include <cstddef>
#include <cstdint>
#include <span>

#include "impl/storage/pieces.hpp"

namespace kvtwin {

inline std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
// The checksum of the pieces as if they were one after another.
std::uint64_t checksum(const Pieces& pieces);

}  // namespace kvtwin
