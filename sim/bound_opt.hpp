// The bound that knows the future: Belady's rule on a prefix tree with bypass. Nothing hits more blocks, whatever the
// capacity. Time-free: requests are served one after another.
//
// The rule: victim = the present block with the farthest next use; a missing block whose own next use is not nearer
// than the victim's is not inserted, nor those after it. A child's next use is never before its parent's, so the
// farthest block is a leaf, and the present blocks with one next use are neighbours on that request's path. Hence the
// cache is no tree but one number per request, "present blocks that it will be the next to use", which is its hit count
// when its turn comes. A block that is never used again takes no part: whether it fills a free place changes no hit.
//
// Memory: 12 bytes a request, 4 a look-up, about 76 a distinct block while requests are added (4 afterwards, and 8 a
// request per capacity).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/types.hpp"

namespace kvtwin {

// Which blocks each request looks up, in little space: a chain key names the whole prefix, so that a request is the
// node of its last block and the tree of all blocks' parents. At most 2^32 - 2 requests and blocks (KV_CHECK).
class RequestLog {
 public:
  // `keys`: a chain, not empty. Returns how many leading blocks any earlier request had: an infinite cache's hits.
  std::uint64_t add(std::span<const PageKey> keys);

  std::size_t requests() const { return last_node_.size(); }
  std::uint64_t lookups() const { return lookups_; }

 private:
  friend class OptBound;
  static constexpr std::uint32_t kRoot = 0;

  std::unordered_map<PageKey, std::uint32_t, PageKeyHash> nodes_;  // from 1
  std::vector<std::uint32_t> parent_{kRoot};
  std::vector<std::uint32_t> last_node_, blocks_;  // by request
  std::uint64_t lookups_ = 0;
};

class OptBound {
 public:
  // Takes the log over: all requests are in it.
  explicit OptBound(RequestLog&& log);

  // Blocks hit by each request with room for `capacity` blocks.
  std::vector<std::uint32_t> hits(Pages capacity) const;

 private:
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};

  std::vector<std::uint32_t> blocks_;    // by request
  std::vector<std::uint32_t> next_use_;  // by look-up, requests one after another: the next request that looks it up
};

}  // namespace kvtwin
