#include "impl/remote/remote_name.hpp"

#include <string_view>

namespace kvtwin {

std::string remote_name_of(const PageKey& stored_as, std::uint32_t secret) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string name = "kvtwin:";
  if (secret != 0) {
    for (int shift = 28; shift >= 0; shift -= 4) name += kHex[secret >> shift & 15];
    name += ':';
  }
  for (const std::uint64_t word : {stored_as.words[0], stored_as.words[1]}) {
    for (int shift = 60; shift >= 0; shift -= 4) name += kHex[word >> shift & 15];
  }
  return name;
}

}  // namespace kvtwin
