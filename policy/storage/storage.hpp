// The storage tiers (L3) of one engine, in the order in which they are asked: the operations on them, what all ranks
// agree of their results, and what is written to them and leaves them.
//
// Every operation is answered in the order of its queue (one each for look-ups, gets into L2, gets into L1, and
// sets with removes, a tier), and taken by the scheduler's step once every rank has its answer: the smallest count
// of pages counts. Look-ups and gets are answered to whom they were for; writes are this module's own affair:
//
//   write --> known there? no --> room made --> set --> stored, or tried again, or dropped for a reason
//
// Whoever has a page written keeps its slot leased until `ended` names the page's hold.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/config.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/seam/substrate.hpp"
#include "policy/storage/catalog.hpp"

namespace kvtwin {

// What became of a look-up or a get, on all ranks.
struct StorageAnswer {
  OperationId id = OperationId::none;
  StorageVerb verb = StorageVerb::look_up;
  std::size_t tier = 0;  // index into EngineConfig::storage
  Tier memory = Tier::host;
  RequestId request = kNoRequest;  // whose
  Pages asked = 0, pages = 0;
  bool done = false;    // not failed, not cancelled
  TimeNs answered = 0;  // on this rank; for accounts only
};

// Pages of a chain that came, or will come, from one tier.
struct FetchedRun {
  std::size_t tier = 0;  // index into EngineConfig::storage
  Pages first = 0, pages = 0;
};

constexpr std::size_t kStorageQueues = 4;  // of a tier
// What a rank says of the head of each queue: 0 = not answered yet, else 1 + 2 * pages + (done ? 1 : 0).
// Of each tier of EngineConfig::storage, in that order; zeros behind them.
using StorageHeads = std::array<std::int64_t, kStorageTiers * kStorageQueues>;

class Storage {
 public:
  Storage(const EngineConfig& config, Substrate& substrate, const EventSink& sink);

  std::size_t tiers() const { return tiers_.size(); }
  std::size_t queues() const { return tiers_.size() * kStorageQueues; }
  Tier tier(std::size_t index) const { return config_.storage[index].tier; }
  const Catalog& catalog(std::size_t index) const { return tiers_[index].catalog; }
  // A request goes to work on its path.
  void visit(const Visit& visit);
  void hint(const Hint& hint, TimeNs step_time);
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);

  // Asks for chain[first, end); the chain is the request's keys from the root on.
  OperationId look_up(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first);
  // Brings chain[first, first + slots.size()) into the slots. Returns the answer as far as it is known.
  StorageAnswer get(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first,
                    std::span<const SlotId> slots, Tier memory);

  // Keeps the catalog's victims off a page that is to be got later, and what lies above it. Counted.
  void pin(std::size_t tier, const PageKey& key) { tiers_[tier].catalog.pin(key); }
  void unpin(std::size_t tier, const PageKey& key) { tiers_[tier].catalog.unpin(key); }
  // A request to the store, as by Substrate::cancel; what falls short for it isn't held against the store.
  void cancel(const StorageAnswer& get);

  // Writes the pages that a tier doesn't know yet to it, to every tier below `tiers_to`; `prior` is the key of the
  // page before them, or null. Raises the priority of all of them. Returns the number of operations that will name
  // `hold` in `ended`.
  std::uint32_t write(std::uint64_t hold, const PageKey* prior, std::span<const PageKey> keys,
                      std::span<const SlotId> slots, Tier memory, std::size_t tiers_to, std::int32_t priority);
  // Of those pages that a tier has.
  void raise_priority(std::span<const PageKey> keys, std::int32_t priority);

  // True if the completion was one of ours.
  bool complete(const Completion& completion);
  StorageHeads heads() const;
  // Takes what all ranks have: one answer a queue. True if there was any. Fills answers() and ended().
  bool take(const StorageHeads& agreed);
  std::span<const StorageAnswer> answers() const { return answers_; }
  std::span<const std::uint64_t> ended() const { return ended_; }

  bool anything_in_flight() const { return in_flight_ > 0; }
  bool answer_due() const;  // at a queue's head
  void check_invariants() const;

 private:
  struct Job {
    StorageAnswer answer;  // `pages` and `done`: this rank's, until all agree
    bool complete = false;
    bool cancelled = false;
    std::optional<PageKey> prior;  // sets
    std::vector<PageKey> keys;
    std::vector<SlotId> slots;  // sets
    std::uint64_t hold = 0;
    std::uint64_t mark = 0;  // look-ups: the catalog's
    std::uint32_t attempts = 0;
    std::int32_t priority = 0;  // sets
  };
  struct TierState {
    Catalog catalog;
    std::array<std::deque<Job>, kStorageQueues> queues;
    std::unordered_map<PageKey, std::uint32_t, PageKeyHash> leaving;  // removes on their way, of each page
  };

  static std::size_t queue_of(StorageVerb verb, Tier memory);
  OperationId submit(std::size_t tier, Job job, std::span<const PageKey> keys, std::span<const SlotId> slots);
  std::uint32_t write_to(std::size_t tier, std::uint64_t hold, const PageKey* prior, std::span<const PageKey> keys,
                         std::span<const SlotId> slots, Tier memory, std::int32_t priority);
  Pages make_room(std::size_t tier, const PageKey* prior, Pages pages);
  void take(Job& job);
  void take_look_up(Job& job);
  void take_get(Job& job);
  void take_set(Job& job);
  void take_remove(Job& job);
  void lost(std::size_t tier, std::span<const PageKey> keys);
  void remove(std::size_t tier, std::span<const PageKey> keys);
  void drop(std::size_t tier, std::span<const PageKey> keys, Reason reason);

  const EngineConfig& config_;
  Substrate& substrate_;
  const EventSink& sink_;
  std::vector<TierState> tiers_;
  std::vector<StorageAnswer> answers_;
  std::vector<std::uint64_t> ended_;
  std::uint64_t in_flight_ = 0;
  Pages writing_ = 0;  // pages on their way to a tier, one count a tier
  // Scratch.
  std::vector<StoragePage> pages_;
  std::vector<PageKey> victims_;
};

}  // namespace kvtwin
