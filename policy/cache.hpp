// The hierarchical cache of one engine: index, L1 and L2 pools, leases and the transfers between them.
//
// A page's life on two tiers (write-through; write-back below):
//
//            insert                 backup submitted          acknowledged
//   (new) ----------> L1 only ---------------------> L1 + L2* -----------> L1 + L2
//                        | evicted: lost                 (leased)             | evicted: demoted
//                        v                                                    v
//                      gone <------------- evicted, lost ----------------- L2 only
//                                                                             |  ^
//                                                     load-back submitted:    v  | acknowledged (or un-evicted
//                                                     L1* + L2, leased on both     by a request's own pages)
//
// Slots are assigned and marked at once (*), so a second request shares the copy. Leases keep a copy safe until the
// acknowledgement. Gates keep it correct: a forward pass names every load in flight. Acknowledgements count from the
// oldest transfer on, and the scheduler's step commits them, so the ranks agree on them. A failed backup drops the copy
// on L2, a failed load drops the copy on L1; no pass has read either copy.
//
// Write-back: pages leave L1 by choice. The cache chooses pages in eviction order, from the tails of the leaves, ahead
// of need, until a reserve of L1 is free, clean (L2 has a copy), or on its way to L2. Only chosen pages are evicted, so
// no allocation waits for a copy inside the scheduler. If the reserve is too small, a request waits for the copies in
// flight. If there are none, because L2 has no room or copies fail, the pages are chosen anyway. Their eviction loses
// them, and all pages below them that only L2 has.
//
// With windows or states, write-back is SGLang's: an eviction copies what it takes. The index changes at once, and the
// moves wait in a queue. Until the engine has submitted them and they have ended, nothing is loaded and no pass runs
// (copies_under_way()), so no slot that is still read gets a new page. A copy that fails is made again.
// (cache/evicted.cpp)
//
// Pages that have arrived on L2 are then written to the storage tiers. Without L2, pages of L1 are written to the
// storage tiers, by the same rule as to L2.
//
// A backup that failed is retried in its place, `backup_retries` times. A copy on L2 is dropped while L1 keeps the page
// in two cases: L2 is short of room (`reclaim_shadowed`), or the page was loaded back and the tiers are exclusive.
//
// L2 may keep pages only until storage has them, or only as a buffer (cache/buffer.cpp). Then pages of L2 may lie below
// pages that only L1 has, as under write-back.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "policy/cache/copy_queue.hpp"
#include "policy/cache/holds.hpp"
#include "policy/cache/pool_victims.hpp"
#include "policy/cache/session_radix.hpp"
#include "policy/config.hpp"
#include "policy/in_flight.hpp"
#include "policy/index/block_groups.hpp"
#include "policy/index/page_pool.hpp"
#include "policy/index/radix_tree.hpp"
#include "policy/load_back_admission.hpp"
#include "policy/offload/tiered_chunks.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/seam/substrate.hpp"
#include "policy/state_points.hpp"
#include "policy/storage/storage.hpp"
#include "policy/write.hpp"

namespace kvtwin {

enum class Room : std::uint8_t {
  now,
  later,  // a write-back in flight makes the room
  never,  // not before leases end
};

// A lease on the copies of a path, for as long as an operation of a storage tier needs them.
struct Hold {
  NodeId host_end = NodeId::none;    // leased on L2
  NodeId device_end = NodeId::none;  // leased on L1: without L2
};

// What a request has of the pools beside pool 0 (EngineConfig::pools), or of the blocks (EngineConfig::block_groups).
// Empty for a model with one kind of KV.
struct RequestPools {
  struct Part {
    // Of a tail, by page: its slot, kNoSlot if the request owns none there. Of a point: the running state, then the
    // slots that states are tracked in.
    std::vector<SlotId> slots;
    Tokens released = 0;    // of a tail: windows below have been given back
    Pages leased_from = 0;  // FurtherPool::lease
    // Of a point. The next pass begins with a copy of the state of the lease's node, in place of the running one.
    bool copies = false;
    OperationId load = OperationId::none;  // the mark of the load that fills the running state
  };
  std::vector<Part> parts;          // by pool
  NodeId lease = NodeId::none;      // the parts' lease; as the request's
  Tokens branch = 0;                // see StatePoints; with windows alone, where an insert ends once
  Tokens tracked = 0, earlier = 0;  // lengths of the last two states that were tracked since the last insert; 0: none
  std::uint32_t last = 1;           // the tracking slot with the last one
  SlotId given = kNoSlot;           // the state for the next insert
  bool ends_at_branch = false;      // the next insert ends at the branch
  std::vector<Tokens> pass_ends;    // StatePoints::pass_ends
  BlockTables tables;               // in the form of blocks
  RequestId request = kNoRequest;   // the same, with a host tier; set before enter_pools()
  OperationId load = OperationId::none;  // the same: the mark of the load of its prefix
};

class Cache {
 public:
  Cache(const EngineConfig& config, Substrate& substrate, Storage& storage, const EventSink& sink);

  // In the form of blocks, peek() and match() find what is on L1.
  PrefixMatch peek(std::span<const PageKey> keys) const {
    return blocks_ != nullptr ? match_blocks(keys) : usable(tree_.peek(keys));
  }
  // Returns the longest prefix on L1 and L2 from which a request can continue: every pool accepts it. It ends at a
  // node's end, so the caller can lease it.
  PrefixMatch match(std::span<const PageKey> keys) {
    return blocks_ != nullptr ? match_blocks(keys) : usable(tree_.match(keys));
  }
  // match() for a waiting request. With vLLM's offloading, reads into the host tier what only a storage tier has.
  PrefixMatch look_up(std::span<const PageKey> keys, RequestId request);
  // Makes the cached part of the chain recently used, from the node that ends with page `from` on.
  void refresh(std::span<const PageKey> keys, Pages from);
  // A request has been admitted with the path that ends at `end`.
  void touch(NodeId end) {
    tree_.touch(end, tree_.next_stamp(),
                counts_at_insert() ? RadixTree::Touch::recency_only : RadixTree::Touch::access);
  }
  // A request goes to work on its path. Calls the eviction policies of every tier.
  void visit(const Visit& visit);
  void hint(const Hint& hint, TimeNs step_time);
  // A request of this session (0: none) begins to wait. Returns a number for request_of_session_finished().
  std::uint64_t request_of_session_began(std::uint64_t session) {
    if (holds_ != nullptr) holds_->request_began(session);
    return session_radix_ ? session_radix_->arrived(session) : 0;
  }
  // The request has inserted its last pages, up to `end`.
  void request_of_session_finished(std::uint64_t session, std::uint64_t began, NodeId end) {
    if (session_radix_) session_radix_->finished(session, began, end);
  }
  // The request has ended: it has finished, or it was rejected or aborted.
  void request_of_session_ended(std::uint64_t session) {
    if (holds_ != nullptr) holds_->request_ended(session);
    if (session_radix_) session_radix_->left(session);
  }
  // A step begins.
  void begin_step(TimeNs step_time);
  // Writes what hints to share name. Requires: in a step, behind the hints of the step.
  void share_sessions();
  // With HintRule::obey: returns the keys of the path that the session used last, if they are known.
  std::span<const PageKey> keys_of_session(std::uint64_t session) const {
    return holds_ != nullptr ? holds_->keys_of(session) : std::span<const PageKey>();
  }
  // A request begins to wait for these pages, or no longer waits.
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);

  void lease(NodeId end) { tree_.lease(Tier::device, end); }
  void release(NodeId end) { tree_.release(Tier::device, end); }
  // The same for the device part of a prefix that a request may continue from: until release(), or until the request
  // enters, which has a lease of its own in the form of blocks.
  void lease(const PrefixMatch& match) {
    lease(match.device_end);
    leased_blocks_ = match.free_blocks;
  }
  void release(const PrefixMatch& match) {
    release(match.device_end);
    leased_blocks_ = 0;
  }

  // Returns the free pages plus the pages that eviction would free, of pool 0 and of every window pool.
  Pages obtainable_pages() const {
    if (blocks_ != nullptr) return blocks_->pages_in(obtainable_blocks(), config_.chunk_tokens);
    Pages pages = obtainable_of_full();
    for (const Beside& pool : pools_) {
      if (pool.index->closure() == Closure::tail) pages = std::min(pages, obtainable(pool));
    }
    return pages;
  }
  // Returns how much of a chunk of a prompt the window pools can take now, if `reserved` pages stay free; a page at
  // least. The rest of the chunk is computed in a later pass.
  Pages chunk_pages(Pages wanted, Pages reserved) const {
    for (const Beside& pool : pools_) {
      if (pool.index->closure() != Closure::tail || wanted == 0) continue;
      wanted = std::clamp<Pages>(std::max(obtainable(pool), reserved) - reserved, 1, wanted);
    }
    return wanted;
  }
  // Returns the tokens of a chunk behind `from`, at most `tokens`: of the engine's prefill of `target` tokens. With
  // states, a chunk that the prompt goes on after ends at the end of a page, as in SGLang, because only there a node
  // can have its state. A chunk shorter than a page stays. It also ends where the state points say.
  Tokens cut_chunk(const RequestPools& pools, Tokens from, Tokens tokens, Tokens target) const {
    if (blocks_ != nullptr) return blocks_->cut_chunk(pools.tables, from, tokens, target, config_.chunk_tokens);
    if (state_points_ == nullptr) return tokens;
    for (const Tokens end : pools.pass_ends) {
      if (from < end && end < from + tokens) return end - from;
    }
    const Tokens page = config_.shape.page_tokens, to = (from + tokens) / page * page;
    const bool is_last = from + tokens >= target;
    return is_last || to <= from ? tokens : to - from;
  }
  // Returns as how many pages of one request the next pages of several requests count in checks of room. `beside`: in a
  // sum with the pages of a prefill.
  Pages pages_apart(Pages pages, bool beside) const {
    return blocks_ == nullptr ? pages : blocks_->apart(pages, beside, config_.chunk_tokens);
  }
  // Obtainable pages of pool 0, once all pages that can be written back have been. For planning.
  Pages promised_pages() const {
    if (blocks_ != nullptr) return obtainable_pages();
    return tree_.leaves_by_choice() ? device_.available() + tree_.unleased_device_pages() : obtainable_of_full();
  }
  // Chooses pages to leave L1 until `pages` pages are obtainable now or after writes in flight. Loses no page.
  void prepare(Pages pages);
  // Like prepare(). If that is not enough, and no write is in flight to wait for, loses pages without a copy. Requires:
  // the device part of the path to `kept` is leased. Loses no page of this path.
  Room make_room(Pages pages, NodeId kept);
  // Pages whose writes to storage keep requests from being admitted; 0: none do.
  Pages awaited_writes() const { return storage_.blocks_admission() ? storage_.writing() : 0; }
  // Keeps the clean reserve at its size.
  void keep_reserve() { prepare(reserve_pages_); }
  // Appends `pages` device slots, and evicts as needed. Returns false, and does nothing, if there are too few pages.
  bool allocate(Pages pages, std::vector<SlotId>& slots);
  void free(std::span<const SlotId> slots);

  // Loads the host part of `match` to L1: all of it or nothing. Requires: `match` was just returned by match(), its
  // device part is leased, and L1 has room (make_room()). Queues the transfer for submit_loads(). Returns Reason::none,
  // or the reason against it. `beside`: tokens after the hit that the pass which waits for the load computes.
  // `keys`: of the match and more.
  Reason load_back(std::span<const PageKey> keys, const PrefixMatch& match, RequestId request, Tokens beside,
                   RequestPools* pools = nullptr);
  // Loads pages from storage tiers straight to L1. `runs`: parts of the chain `keys`; the first begins where the path
  // to `end` ends. Submits the gets at once; they gate the next passes. Requires: `end` is leased, and L1 has room.
  // Moves `end` to the new end. With private_loads, appends the pages' slots to `own` instead: they are the request's.
  // What it frees before all loads of the step have been answered stays allocated until then.
  void load_direct(std::span<const PageKey> keys, std::span<const FetchedRun> runs, RequestId request, NodeId& end,
                   std::vector<SlotId>& own);
  // Loads the pages of the chain from page `first` on, which are in these host slots, to L1: they are of a prefetch
  // into a buffer, and belong to the cache from now on. Requires and moves `end` as load_direct().
  void load_staged(std::span<const PageKey> keys, Pages first, std::span<const SlotId> staged, RequestId request,
                   NodeId& end);
  // Queues copies into the buffer, as far as it has room. `read_pages`: of it that prefetches hold.
  void copy_queued(Pages read_pages);
  // A get of load_direct() has been answered on all ranks.
  void take_direct(const StorageAnswer& answer);
  // Sets `slots` to the device slots of the path that ends at `end`, in order. `pools`: of the request that has it.
  void path_slots(NodeId end, const RequestPools& pools, std::vector<SlotId>& slots) const;
  // Returns how many pages of the path lack the draft model's KV.
  Pages incomplete_pages(NodeId end) const;

  // Gives a request's computed pages to the index. On entry, slots[0, shared) belong to the index, and the rest to the
  // request. On return, all of slots[0, keys.size()) belong to the index; slots of pages that the index already had are
  // freed and replaced. `chunked`: more of this prompt follows, so there is no backup yet. `counted`: pages on which
  // this request has already counted. `displaced`: if not null, takes the replaced slots, which are then not freed; the
  // request keeps its windows that the index does not take.
  // Returns the end node.
  struct Counted {
    Pages backup_hits = 0;  // see back_up_path
    Pages touches = 0;      // with TouchCount::insert
  };
  NodeId insert(std::span<const PageKey> keys, std::span<SlotId> slots, Pages shared, bool chunked,
                const Counted& counted, std::int32_t priority, std::vector<SlotId>* displaced = nullptr,
                RequestPools* pools = nullptr);

  // ---- the pools beside pool 0 (cache/pools.cpp). Nothing of this does anything for a model that has none.

  // A request with a prompt of so many tokens continues behind `match`, of `keys`: leases windows and states. Returns
  // false, and does nothing, if there are too few states for it. Requires: `match` is leased.
  bool enter_pools(std::span<const PageKey> keys, const PrefixMatch& match, Tokens prompt, RequestPools& pools);
  // The request has its prefix, which ends at `end`. Takes the slots of its states.
  void take_states(RequestPools& pools, NodeId end);
  // Returns whether L1 has a state at the end of this prefix, which the request copies. (One that is being loaded comes
  // straight into the request's own slot.)
  bool has_state(NodeId end) const;
  // Like allocate(), of pool 0 and of every window pool.
  bool allocate(Pages pages, std::vector<SlotId>& slots, RequestPools& pools);
  // A prefill pass has computed the tokens [from, to), or decode steps `tokens` tokens behind `from`.
  void track_prefill(RequestPools& pools, Tokens from, Tokens to);
  // `keys`: of the sequence's pages that may be cached.
  void track_decode(RequestPools& pools, std::span<const PageKey> keys, Tokens from, Tokens tokens, Pages shared);
  // Gives back every window that the next tokens behind `length` do not need, also those that an insert could give to
  // the index, and leases no more than a window. For pools that are full.
  void release_windows(RequestPools& pools, Tokens length);
  // Returns up to which of the first `cached` tokens an insert may give the request's pages to the index now; takes the
  // state of this length for it. `computed`: tokens of the sequence; more than `cached` if an answer is not cached.
  // `last`: the request has ended. In the form of blocks, gives these to the index, and returns 0.
  Tokens insertable(RequestPools& pools, std::span<const PageKey> keys, Tokens computed, Tokens cached, Pages shared,
                    bool last);
  // After the insert, or instead of it. The caller has moved the lease of pool 0 to `end`.
  void inserted(RequestPools& pools, NodeId end, Tokens computed, Pages shared, bool last);
  // Gives back all that the request has.
  void leave_pools(RequestPools& pools);
  bool has_parts() const { return !pools_.empty(); }
  // Sets `parts` to what the request, whose pages end with the node `end`, has in each pool in a pass over the tokens
  // [from, to) of its sequence, which prefills or decodes.
  void get_parts(const RequestPools& pools, NodeId end, Tokens from, Tokens to, bool decodes,
                 std::vector<SequencePart>& parts) const;

  // ---- vLLM's offloading, in the form of blocks (cache/offload.cpp, cache/offload_tiers.cpp)
  bool offloads_blocks() const { return offload_ != nullptr; }
  // Returns whether the prefix of the request is still being loaded.
  bool arriving(const RequestPools& pools) const { return pools.load > settled_load_; }
  // The prefix has been loaded. The index knows it from now on. `keys`: of its pages and more.
  void loaded(RequestPools& pools, std::span<const PageKey> keys, Tokens tokens);
  // The request has ended.
  void request_ended(RequestId request);
  // A step of the scheduler begins; it ends with the look-ups and the reads that it asked for.
  void end_offload_step();
  // A look-up or a read has been answered on all ranks.
  void take_tier_answer(const StorageAnswer& answer);
  // Returns whether a job has ended that the next step takes note of.
  bool offload_due() const { return offload_ != nullptr && offload_->has_ended_jobs(); }
  // Returns which pages of the host part of `match` have come from storage tiers for this request.
  std::vector<FetchedRun> read_for(std::span<const PageKey> keys, const PrefixMatch& match, RequestId request) const;

  // ---- requests in two parts (cache/handed.cpp)
  // Returns how many leading pages a decode engine may reuse of a prompt: all its windows come from the prefill engine.
  Pages reusable_pages(Tokens prompt) const;
  // Decode engine: like make_room(), for so many pages of a prompt, its windows and its states.
  Room make_room_to_receive(Pages pages, Tokens prompt, NodeId kept);
  // Appends device slots for them. Requires: there is room.
  void allocate_to_receive(Pages pages, Tokens prompt, std::vector<SlotId>& slots, RequestPools& pools);
  // Both engines: appends the slots of what is handed over beside the pages, pool by pool: windows, which are the
  // request's own or those of its path, which ends at `end`; and states. `computed`: of a prompt that no pass computes
  // any more.
  void handed(NodeId end, Tokens prompt, bool computed, const RequestPools& pools, std::vector<SlotId>& slots) const;
  // Slots of pool `at` that are in use.
  Pages pool_used(std::size_t at, Tier tier) const {
    return tier == Tier::device ? pools_[at].device.used() : pools_[at].host.used();
  }
  Pages pool_used_max(std::size_t at, Tier tier) const {
    if (blocks_ != nullptr) return blocks_->filled_most();
    return pools_[at].used_max[tier == Tier::device ? 0 : 1];
  }

  // Raises the priority of the cached pages of this prefix, on all tiers.
  void raise_priority(std::span<const PageKey> keys, std::int32_t priority);

  // ---- for prefetches: pages that come to L2 from a storage tier
  // Returns whether pages of L2 may be put below `end`. If the pages above are not on L2, only write-back allows it.
  bool can_extend_on_host(NodeId end) const;
  // The same for a prefetch that begins. In the style of SGLang the copy of `end` may still be on its way to L2.
  bool can_prefetch_below(NodeId end) const;
  // Leases the L2 copies on the path to `end`; nothing if `end` is not on L2.
  Hold hold(NodeId end);
  void unhold(const Hold& hold);
  // If too few pages of L2 are free, evicts as many as are missing; if `whole`, as many as are wanted. Returns for how
  // many of the pages there is room.
  Pages make_host_room(Pages pages, bool whole);
  void allocate_host(Pages pages, std::vector<SlotId>& slots);
  void free_host(std::span<const SlotId> slots);
  // What a prefix of pages [first, first + asked) of a chain needs from a storage tier beside them; empty without
  // pools.
  std::vector<StorageOperation::Need> needs(Pages first, Pages asked) const;
  // Host slots of the pool (1 + index), for windows of the chain's pages from `first` on, or for one state. Takes none
  // and returns false if there is too little room that could be evicted.
  struct PoolSlots {
    std::size_t pool = 0;
    Pages first = 0;
    std::vector<SlotId> slots;
  };
  bool allocate_host_beside(PoolSlots& beside, Pages count);
  void free_host_beside(PoolSlots& beside);
  struct Adoption {
    Pages pages = 0;                // pages that entered the index
    Reason refused = Reason::none;  // why the other pages did not
    NodeId end = NodeId::none;      // end of the pages that entered
  };
  // Takes over slots with pages of the chain, from page `first` on to the last of `keys`. Frees the slots that it does
  // not keep. The pages get the priority of the page above them, until the request inserts them (HiCache's rule).
  // `beside`: the windows and the state of the end of the chain.
  Adoption adopt(std::span<const PageKey> keys, Pages first, std::span<const SlotId> slots,
                 std::span<PoolSlots> beside = {});
  // Writes the pages [from, to) of the chain that are in the node `end` to the first `tiers_to` storage tiers. With
  // windows or states, also those in the nodes above it.
  void store_path(NodeId end, Pages from, Pages to, std::size_t tiers_to);
  // One write job for this hold has ended. `done`: its pages are stored.
  void end_store(std::uint64_t hold, bool done);

  // Submits all queued moves as one operation; nothing if none are queued. `beside_a_pass`: the GPU computes meanwhile.
  // (For loads it does not: the pass waits.)
  void submit_loads();
  void submit_backups(bool beside_a_pass);
  // Returns whether the copies of an eviction have not ended. Until then no load and no pass is submitted.
  bool copies_under_way() const { return copies_evicted_ && writes_under_way(); }
  // Reports the slots that got new pages meanwhile, once no copy reads them.
  void report_held_slots();
  // Loads that are not complete: the gates of a forward pass.
  std::span<const OperationId> loads_in_flight() const { return gates_; }

  // Returns true if the completion belongs to a transfer of this cache.
  bool complete(const Completion& completion);
  // A load from a storage tier no longer gates passes.
  void load_answered(OperationId id) { std::erase(gates_, id); }
  // For the step's agreement, as in InFlight.
  std::uint64_t backups_complete() const { return backups_.transfers.complete_from_oldest(); }
  std::uint64_t loads_complete() const { return loads_.transfers.complete_from_oldest(); }
  std::uint64_t backup_failure() const { return backups_.transfers.failure(); }
  std::uint64_t load_failure() const { return loads_.transfers.failure(); }
  // Acknowledges what the step has agreed on. Returns true if there is more.
  bool commit(const Acknowledged& backups, const Acknowledged& loads);
  // The same for the backups alone.
  bool commit(const Acknowledged& backups);
  bool backups_due() const { return backups_.transfers.acknowledgement_due(); }
  // Returns whether pages of the path to `end` are still being loaded, or will be.
  bool arriving(NodeId end) const;
  // Returns the end of the part of the path to `end` that comes before the first page that is still being loaded.
  NodeId end_before_load(NodeId end) const;
  // Returns how many leading pages of the chain come before the first page that is still being loaded, or will be.
  Pages pages_before_load(std::span<const PageKey> keys) const;
  // Returns whether pages of the path to `end` are loaded by this transfer, by its number as in load_failure().
  bool depends_on_load(NodeId end, std::uint64_t number) const;
  bool depends_on_load(const RequestPools& pools, std::uint64_t number) const;
  bool loading() const { return !loads_.transfers.empty() || !direct_loads_.empty(); }
  bool acknowledgement_due() const {
    return backups_.transfers.acknowledgement_due() || loads_.transfers.acknowledgement_due();
  }
  bool anything_in_flight() const { return !backups_.transfers.empty() || !loads_.transfers.empty(); }

  Pages device_used() const { return device_.used(); }
  Pages host_used() const { return host_.used(); }
  Pages device_used_max() const {
    if (blocks_ == nullptr) return device_used_max_;
    return blocks_->filled_most() * config_.device_pages / blocks_->capacity();  // as a share of L1
  }
  Pages host_used_max() const {
    if (offload_ == nullptr) return host_used_max_;
    return Pages{offload_->host().used_most()} * config_.host_pages / offload_->host().capacity();  // as a share of L2
  }
  const RadixTree& tree() const { return tree_; }
  const BlockGroups& blocks() const { return *blocks_; }  // requires the form of blocks
  // Checks that nothing is leased or in flight, and that only the index owns slots.
  void check_rest() const;
  // `request_pages`: device pages that requests own; `prefetch_pages`: host pages that prefetches own.
  // `requests`: what the requests have beside pool 0; `prefetch_beside`: slots that prefetches own there, by pool.
  void check_invariants(Pages request_pages, Pages prefetch_pages, std::span<const RequestPools* const> requests,
                        std::span<const Pages> prefetch_beside = {}) const;

 private:
  // A window or state that a transfer copies, or a lease of those that it reads or writes.
  struct BesideCopy {
    std::size_t pool = 0;
    NodeId node = NodeId::none;
    bool leases = false;
    Tier leased_on = Tier::device;
    Pages leased_from = 0;
  };
  // Blocks that move between L1 and vLLM's host tier for one request.
  struct BlockCopy {
    RequestId request = kNoRequest;
    std::vector<Chunk> chunks;
    std::vector<BlockId> blocks;  // of L1
    std::vector<PageKey> priors;  // of a store: the page before each chunk's; 0: there is none
    Pages pages = 0;              // that begin with one of these blocks
  };
  // A job of TieredChunks to a storage tier, and one from there.
  struct TierCopy {
    std::uint64_t job = 0;
    std::size_t chunks = 0;
    std::uint32_t operations = 0;
    bool done = true;
  };
  struct TierRead {
    PageKey first;
    std::uint32_t operations = 0;
    Pages asked = 0, copied = 0;  // of the operations that have been answered
  };
  struct Transfer : Submitted {
    OperationId mark = OperationId::none;  // value of Node::backup or Node::load in the transfer's nodes; see mark_of
    std::vector<NodeId> ends;              // one node for each queued one; the nodes of a load are leased
    Pages pages = 0;
    std::vector<BesideCopy> beside;
    // The moves of an eviction's copies, to make them again: of pool 0, and by pool.
    std::vector<PageMove> moves;
    std::vector<std::vector<PageMove>> moves_beside;
    std::vector<BlockCopy> copies;  // in the form of blocks
    // Running states of requests that have left: freed when the load that fills them has ended.
    std::vector<std::pair<std::size_t, SlotId>> orphans;
  };
  using PerMemoryTier = std::array<Pages, 2>;
  // A pool beside pool 0.
  struct Beside {
    FurtherPool* index = nullptr;  // the tree's
    PagePool device, host;
    PerMemoryTier used_max{};
    const PagePool& on(Tier tier) const { return tier == Tier::device ? device : host; }
    PagePool& on(Tier tier) { return tier == Tier::device ? device : host; }
  };
  struct DirectLoad {
    StorageAnswer get;
    NodeId node = NodeId::none;  // none: the pages belong to the request
    OperationId mark = OperationId::none;
    std::vector<SlotId> slots;  // of these pages
    bool answered = false;
  };
  struct Store {
    Hold hold;
    std::uint32_t jobs = 0;
    NodeId node = NodeId::none;
    std::vector<std::pair<std::size_t, Pages>> beside;  // leased pools, and from which page on
    std::vector<SlotId> slots;                          // of the host buffer, in place of the hold
    bool leaves = false;                                // with HostMode::until_stored, after the write
  };
  struct Lanes {
    InFlight<Transfer> transfers;
    Transfer queued;
    std::vector<PageMove> moves;
    std::vector<std::vector<PageMove>> beside;  // by pool
    std::uint64_t marks = 0;

    bool empty() const { return moves.empty() && std::ranges::all_of(beside, &std::vector<PageMove>::empty); }
  };

  Pages obtainable_of_full() const { return device_.available() + tree_.evictable_device_pages(); }
  static Pages obtainable(const Beside& pool) {
    return pool.device.available() + pool.index->slots_held(Tier::device) - pool.index->slots_leased(Tier::device);
  }
  PrefixMatch match_blocks(std::span<const PageKey> keys) const;
  PrefixMatch look_up_blocks(std::span<const PageKey> keys, RequestId request);
  void count_unusable(std::span<const PageKey> keys, PrefixMatch& match) const;
  std::uint64_t obtainable_blocks() const {
    return blocks_->free_blocks() - std::min(blocks_->free_blocks(), leased_blocks_);
  }
  Chunk chunk_of(std::uint32_t group, std::span<const PageKey> keys, std::size_t block) const;
  Found look_up_chunk(const Chunk& chunk, RequestId request);
  std::optional<Tokens> find_on_host(std::span<const PageKey> keys, Tokens computed, RequestId request);
  std::optional<std::size_t> prefix_on_host(std::uint32_t group, std::span<const PageKey> keys, std::size_t from,
                                            std::size_t to, RequestId request);
  std::optional<std::size_t> window_on_host(std::uint32_t group, std::span<const PageKey> keys, std::size_t from,
                                            std::size_t to, Tokens end, RequestId request);
  std::size_t blocks_to_load(const BlockGroup& group, Tokens end) const;
  void load_blocks(std::span<const PageKey> keys, const PrefixMatch& match, RequestId request, RequestPools& pools);
  void offload(RequestPools& pools, std::span<const PageKey> keys, Tokens computed);
  bool offload(std::span<const BlockGroups::Held> blocks, std::span<const PageKey> keys, RequestId request);
  void add_copy(Lanes& lanes, BlockCopy copy, std::span<const SlotId> slots, bool to_device);
  void submit_blocks(Lanes& lanes, Direction direction, bool busy);
  void acknowledge_blocks(const Transfer& transfer, bool to_device, bool done);
  void report_host_chunks();
  std::vector<TieredChunksConfig::Further> further_tiers() const;
  void ask_tier(const TieredChunks::LookUps& look_ups);
  void read_from_tier(const TieredChunks::Job& job);
  void write_to_tiers(const BlockCopy& copy);
  void end_tier_copy(std::uint64_t store, bool done);
  bool is_page(const ChunkKey& key) const { return key.group == 0; }
  bool allocate_blocks(Pages pages, std::vector<SlotId>& slots, RequestPools& pools);
  void append_slots(const RequestPools& pools, Pages pages, std::vector<SlotId>& slots) const;
  void report_blocks();
  PrefixMatch usable(PrefixMatch found) const;
  void use_path(NodeId end);
  void weigh_victims();
  void begin_offload();
  // The victims of a pool for one allocation.
  struct VictimWalk {
    EvictionTurn turn = EvictionTurn::ended;  // of the last victim when it was chosen
    NodeId chosen = NodeId::none;             // the next one, if that is known
  };
  NodeId victim_beside(std::size_t at, Tier tier, VictimWalk& walk) const;
  bool lacks_copy_beside(NodeId id, bool& under_way) const;
  void evict_from_pool(std::size_t at, NodeId victim, Reason reason);
  void drop_beside(NodeId id, Tier tier);
  bool take_slots(std::size_t at, Tier tier, Pages count, std::vector<SlotId>& slots);
  void free_slots(std::size_t at, Tier tier, std::span<const SlotId> slots);
  void add_windows(std::size_t at, NodeId end, const std::vector<SlotId>& own, Pages first, Pages count,
                   std::vector<SlotId>& slots) const;
  SlotId tracking_slot(const RequestPools& pools, std::size_t at, std::uint32_t ahead) const;
  Tokens tracked_by_prefill(const RequestPools& pools, Tokens from, Tokens to) const;
  Transfer* load_with_mark(OperationId mark);
  void make_room_beside(std::size_t at, Pages slots);
  SlotId take_state(std::size_t at);
  Pages states_of_request() const { return state_points_ == nullptr ? 0 : 1 + state_points_->tracking_slots(); }
  void release_windows(RequestPools& pools, Tokens length, Pages shared, Tokens interval);
  void give_windows(RequestPools& pools, NodeId end, Pages from, bool is_new);
  void free_windows(RequestPools& pools, std::size_t at, Pages from, Pages to);
  void give_states(RequestPools& pools, NodeId end);
  void limit_states(std::size_t at, NodeId end);
  void cut_for_lease(std::size_t at, NodeId end);
  void lease_beside(RequestPools& pools, NodeId end);
  std::vector<NodeId> uncopied(std::size_t at, NodeId id) const;
  using CopiedNodes = std::vector<std::vector<NodeId>>;  // by pool
  CopiedNodes uncopied(NodeId id) const;
  Pages slots_of(std::size_t at, const std::vector<NodeId>& nodes) const;
  bool make_host_room_beside(const CopiedNodes& nodes);
  bool make_host_room_beside(NodeId id);
  void copy_slots_beside(std::size_t at, NodeId node);
  bool copy_evicted(NodeId id);
  void copy_inner(std::size_t at, NodeId victim);
  void copy_again(Transfer&& transfer);
  void withdraw_copies(std::vector<PageMove>& moves, std::span<const SlotId> targets);
  void release_host(std::span<const SlotId> slots);
  void report_device_slots(EventKind kind, std::span<const SlotId> slots, std::size_t pool = 0);
  void copy_beside(NodeId id);
  void lease_copies(Transfer& transfer, std::size_t at, Tier tier, NodeId end);
  void evict_host_pool(std::size_t at, Pages slots);
  void evict_host_node(NodeId victim, Pages pages, Reason reason = Reason::lost);
  void add_copies(NodeId end);
  bool make_load_room(const PrefixMatch& match, Pages pages, RequestPools& pools);
  bool try_load_room(const PrefixMatch& match, Pages pages, RequestPools& pools);
  std::vector<NodeId> windows_to_load(std::size_t at, NodeId end) const;
  void load_beside(const PrefixMatch& match, RequestPools& pools);
  void acknowledge_beside(const Transfer& transfer, Tier target, bool done);
  void put_beside(NodeId end, PoolSlots& beside);
  void check_pools(std::span<const RequestPools* const> requests, std::span<const Pages> prefetch_beside) const;
  bool counts_at_insert() const { return config_.count_touches == TouchCount::insert; }
  bool is_load_admitted(const PrefixMatch& match, Tokens beside) const;
  void choose_leaving(Pages target, bool may_lose, bool drops_holds = false);
  void choose_leaving(Pages target, bool may_lose, bool drops_holds, std::vector<NodeId>& kept);
  void demote_sessions();
  bool share(NodeId end, bool copies);
  void store_shared(NodeId id);
  bool demote(NodeId end);
  Pages writable_pages(const Node& node, Pages wanted);
  bool writes_under_way() const { return !backups_.transfers.empty() || !backups_.empty(); }
  void take_pages(Pages pages, std::vector<SlotId>& slots);
  bool loads_beside(const PrefixMatch& match) const;
  bool arrives(NodeId id) const;
  Pages evict_device(Pages pages);
  void evict_from_device(NodeId victim, Pages pages);
  Reason loss_of(const Node& node) const;
  void drop_below(NodeId top, Reason reason);
  void remove_host_copy(NodeId id, Reason reason);
  Pages evict_host(Pages pages);
  Pages reclaim_shadowed(Pages pages, Pages& to_write);
  void drop_shadowed_copy(NodeId id);
  std::uint32_t write_threshold() const;
  void back_up_path(NodeId end, Pages counted);
  bool queue_backup(NodeId id);
  void back_up_unstored(NodeId end, Pages counted);
  bool leaves_when_stored(NodeId id) const;
  void leave_host(NodeId end);
  bool queue_for_buffer(NodeId id);
  void leave_queue(NodeId id);
  std::vector<SlotId> clear_device(NodeId id);
  void write_from_buffer(NodeId id);
  void free_written(std::span<const SlotId> slots);
  void end_staged_load(NodeId id, bool done);
  // Pages of L2 may lie below pages that only L1 has.
  bool host_has_gaps() const { return tree_.leaves_by_choice() || config_.host_mode != HostMode::cache; }
  void store(NodeId id);
  void queue_transfer(NodeId id);
  bool copy_reachable(NodeId id) const;
  bool can_retry(NodeId id) const;
  void check_copies_reachable() const;
  void drop_host_copies(NodeId top);
  Pages refill(NodeId end, Pages first, std::span<const SlotId> slots);
  void store_node(NodeId id, Pages first, Pages pages, std::size_t tiers_to);
  void store_arrived(NodeId id);
  void store_queued(NodeId id);
  bool store_before_eviction(NodeId victim, Pages pages, Pages& to_write);
  void store_passed_over(Pages& to_write);
  Pages clean_host_pages() const;
  void grow_host_reserve(Pages lost);
  void keep_host_reserve();
  void store_by_hits(NodeId end, Pages counted);
  void settle_direct_loads();
  bool is_loading(SlotId slot) const { return slot < loading_slots_.size() && loading_slots_[slot]; }
  void mark_loading(std::span<const SlotId> slots, bool loading);
  void release_device(std::span<const SlotId> slots);
  void drop_device_below(NodeId top);
  void drop_direct(NodeId id);
  bool has_direct_load(NodeId end) const;
  void acknowledge_backup(const Transfer& transfer, bool done);
  void acknowledge_load(Transfer transfer, bool done);
  std::vector<NodeId> marked_nodes(const Transfer& transfer, bool load) const;
  static OperationId mark_of(const Lanes& lanes) { return OperationId{lanes.marks + 1}; }
  void submit(Lanes& lanes, Direction direction, bool busy);

  const EngineConfig& config_;
  Substrate& substrate_;
  Storage& storage_;
  const EventSink& sink_;
  const std::unique_ptr<WritePolicy> write_;
  const std::unique_ptr<LoadBackAdmission> load_back_admission_;
  const bool writes_back_;     // to L2
  const bool copies_evicted_;  // writes_back_, with windows or states
  RadixTree tree_;
  std::optional<SessionRadix> session_radix_;  // none: sessions do not order evictions
  std::unique_ptr<SessionHolds> holds_;        // null: hints are left to the policies
  PagePool device_, host_;
  std::vector<Beside> pools_;
  std::unique_ptr<PoolEviction> pool_eviction_;  // null: there are no pools
  std::optional<PoolVictims> victims_;           // empty: the least recently used node of a pool goes
  std::unique_ptr<StatePoints> state_points_;    // null: no pool has states
  std::unique_ptr<BlockGroups> blocks_;          // null: L1 has the tree and the pools above
  std::uint32_t leased_blocks_ = 0;              // of lease(PrefixMatch)
  std::unique_ptr<TieredChunks> offload_;        // null: the blocks have no host tier
  std::vector<std::uint32_t> look_up_order_;     // the groups, as a look-up in the host tier takes them
  ChunkKeySet loading_;                          // from the host tier
  std::vector<std::pair<RequestId, std::vector<PageKey>>> asking_;  // in this step, what depends on storage tiers
  std::map<OperationId, std::vector<TierLookUps::Asked>> tier_look_ups_;
  std::map<OperationId, std::uint64_t> tier_reads_;  // the job of each
  std::map<std::uint64_t, TierRead> reading_;        // by job
  std::map<std::uint64_t, TierCopy> tier_copies_;    // by the hold of Storage::write_to()
  OperationId settled_load_ = OperationId::none;     // the mark of the last load that was acknowledged
  const Pages reserve_pages_;
  Lanes backups_, loads_;
  std::vector<DirectLoad> direct_loads_;  // of one step; they are settled together
  std::vector<bool> loading_slots_;       // by slot of L1: a request's own page that direct_loads_ may still write
  std::vector<SlotId> given_back_;        // by requests, while direct_loads_ may still write them
  std::vector<Transfer> failed_loads_;    // failed loads that wait for direct_loads_ to be settled
  std::uint64_t direct_marks_ = std::uint64_t{1} << 63;
  std::map<std::uint64_t, Store> stores_;
  std::uint64_t last_store_ = 0;
  CopyQueue queued_;                // copies that wait for room in a host buffer, or on L2 for their write to storage
  std::deque<NodeId> passed_over_;  // nodes that L2 was to evict before their write; some may have been written since
  Pages host_reserve_;              // clean_host_pages() that writes keep
  Pages writing_pages_ = 0;         // of the buffer, for writes
  std::vector<OperationId> gates_;
  Pages device_used_max_ = 0, host_used_max_ = 0;
  // Changes of slots of L1 that are reported when the copies under way have been read.
  struct HeldSlots {
    EventKind kind = EventKind::slots_allocated;
    std::size_t pool = 0;  // as in Event
    std::vector<SlotId> slots;
  };
  std::vector<HeldSlots> held_slots_;
  // Scratch memory, so that a steady state allocates nothing.
  std::vector<NodeId> cut_off_;  // by the insert in hand: parts of nodes that it does not count
  std::vector<SlotId> freed_device_, freed_host_, freed_beside_, sources_, targets_;
  std::vector<PageRun> runs_;
  std::vector<NodeId> path_;
};

}  // namespace kvtwin
