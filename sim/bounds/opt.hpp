// Bounds that know the future: what could be hit at best, request after request. Time-free.
//
// A path is used as a whole, so a child's next use is never before its parent's: neighbours on a path that share their
// next use come and go together, deepest last to come and first to go. A trace is thus few runs of blocks, and a cache
// no tree but a number of blocks per request: those that it is the next (or was the last) to use.
//
// Memory: a request 32 bytes, a distinct block about 76 until the future is known, a run 16; while a capacity is
// reckoned up to 40 a request and 16 a run.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

// Which blocks each request looks up, in little space: a chain key names the whole prefix, so that a request is the
// node of its last block and the tree of all blocks' parents. At most 2^32 - 2 requests and blocks (KV_CHECK).
class RequestLog {
 public:
  // `keys`: a chain, not empty. Returns how many leading blocks any earlier request had: an infinite cache's hits.
  std::uint64_t add(std::span<const PageKey> keys);

  std::size_t requests() const { return last_node_.size(); }
  // How many leading blocks two requests share. O(blocks).
  std::uint32_t shared(std::uint32_t request, std::uint32_t other) const;

 private:
  friend class Future;
  static constexpr std::uint32_t kRoot = 0;

  std::unordered_map<PageKey, std::uint32_t, PageKeyHash> nodes_;  // from 1
  std::vector<std::uint32_t> parent_{kRoot};
  std::vector<std::uint32_t> last_node_, blocks_;  // by request
};

// A request at work on its path. One that is served again, or more than once, has several turns.
struct Turn {
  std::uint32_t request = 0;  // of the log, from 0
  std::uint32_t counted = 0;  // its leading blocks that are hits if present; it makes those after them, present or not
};

// A run of blocks of one path, the depths first .. end - 1, that is used in one turn and next in another.
struct Reuse {
  std::uint32_t from = 0, to = 0;  // turns
  std::uint32_t first = 0, end = 0;
};

class Future {
 public:
  // Each request in its turn, all blocks counted; all requests are in the log, which is taken over.
  explicit Future(RequestLog&& log);
  Future(RequestLog&& log, std::span<const Turn> turns);
  // The same, for who asks for other turns of the log's requests too.
  Future(const RequestLog& log, std::span<const Turn> turns);

  std::size_t turns() const { return turns_.size(); }
  std::uint32_t request(std::size_t turn) const { return turns_[turn].request; }
  std::uint32_t blocks(std::size_t turn) const { return turns_[turn].blocks; }
  std::uint32_t counted(std::size_t turn) const { return turns_[turn].counted; }
  // By `from`, then by depth: `to` rises with it, and a path's blocks that are never used again are in none.
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

// Each returns the hit blocks by turn, with room for `capacity` blocks.

// Belady with bypass. The victim is the present block with the farthest next use; a missing block whose own next use is
// not nearer than that is not inserted, nor those after it. Nothing hits more blocks, whatever it does between turns,
// if it holds no more than `capacity` of them there. (Blocks that a turn makes: no more hits, but where a path's middle
// is made anew while its end is counted elsewhere, the bound lets the end stay without the middle.)
std::vector<std::uint32_t> opt_hits(const Future& future, Pages capacity);

// The same without bypass: a turn's blocks must be in, from the first one on as far as there is room at all, and what
// goes for them is the farthest off the path. Nothing that serves requests as hitrate does (sim/bounds/hitrate.hpp),
// one tier, every block inserted, hits more: with the path's own share of each turn set aside, what is left to choose
// is which intervals between uses to keep with the rest of the room, and giving up the one that ends last is the best
// choice there. All blocks of all turns must be counted.
std::vector<std::uint32_t> opt_no_bypass_hits(const Future& future, Pages capacity);

// LRU that is told of each block whether it is used again, but not when: those that aren't go first, then the least
// recently used; a leaf off the path, without bypass. No bound: a policy, if one knew that bit. The same condition.
std::vector<std::uint32_t> opt_bit_hits(const Future& future, Pages capacity);

// Plain LRU as hitrate has it; here because it can run on turns. Counted hits only.
std::vector<std::uint32_t> lru_hits(const Future& future, Pages capacity);

}  // namespace kvtwin
