// What vouches for stored bytes: XXH3 (64 bits), by the widest vectors this processor has. The same value on all.
#pragma once

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // without it the library, built for all of them, stays with the narrowest
#endif

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtwin {

inline std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace kvtwin
