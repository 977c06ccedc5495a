// Bounds that know the future: the most blocks that a cache can hit, request by request. No time passes.
//
// A request uses its path as a whole. So the next use of a child is never before the next use of its parent. Neighbours
// on a path with the same next use arrive and leave together: the deepest block arrives last and leaves first. A trace
// is therefore a small number of runs of blocks. A cache needs no tree, only a number of blocks per request: the
// present blocks whose next use (or last use) is that request.
//
// Cost (memory): 32 bytes per request, 16 per run, and until the Future exists about 76 per distinct block. While a
// bound is computed: up to 40 more bytes per request and 16 per run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/base/flat_table.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct Turn;

// The blocks that each request looks up, in compact form. A chain key names the whole prefix, so the log keeps the
// parent of every block, and the last block of every request.
// Requires: at most 2^32 - 2 requests and blocks (KV_CHECK).
class RequestLog {
 public:
  // Appends a request. Requires: `keys` is a chain; a request without a block has no hit.
  // Returns how many leading blocks occurred in earlier requests: the hits of an infinite cache.
  std::uint64_t add(std::span<const PageKey> keys);

  std::size_t requests() const { return last_node_.size(); }
  // Returns how many leading blocks two requests share. Cost: O(blocks).
  std::uint32_t shared(std::uint32_t request, std::uint32_t other) const;

 private:
  friend class Future;
  friend std::uint64_t opt_state_hits(const RequestLog&, std::span<const Turn>, std::span<const std::uint32_t>, Pages);
  static constexpr std::uint32_t kRoot = 0;

  struct Place {
    std::uint32_t hash = 0, node = kRoot;
    bool is_empty() const { return node == kRoot; }
    std::uint32_t spread() const { return hash; }
  };
  std::size_t place_of(const PageKey& key) const;
  void append(const PageKey& key, std::uint32_t parent);

  FlatTable<Place> places_;                        // of the nodes, which are numbered from 1; 0 is the root
  std::vector<PageKey> keys_{PageKey()};           // by node
  std::vector<std::uint32_t> parent_{kRoot};       // by node
  std::vector<std::uint32_t> last_node_, blocks_;  // by request
};

// One use of a request's path. A request that runs more than once, for example after a retraction, has several turns.
struct Turn {
  std::uint32_t request = 0;  // number in the log, from 0
  // The number of leading blocks that are hits if they are present. The turn computes all later blocks, present or not.
  std::uint32_t counted = 0;
};

// A run of blocks of one path, at the depths first .. end - 1, that turn `from` uses and turn `to` uses next.
struct Reuse {
  std::uint32_t from = 0, to = 0;  // turns
  std::uint32_t first = 0, end = 0;
};

class Future {
 public:
  // One turn per request of the log, in order, with all blocks counted. Ownership: takes over the log.
  explicit Future(RequestLog&& log);
  Future(RequestLog&& log, std::span<const Turn> turns);
  // As above, but only reads the log, so other turns of the same log can be examined later.
  Future(const RequestLog& log, std::span<const Turn> turns);

  std::size_t turns() const { return turns_.size(); }
  std::uint32_t request(std::size_t turn) const { return turns_[turn].request; }
  std::uint32_t blocks(std::size_t turn) const { return turns_[turn].blocks; }
  std::uint32_t counted(std::size_t turn) const { return turns_[turn].counted; }
  // Ordered by `from`, then by depth. `to` rises with the depth. Blocks that are never used again are in no run.
  std::span<const Reuse> reuses() const { return reuses_; }
  std::span<const Reuse> reuses_of(std::size_t turn) const;

 private:
  struct Use {
    std::uint32_t request = 0, blocks = 0, counted = 0;
    std::size_t reuses_end = 0;
  };
  std::vector<Use> turns_;
  std::vector<Reuse> reuses_;
};

// The functions below return the number of hit blocks of each turn, for a cache with room for `capacity` blocks.

// Belady's rule with bypass. The victim is the present block whose next use is farthest in the future. A missing block
// whose own next use is not nearer is not inserted, and neither are the blocks after it. Upper bound for every cache
// that holds at most `capacity` blocks between turns, whatever the cache does there. If turns compute blocks again
// (depths >= `counted`), the result is still an upper bound, but not always reachable: while one turn computes the
// middle of a path again, the bound may keep the end of the path without the middle.
std::vector<std::uint32_t> opt_hits(const Future& future, Pages capacity);

// Belady's rule without bypass: a turn inserts all its blocks, or the first `capacity` of them. The victims are the
// blocks off the path with the farthest next use. Upper bound for every one-tier cache that inserts every block, as the
// replay in sim/bounds/hitrate.hpp does. Reason: the path takes a fixed share of the room in each turn. The only choice
// is which intervals between uses to keep in the rest of the room, and to give up the interval that ends last is the
// best choice. With turns of which no block is counted, not always reachable, as opt_hits().
// Requires: of each turn, all blocks are counted or none.
std::vector<std::uint32_t> opt_no_bypass_hits(const Future& future, Pages capacity);

// LRU that knows for each block whether the block is used again, but not when. Blocks without a next use leave first,
// then the least recently used blocks. Victims are leaves off the path; no bypass. A policy with one bit of knowledge,
// not a bound. Requires: of each turn, all blocks are counted or none.
std::vector<std::uint32_t> opt_bit_hits(const Future& future, Pages capacity);

// Plain LRU, as in sim/bounds/hitrate.hpp, but for turns. The result has counted hits only.
std::vector<std::uint32_t> lru_hits(const Future& future, Pages capacity);

}  // namespace kvtwin
