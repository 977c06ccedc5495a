// What a test and its engines in other processes agree on: the form of pages, and bytes as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "impl/remote/peer_memory.hpp"
#include "impl/storage/page_header.hpp"

namespace kvtwin::test {

// Pages of `bytes` bytes, a multiple of 512, in two planes.
inline PageForm peer_form(Bytes bytes) {
  return {{2, 2, 1, 128, static_cast<std::uint32_t>(bytes / 512)}, Layout::page_first};
}

inline std::string hex_of(const std::vector<std::byte>& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}
inline std::vector<std::byte> bytes_of_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

}  // namespace kvtwin::test
