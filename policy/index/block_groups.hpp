// vLLM's form of an index: blocks of equal bytes in one pool with one queue, for every kind of KV. The layers of a
// model form groups; each group has a table of blocks for each request, and a block belongs to one group at a time. It
// takes the place of the radix tree and of its page pools for models with several kinds of KV.
//
// A group's closure says which blocks a request needs that continues behind a prefix: all of them (path), the last ones
// that hold the window less one token (tail), or the last one, which holds the state at its end (point). A prefix hits
// if every group has its blocks there. Blocks stay after their requests, until the pool gives them to others: the one
// at the front of the queue first. Of windows and states only the blocks are kept that a later request is expected to
// continue behind: at the end of the prompt, at a shared prefix that another group has and this one lacks (a junction),
// and every `retention` tokens.
//
// Rules: vLLM 0.33.0, v1/core (single_type_kv_cache_manager.py, kv_cache_coordinator.py, block_pool.py); mode "align"
// for states. Not here: hits inside a block (--prefix-match-unit), checkpoints inside a pass, the block that draft
// models drop. docs/internals/hybrid-caches.md has the rules in order.
// Cost: O(1) per block.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "policy/base/flat_table.hpp"
#include "policy/base/types.hpp"
#include "policy/index/further_pool.hpp"

namespace kvtwin {

using BlockId = std::uint32_t;
constexpr BlockId kNoBlock = 0;  // vLLM's null block: never given out

struct BlockGroup {
  Closure closure = Closure::path;
  Tokens window = 0;                  // of a tail
  std::uint32_t blocks_per_page = 1;  // of the engine's pages
};

struct BlockGroupsConfig {
  std::uint32_t blocks = 0;        // with the null block
  std::vector<BlockGroup> groups;  // empty: the engine has a radix tree
  // Windows and states are kept at multiples of so many tokens too; 0: nowhere else; none, or less than a block:
  // everywhere. An engine has that of its StatePoints.
  std::optional<Tokens> retention = 0;
};

// What a request holds.
struct BlockTables {
  struct Table {
    std::vector<BlockId> blocks;  // by position; kNoBlock where the request needs none
    std::size_t cached = 0;       // blocks from the front that have been offered to the index
    std::size_t offloaded = 0;    // the same to the host tier
    std::size_t retired = 0;      // of a point: blocks from the front that have been given back
  };
  std::vector<Table> tables;  // by group; empty: the request has not entered
  Tokens prompt = 0;
  Tokens junction = 0;  // 0: there is none
};

class BlockGroups {
 public:
  static constexpr BlockId kFirstBlock = 2;  // blocks have the numbers from here on

  // Requires: blocks > 1, and a group at least. `page_tokens`: of the engine's keys; a multiple of the tokens of every
  // group's blocks, so that every hit is in whole pages.
  BlockGroups(const BlockGroupsConfig& config, Tokens page_tokens);

  struct Hit {
    Tokens tokens = 0;   // whole pages
    Tokens longest = 0;  // what the group with the longest prefix has; more than `tokens`: a junction
    std::vector<std::vector<BlockId>> blocks;  // by group; kNoBlock where a request needs none
    // Blocks that neither a request nor a transfer holds: they are free until the request enters.
    std::uint32_t free_blocks = 0;
  };
  // Returns the longest prefix of at most `most` tokens. `keys`: of the pages, from the first on.
  Hit find(std::span<const PageKey> keys, Tokens most) const;
  // Returns for each group the prefix that its kind would accept alone.
  std::vector<Tokens> longest_of_each(std::span<const PageKey> keys, Tokens most) const;

  // The request continues behind the hit, and behind what is loaded up to `to`, if that is more. It now holds the
  // blocks of the hit that it needs then. Requires: nothing was allocated since find().
  void enter(BlockTables& request, const Hit& hit, Tokens prompt, Tokens to = 0);
  // Returns the most blocks that a prefill of so many pages holds at once, in passes of at most `chunk` tokens; more
  // for each page than a decode takes. For checks of room, which vLLM makes so.
  std::uint64_t blocks_of(Pages pages, Tokens chunk) const;
  // Returns for how many pages of a prefill that is.
  Pages pages_in(std::uint64_t blocks, Tokens chunk) const;
  // Returns the pages of the longest request that this many blocks serve in every case, behind any hit.
  Pages longest_request(std::uint64_t blocks, Tokens chunk) const;
  // Returns the fewest pages of a prefill that take at least the blocks of `pages` pages of as many requests. `beside`:
  // in a sum with the pages of another prefill, too.
  Pages apart(Pages pages, bool beside, Tokens chunk) const;
  // Returns the free blocks that the tokens up to `to` take, beside those that the request has, or would have behind
  // the hit.
  std::uint32_t wanted(const BlockTables& request, Tokens to) const;
  std::uint32_t wanted(const Hit& hit, Tokens to) const;
  // Takes the blocks for a pass that computes the tokens [from, to). First gives back what no token behind `from`
  // needs. Returns false, and takes nothing, if too few blocks are free.
  bool allocate(BlockTables& request, Tokens from, Tokens to);
  // The blocks of the first `tokens` tokens can be hit from now on. `keys`: of all full pages of the sequence.
  void publish(BlockTables& request, std::span<const PageKey> keys, Tokens tokens);
  // Gives back what no token behind the first `computed` ones needs.
  void release(BlockTables& request, Tokens computed);
  void leave(BlockTables& request);

  // ---- for a host tier (cache/offload.cpp)
  // A block of a request.
  struct Held {
    std::uint32_t group = 0;
    std::size_t at = 0;  // in the group's table
    BlockId block = kNoBlock;
  };
  // Returns the free blocks that a load of the tokens up to `to` takes, behind the hit, with those of the hit. As in
  // vLLM, the state of the hit counts too, although the load brings a later one.
  std::uint32_t wanted_to_load(const Hit& hit, Tokens to) const;
  // Takes these blocks for a request that has just entered so, and returns those that are loaded, group by group.
  // Requires: they are free.
  std::vector<Held> allocate_to_load(BlockTables& request, Tokens to);
  // Returns the full blocks of the first `tokens` tokens that have not been offloaded and that a later request is
  // expected to need. Of states, those that the index knows.
  std::vector<Held> unoffloaded(const BlockTables& request, Tokens tokens) const;
  // Those of the first `tokens` tokens count as offloaded. `states`: of points; else of the other groups.
  void set_offloaded(BlockTables& request, Tokens tokens, bool states) const;
  // A transfer reads or writes the blocks of a request: none of them is given to others before release_held(). A block
  // that nobody uses any more keeps its place in the queue meanwhile; one that has come to its front returns there.
  void hold(std::span<const BlockId> blocks);
  void release_held(std::span<const BlockId> blocks);

  // What has happened since the last call: blocks with a key that were given to others, and pages whose KV of full
  // attention came or went (of the first group with closure path).
  struct Changes {
    struct Eviction {
      std::uint32_t group;
      PageKey key;
    };
    std::vector<Eviction> evicted;
    std::vector<PageKey> came, went;
  };
  Changes take_changes() { return std::exchange(changes_, {}); }

  // Cuts a chunk of a prefill to where vLLM ends it: with states, at the last block of the prompt, at the junction, and
  // at the end of a block. May return 0. `most`: of a pass.
  Tokens cut_chunk(const BlockTables& request, Tokens from, Tokens tokens, Tokens target, Tokens most) const;

  std::uint32_t capacity() const { return config_.blocks - 1; }
  std::uint32_t free_blocks() const { return free_; }
  std::uint32_t busy_blocks() const { return capacity() - free_; }
  // The most blocks so far that requests held or that had a key.
  std::uint32_t filled_most() const { return filled_most_; }
  std::uint32_t known_keys() const { return known_; }  // distinct
  std::uint64_t evicted_blocks() const { return evicted_; }

  // Compares counts, queue and table with a computation from scratch. `requests`: all that have entered. `held`: blocks
  // of transfers.
  void check_invariants(std::span<const BlockTables* const> requests, std::span<const BlockId> held = {}) const;

 private:
  // In the queue, the place of the blocks that no request has had yet: they have no memory.
  static constexpr BlockId kFresh = kFirstBlock - 1;

  struct Block {
    BlockId before = kNoBlock, after = kNoBlock;  // in the queue of free blocks; the null block is its head
    std::uint32_t uses = 0;                       // requests
    std::uint32_t held = 0;                       // transfers
    bool waits = false;                           // for their end, outside the queue
    bool known = false;                           // has a key
    std::uint32_t group = 0;                      // with a key
    std::uint32_t part = 0;                       // of the page
    BlockId next_same = kNoBlock;                 // with the same key, published later
    PageKey key;
  };
  struct Place {
    BlockId block = kNoBlock;
    std::uint32_t hash = 0;
    bool is_empty() const { return block == kNoBlock; }
    std::uint32_t spread() const { return hash; }
  };
  // Groups with one closure and block size are looked up together.
  struct Kind {
    BlockGroup of;
    std::vector<std::uint32_t> groups;
  };

  // A block that the index knows: a part of the page with this key.
  struct Name {
    std::uint32_t group;
    std::uint32_t part;
    const PageKey& key;
  };

  Name name_of(std::uint32_t group, std::span<const PageKey> keys, std::size_t block) const {
    const std::uint32_t parts = config_.groups[group].blocks_per_page;
    return {group, static_cast<std::uint32_t>(block % parts), keys[block / parts]};
  }
  Tokens block_tokens(const BlockGroup& group) const { return page_tokens_ / group.blocks_per_page; }
  bool ends_page(std::uint32_t group, std::uint32_t part) const;
  bool has(const Kind& kind, std::span<const PageKey> keys, std::size_t block) const;
  Tokens longest(const Kind& kind, std::span<const PageKey> keys, Tokens most) const;
  Tokens skipped_tokens(const BlockGroup& group, Tokens computed) const;
  void release(BlockTables::Table& table, const BlockGroup& group, Tokens computed);
  std::vector<bool> reachable(const BlockGroup& group, std::size_t from, std::size_t to,
                              std::span<const Tokens> boundaries) const;
  bool keeps_all(const BlockGroup& group) const;
  std::uint32_t wanted(std::size_t held, const BlockGroup& group, Tokens to) const;
  std::vector<Tokens> kept_positions(const BlockTables& request) const;
  static std::uint32_t hash_of(const Name& name);
  BlockId cached(const Name& name) const { return table_.at(place_of(name)).block; }
  std::size_t place_of(const Name& name) const;
  void put(BlockId id, const Name& name);
  void forget(BlockId id);
  void take(std::vector<BlockId>& blocks, std::size_t count);
  bool is_free(BlockId id) const { return blocks_[id].uses == 0 && blocks_[id].held == 0; }
  void count_free(BlockId id);
  void use(BlockId id);
  void give_back(std::span<const BlockId> blocks);
  void link(BlockId id, BlockId before);
  void unlink(BlockId id);

  const BlockGroupsConfig config_;
  const Tokens page_tokens_;
  std::vector<Kind> kinds_;  // full attention first
  std::vector<Block> blocks_;
  std::uint32_t fresh_ = 0;
  FlatTable<Place> table_;  // the first block with a key
  std::uint32_t free_ = 0, known_ = 0, filled_ = 0, filled_most_ = 0;
  std::uint64_t evicted_ = 0;
  Changes changes_;
  std::vector<BlockId> freed_;  // scratch
};

}  // namespace kvtwin
