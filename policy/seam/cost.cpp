#include "policy/seam/cost.hpp"

#include <algorithm>
#include <limits>

#include "policy/base/wide.hpp"

namespace kvtwin {

TransferCost one_after_another(const TransferCost& first, const TransferCost& second, std::uint64_t link_rate) {
  TransferCost both;
  both.latency_ns = first.latency_ns + second.latency_ns;
  both.bytes = first.bytes + second.bytes;
  const auto free = [&](const TransferCost& part) {
    return part.bytes == 0 || part.bytes_per_second == 0 || part.bytes_per_second >= link_rate;
  };
  if (link_rate == 0 || (free(first) && free(second))) {
    // Both parts are limited by the link. If the link's rate is unknown, the only known limit counts for both.
    both.bytes_per_second = link_rate == 0 ? std::max(first.bytes_per_second, second.bytes_per_second) : 0;
    return both;
  }
  const auto picoseconds = [&](const TransferCost& part) {
    return UnsignedWide{part.bytes} * 1'000'000'000'000U / (free(part) ? link_rate : part.bytes_per_second);
  };
  const UnsignedWide rate = UnsignedWide{both.bytes} * 1'000'000'000'000U / (picoseconds(first) + picoseconds(second));
  constexpr UnsignedWide most = std::numeric_limits<std::uint64_t>::max();
  both.bytes_per_second = static_cast<std::uint64_t>(std::clamp<UnsignedWide>(rate, 1, most));
  return both;
}

}  // namespace kvtwin
