// Little-endian words in byte buffers. Hashed and stored bytes are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtwin {

// On little-endian machines, compilers turn each function into one move.
inline std::byte* store_le64(std::byte* to, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
  return to + 8;
}

inline std::byte* store_le32(std::byte* to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
  return to + 4;
}

inline std::uint64_t load_le64(const std::byte* from) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

inline std::uint32_t load_le32(const std::byte* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(from[i]) << (8 * i);
  return value;
}

}  // namespace kvtwin
