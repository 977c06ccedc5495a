#include "lab/watch/prefix_table.hpp"

#include <algorithm>
#include <utility>

#include "lab/watch/stack_distances.hpp"

namespace kvtwin {

void PrefixTable::take(std::span<const std::uint64_t> keys, std::span<const std::uint64_t> distances,
                       std::uint64_t size) {
  if (keys.empty()) return;
  std::uint64_t seen = 0;
  while (seen < distances.size() && distances[seen] != StackDistances::kNew) ++seen;
  auto at = all_.find(keys[0]);
  if (at == all_.end()) {
    std::uint64_t requests = 0;
    if (all_.size() == kMaxPrefixes) {
      const auto least = std::ranges::min_element(
          all_, {}, [](const auto& one) { return std::pair(one.second.prefix.requests, one.first); });
      requests = least->second.prefix.requests;
      all_.erase(least);
    }
    at = all_.emplace(keys[0], Counted{WatchedPrefix{keys[0], requests, keys.size(), 0}, requests}).first;
  }
  WatchedPrefix& prefix = at->second.prefix;
  if (prefix.requests++ == at->second.error || seen == 0) return;
  prefix.blocks = std::min(prefix.blocks, seen);
  for (std::uint64_t i = 0; i < prefix.blocks; ++i) prefix.lost_blocks += size > 0 && distances[i] > size ? 1 : 0;
}

std::vector<WatchedPrefix> PrefixTable::worst() const {
  std::vector<WatchedPrefix> list;
  for (const auto& [key, counted] : all_) {
    WatchedPrefix prefix = counted.prefix;
    prefix.requests -= counted.error;
    if (prefix.requests >= kMinRequests && prefix.lost_blocks > 0) list.push_back(prefix);
  }
  std::ranges::sort(list, [](const auto& a, const auto& b) {
    return std::pair(b.lost_blocks, a.key) < std::pair(a.lost_blocks, b.key);
  });
  if (list.size() > kShownPrefixes) list.resize(kShownPrefixes);
  return list;
}

}  // namespace kvtwin
