#include "sim/bound_opt.hpp"

#include <limits>
#include <queue>
#include <utility>

#include "policy/check.hpp"

namespace kvtwin {

std::uint64_t RequestLog::add(std::span<const PageKey> keys) {
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
  KV_CHECK(!keys.empty(), "a request has a block");
  KV_CHECK(requests() < kMost && parent_.size() + keys.size() < kMost, "requests and blocks have 32-bit numbers");
  std::size_t known = 0, unknown = keys.size();  // known blocks are a prefix: binary search for its end
  while (known < unknown) {
    const std::size_t middle = known + (unknown - known) / 2;
    if (nodes_.contains(keys[middle])) {
      known = middle + 1;
    } else {
      unknown = middle;
    }
  }
  std::uint32_t node = known == 0 ? kRoot : nodes_.find(keys[known - 1])->second;
  for (const PageKey& key : keys.subspan(known)) {
    const std::uint32_t parent = std::exchange(node, static_cast<std::uint32_t>(parent_.size()));
    parent_.push_back(parent);
    nodes_.emplace(key, node);
  }
  last_node_.push_back(node);
  blocks_.push_back(static_cast<std::uint32_t>(keys.size()));
  lookups_ += keys.size();
  return known;
}

OptBound::OptBound(RequestLog&& log) : blocks_(std::move(log.blocks_)), next_use_(log.lookups_) {
  log.nodes_ = {};
  std::vector<std::uint32_t> next(log.parent_.size(), kNever);
  std::size_t at = next_use_.size();
  for (std::size_t request = log.last_node_.size(); request-- > 0;) {
    for (std::uint32_t node = log.last_node_[request]; node != RequestLog::kRoot; node = log.parent_[node]) {
      next_use_[--at] = std::exchange(next[node], static_cast<std::uint32_t>(request));
    }
  }
  KV_CHECK(at == 0, "a request's path is as long as its keys");
}

std::vector<std::uint32_t> OptBound::hits(Pages capacity) const {
  std::vector<std::uint32_t> present(blocks_.size(), 0);  // blocks by the request that uses them next
  std::priority_queue<std::uint32_t> farthest;            // requests with present blocks; others are left in it too
  std::vector<std::uint32_t> hits(blocks_.size(), 0);
  Pages used = 0;
  std::size_t at = 0;
  for (std::size_t request = 0; request < blocks_.size(); ++request) {
    const std::size_t end = at + blocks_[request];
    const std::uint32_t hit = std::exchange(present[request], 0);
    hits[request] = hit;
    used -= hit;
    for (std::size_t i = at; i < end && next_use_[i] != kNever; ++i) {
      if (i - at >= hit && used == capacity) {
        while (!farthest.empty() && present[farthest.top()] == 0) farthest.pop();
        if (farthest.empty() || farthest.top() <= next_use_[i]) break;
        --present[farthest.top()];
        --used;
      }
      if (present[next_use_[i]]++ == 0) farthest.push(next_use_[i]);
      ++used;
    }
    at = end;
  }
  return hits;
}

}  // namespace kvtwin
