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
// Slots are given and marked at once (*), so that a second request shares the copy; safety comes from
// leases, which last until the acknowledgement, and from gates: a forward pass names every load in flight.
// Acknowledgements are counted from the oldest transfer on and committed by the scheduler's step, so that
// ranks agree on them. A failed backup drops the copy on L2, a failed load the copy on L1; nobody read either.
//
// Write-back: pages leave L1 by choice. Ahead of need, so many are chosen in eviction order, leaves' tails first,
// that a reserve of L1 is free, clean (L2 has a copy) or on its way to L2; only what was chosen is evicted. Thus
// no allocation waits inside the scheduler for a copy. Where the reserve doesn't reach, a request waits for the
// copies under way; where there are none, because L2 has no room or copies fail, the pages are chosen all the same
// and their eviction loses them, with all that only L2 has below them.
//
// What has arrived on L2 is written on to the storage tiers; without L2, what enters L1 is, by the same rule as to L2.
//
// A backup that failed is tried again, in its place, backup_retries times. Two ways a copy on L2 goes while L1 keeps
// the page: L2 is short of room (reclaim_shadowed), or it has been loaded back and the tiers are exclusive.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "policy/config.hpp"
#include "policy/index/page_pool.hpp"
#include "policy/index/radix_tree.hpp"
#include "policy/load_back_admission.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/seam/substrate.hpp"
#include "policy/storage/storage.hpp"
#include "policy/write.hpp"

namespace kvtwin {

enum class Room : std::uint8_t {
  now,
  later,  // a write-back under way makes it
  never,  // not as long as the leases last
};

// A lease on a path's copies that lasts as long as an operation of a storage tier needs them.
struct Hold {
  NodeId host_end = NodeId::none;    // leased on L2
  NodeId device_end = NodeId::none;  // and on L1: under write-back, what lies above an L2 page can be lost with it
};

class Cache {
 public:
  Cache(const EngineConfig& config, Substrate& substrate, Storage& storage, const EventSink& sink);

  PrefixMatch peek(std::span<const PageKey> keys) const { return tree_.peek(keys); }
  // Longest prefix on any tier; ends at a node's end, so that it can be leased.
  PrefixMatch match(std::span<const PageKey> keys) { return tree_.match(keys); }
  // Counts one access of the path.
  void touch(NodeId end) { tree_.touch(end, tree_.next_stamp()); }
  // A request goes to work on its path: tells the eviction policies of every tier.
  void visit(const Visit& visit);
  void hint(const Hint& hint, TimeNs step_time);
  // A request begins to wait, and ends, for these pages.
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);

  void lease(NodeId end) { tree_.lease_device(end); }
  void release(NodeId end) { tree_.release_device(end); }

  // Free pages plus pages that eviction would free.
  Pages obtainable_pages() const { return device_.available() + tree_.evictable_device_pages(); }
  // The same, once all that could be written back has been: what to plan with.
  Pages promised_pages() const {
    return tree_.leaves_by_choice() ? device_.available() + tree_.unleased_device_pages() : obtainable_pages();
  }
  // Chooses pages to leave L1 until `pages` are obtainable or will be; loses none for it.
  void prepare(Pages pages);
  // Prepares, and if nothing is under way that a wait would be for, loses what it must; nothing of the path that
  // ends at `kept`, whose device part is leased.
  Room make_room(Pages pages, NodeId kept);
  // Keeps the clean reserve.
  void keep_reserve() { prepare(reserve_pages_); }
  // Appends `pages` device slots, evicting as needed; false and nothing done if that can't be.
  bool allocate(Pages pages, std::vector<SlotId>& slots);
  void free(std::span<const SlotId> slots);

  // Brings the host part of `match` (just returned by match, its device part leased) to L1: all of it or
  // nothing. Queues the transfer for submit_loads. Reason::none on success. `beside`: tokens that the pass which waits
  // for it computes after them.
  Reason load_back(const PrefixMatch& match, RequestId request, Tokens beside);
  // Brings `runs` of the chain `keys`, the first of which begins where the path to `end` ends, from storage tiers
  // straight to L1, and moves `end` on. `end` is leased. The gets are submitted at once and gate what follows.
  Reason load_direct(std::span<const PageKey> keys, std::span<const FetchedRun> runs, RequestId request, NodeId& end);
  // A load of those has been answered on all ranks.
  void take_direct(const StorageAnswer& answer);
  // Slots of the path's first `pages` pages that end at `end`, appended in order.
  void path_slots(NodeId end, std::vector<SlotId>& slots) const;
  // Of the path's pages, those that lack the draft model's KV.
  Pages pages_without_draft(NodeId end) const;

  // Gives a request's computed pages to the index. slots[0, shared) are the index's already, the rest the
  // request's; afterwards all of slots[0, keys.size()) are the index's, duplicates freed and replaced.
  // `chunked`: more of this prompt follows, no backup yet. `counted`: the request's earlier complete inserts ended
  // here; the nodes up to there have had its hit. Returns the end node.
  NodeId insert(std::span<const PageKey> keys, std::span<SlotId> slots, Pages shared, bool chunked, Pages counted,
                std::int32_t priority);

  // ---- for prefetches: pages that come to L2 from a storage tier ----
  // May L2 pages be put below `end`? Only under write-back if what lies above isn't on L2.
  bool can_extend_on_host(NodeId end) const;
  // Of the L2 copies on the path to `end`; of none if `end` isn't on L2.
  Hold hold(NodeId end);
  void unhold(const Hold& hold);
  // Evicts from L2 as needed; returns for how many of the pages there is room.
  Pages make_host_room(Pages pages);
  void allocate_host(Pages pages, std::vector<SlotId>& slots);
  void free_host(std::span<const SlotId> slots);
  struct Adoption {
    Pages pages = 0;                // that entered the index
    Reason refused = Reason::none;  // why the others didn't
    NodeId end = NodeId::none;      // of those that did
  };
  // Takes over slots with the chain's pages from `first` on, the last of `keys`; those it doesn't keep are freed. Their
  // priority is that of the page above them, until the request inserts them (HiCache's rule).
  Adoption adopt(std::span<const PageKey> keys, Pages first, std::span<const SlotId> slots);
  // Writes pages [from, to) of the chain, as far as they are in the node `end`, to the first `tiers_to` tiers.
  void store_path(NodeId end, Pages from, Pages to, std::size_t tiers_to);
  // A write of `hold` has ended.
  void end_store(std::uint64_t hold);

  // One merged operation each for what was queued; none if nothing was. `beside_a_pass`: the GPU computes meanwhile.
  // (A load's pass waits for it.)
  void submit_loads();
  void submit_backups(bool beside_a_pass);
  // Loads not yet complete: the gates of a forward pass.
  std::span<const OperationId> loads_in_flight() const { return gates_; }

  // True if the completion belongs to a transfer of ours.
  bool complete(const Completion& completion);
  // A load from a storage tier gates nothing any more.
  void load_answered(OperationId id) { std::erase(gates_, id); }
  // Transfers complete so far, counted from the oldest on without a gap.
  std::uint64_t backups_complete() const { return backups_.complete_from_oldest; }
  std::uint64_t loads_complete() const { return loads_.complete_from_oldest; }
  // The oldest one that has failed and isn't acknowledged yet, by its number from 0 on; kNoFailure if none.
  static constexpr std::uint64_t kNoFailure = std::uint64_t{1} << 62;
  std::uint64_t backup_failure() const { return first_failure(backups_); }
  std::uint64_t load_failure() const { return first_failure(loads_); }
  // Acknowledges up to these totals, one of them as failed; of those after it nothing is known yet, so that they
  // wait for the next round: then it returns true.
  struct Acknowledged {
    std::uint64_t total = 0, failure = kNoFailure;
  };
  bool commit(const Acknowledged& backups, const Acknowledged& loads);
  bool loading() const { return !loads_.transfers.empty() || !directs_.empty(); }
  bool acknowledgement_due() const {
    return backups_.complete_from_oldest > backups_.committed || loads_.complete_from_oldest > loads_.committed;
  }
  bool anything_in_flight() const { return !backups_.transfers.empty() || !loads_.transfers.empty(); }

  Pages device_used_max() const { return device_used_max_; }
  Pages host_used_max() const { return host_used_max_; }
  const RadixTree& tree() const { return tree_; }
  // Nothing is leased, in flight or owned outside the index.
  void check_rest() const;
  // `request_pages`: device pages that requests own outside the index; `prefetch_pages`: host pages that prefetches do.
  void check_invariants(Pages request_pages, Pages prefetch_pages) const;

 private:
  struct Transfer {
    OperationId id = OperationId::none;
    OperationId mark = OperationId::none;  // what its nodes carry; see mark_of
    std::vector<NodeId> ends;              // one node for each that was queued; a load's are leased
    Pages pages = 0;
    bool complete = false;
    Status status = Status::done;
  };
  struct DirectLoad {
    StorageAnswer get;
    NodeId node = NodeId::none;
    OperationId mark = OperationId::none;
    bool answered = false;
  };
  struct Store {
    Hold hold;
    std::uint32_t jobs = 0;
  };
  struct Lanes {
    std::deque<Transfer> transfers;  // oldest first
    std::uint64_t committed = 0;
    std::uint64_t complete_from_oldest = 0;
    Transfer queued;
    std::vector<PageMove> moves;
    std::uint64_t marks = 0;
  };

  bool loading_pays(const PrefixMatch& match, Tokens beside) const;
  void choose_leaving(Pages target, bool may_lose);
  Pages writable_pages(const Node& node, Pages wanted);
  bool writes_under_way() const { return !backups_.transfers.empty() || !backups_.moves.empty(); }
  Pages evict_device(Pages pages);
  Reason loss_of(const Node& node) const;
  void drop_below(NodeId top, Reason reason);
  void remove_host_copy(NodeId id, Reason reason);
  Pages evict_host(Pages pages);
  Pages reclaim_shadowed(Pages pages);
  void shed_copy(NodeId id);
  std::uint32_t write_threshold() const;
  void back_up_path(NodeId end, Pages counted);
  bool queue_backup(NodeId id);
  void store(NodeId id);
  void queue_transfer(NodeId id);
  bool copy_reachable(NodeId id) const;
  bool can_retry(NodeId id) const;
  void check_copies_reachable() const;
  void drop_host_copies(NodeId top);
  void store_node(NodeId id, Pages first, Pages pages, std::size_t tiers_to);
  void store_by_hits(NodeId end, Pages counted);
  void settle_directs();
  void drop_device_below(NodeId top);
  void drop_direct(NodeId id);
  bool loaded_straight(NodeId end) const;
  void acknowledge_backup(Transfer& transfer);
  void acknowledge_load(Transfer& transfer);
  std::vector<NodeId> marked_nodes(const Transfer& transfer, bool load) const;
  static OperationId mark_of(const Lanes& lanes) { return OperationId{lanes.marks + 1}; }
  void submit(Lanes& lanes, Direction direction, bool busy);
  static std::uint64_t first_failure(const Lanes& lanes);

  const EngineConfig& config_;
  Substrate& substrate_;
  Storage& storage_;
  const EventSink& sink_;
  const std::unique_ptr<WritePolicy> write_;
  const std::unique_ptr<LoadBackAdmission> load_back_admission_;
  RadixTree tree_;
  PagePool device_, host_;
  const Pages reserve_pages_;
  Lanes backups_, loads_;
  std::vector<DirectLoad> directs_;     // of one step; settled together
  std::vector<Transfer> failed_loads_;  // that wait for those
  std::uint64_t direct_marks_ = std::uint64_t{1} << 63;
  std::map<std::uint64_t, Store> stores_;
  std::uint64_t last_store_ = 0;
  std::vector<OperationId> gates_;
  Pages device_used_max_ = 0, host_used_max_ = 0;
  // Scratch, to allocate nothing in the steady state.
  std::vector<SlotId> freed_device_, freed_host_, sources_, targets_;
  std::vector<PageRun> runs_;
  std::vector<NodeId> path_;
};

}  // namespace kvtwin
