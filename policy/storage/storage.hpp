// The storage tiers (L3) of one engine, in the order of look-ups: the operations on them, the results on which all
// ranks agree, and which pages are written to the tiers and removed from them.
//
// Each tier has four queues: look-ups; gets into L2; gets into L1; sets with removes. Each operation is answered in the
// order of its queue. The scheduler's step takes an answer once every rank has it; the smallest number of pages counts.
// The caller gets the answers to look-ups and gets. This class handles the answers to writes:
//
//   write --> already known? no --> make room --> set --> stored, or tried again, or dropped with a reason
//
// Of a pool beside pool 0, a page has an object of its own: its windows, or the state behind it. It is read and written
// like a page, in the same queues. A look-up tells which lengths of the prefix are usable, so that no state is read
// that is of no use. The lengths that all ranks have in common are found by their largest ones: each rank names its
// largest length that is no larger than the smallest one named before, until all name the same.
//
// Requires: the caller of write() keeps the pages' slots leased until `ended` has the hold.
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

// The result of a look-up or a get on all ranks.
struct StorageAnswer {
  OperationId id = OperationId::none;
  StorageVerb verb = StorageVerb::look_up;
  std::size_t tier = 0;  // index into EngineConfig::storage
  Tier memory = Tier::host;
  RequestId request = kNoRequest;  // the request that it was for
  std::size_t pool = 0;            // of the slots: 0, or 1 + index in EngineConfig::pools
  Pages asked = 0, pages = 0;
  Pages usable = 0;     // look-ups: length of the usable prefix; without needs, like `pages`
  bool done = false;    // neither failed nor cancelled
  TimeNs answered = 0;  // on this rank; for reports only
};

// Pages of a chain that have come, or will come, from one tier.
struct FetchedRun {
  std::size_t tier = 0;  // index into EngineConfig::storage
  Pages first = 0, pages = 0;
};

constexpr std::size_t kStorageQueues = 4;  // per tier
// A rank's report of the head of each queue: 0 = no answer yet, else 1 + 2 * pages + (done ? 1 : 0). In the order of
// EngineConfig::storage. With pools, then of each tier's look-up the usable length, and a constant less this length.
using StorageHeads = std::array<std::int64_t, kStorageTiers*(kStorageQueues + 2)>;

class Storage {
 public:
  Storage(const EngineConfig& config, Substrate& substrate, const EventSink& sink);

  std::size_t tiers() const { return tiers_.size(); }
  std::size_t heads_width() const { return tiers_.size() * (kStorageQueues + (config_.pools.empty() ? 0 : 2)); }
  Tier tier(std::size_t index) const { return config_.storage[index].tier; }
  const Catalog& catalog(std::size_t index) const { return tiers_[index].catalog; }
  // A request goes to work on its path. Calls visit() of the policies; likewise below.
  void visit(const Visit& visit);
  void hint(const Hint& hint, TimeNs step_time);
  void queue(RequestId request, std::span<const PageKey> keys);
  void unqueue(RequestId request, std::span<const PageKey> keys);

  // Looks up chain[first, end). `chain`: the request's keys from the root on.
  OperationId look_up(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first,
                      std::span<const StorageOperation::Need> needs = {});
  // Reads chain[first, first + slots.size()), or what the pool has of these pages, into the slots. Returns the answer
  // with the fields known so far.
  StorageAnswer get(std::size_t tier, RequestId request, std::span<const PageKey> chain, Pages first,
                    std::span<const SlotId> slots, Tier memory, std::size_t pool = 0);

  // Protects a page that will be read later, and the pages above it, against eviction. Pins are counted.
  void pin(std::size_t tier, const PageKey& key) { tiers_[tier].catalog.pin(key); }
  void unpin(std::size_t tier, const PageKey& key) { tiers_[tier].catalog.unpin(key); }
  // Requests a cancel, as Substrate::cancel does. Pages that fall short because of it do not count as missing from the
  // store.
  void cancel(const StorageAnswer& get);
  void cancel(OperationId look_up) { substrate_.cancel(look_up); }

  // Writes the pages, or what the pool has of them, that a tier does not know yet, to every tier below `tiers_to`.
  // `prior`: the key of the page before them, or null. `parts`: of their path. Raises the priority of all these pages.
  // Returns the number of operations that will put `hold` into `ended`.
  std::uint32_t write(std::uint64_t hold, const PageKey* prior, std::span<const PageKey> keys,
                      std::span<const SlotId> slots, Tier memory, std::size_t tiers_to, std::int32_t priority,
                      std::size_t pool = 0, const PromptParts& parts = {});
  // The same to one tier.
  std::uint32_t write_to(std::size_t tier, std::uint64_t hold, const PageKey* prior, std::span<const PageKey> keys,
                         std::span<const SlotId> slots, Tier memory, std::int32_t priority, std::size_t pool = 0,
                         const PromptParts& parts = {});
  // Bytes of an object of the pool, of one rank.
  Bytes object_bytes(std::size_t pool) const {
    return pool == 0 ? config_.page_bytes() : config_.pools[pool - 1].shape.page_bytes();
  }
  // Pages of a tier that were in use at most, in pages of pool 0.
  Pages used_max(std::size_t tier) const { return tiers_[tier].catalog.used_max() / units_of_page(); }
  // Returns whether every tier has each of these pages.
  bool has_all(std::span<const PageKey> keys) const;
  // The same for pages that are there or on their way.
  bool knows_all(std::span<const PageKey> keys) const;
  // Raises the priority of the pages that a tier has.
  void raise_priority(std::span<const PageKey> keys, std::int32_t priority);

  // Returns true if the completion belongs to an operation of this class.
  bool complete(const Completion& completion);
  StorageHeads heads() const;
  // Takes the answers that all ranks have, at most one per queue. Returns true if there was any. Fills answers() and
  // ended(). `agreed`: the least of each value.
  bool take(const StorageHeads& agreed);
  std::span<const StorageAnswer> answers() const { return answers_; }
  struct Ended {
    std::uint64_t hold = 0;
    bool done = false;  // all pages are stored
  };
  std::span<const Ended> ended() const { return ended_; }

  // Returns whether no request may be admitted, because of the writes in flight.
  bool blocks_admission() const;
  Pages writing() const { return writing_; }  // pages on their way to a tier, counted once per tier

  bool anything_in_flight() const { return in_flight_ > 0; }
  bool answer_due() const;  // at the head of a queue
  void check_invariants() const;

 private:
  struct Job {
    StorageAnswer answer;  // `pages` and `done` are this rank's until all ranks agree
    bool complete = false;
    bool cancelled = false;
    std::optional<PageKey> prior;  // sets
    std::vector<PageKey> keys;
    std::vector<PageKey> pages;  // sets of another pool: the pages that the objects are of
    std::vector<SlotId> slots;   // sets
    std::vector<StorageOperation::Need> needs;
    std::vector<Pages> usable;  // look-ups: on this rank
    Pages bound = 0;            // the usable length that all ranks have in common is no larger
    std::uint64_t hold = 0;
    std::uint64_t mark = 0;  // look-ups: mark of the catalog at submission
    std::uint32_t attempts = 0;
    TimeNs submitted = 0;       // on this rank; for events only
    std::int32_t priority = 0;  // sets
    PromptParts parts;          // sets: of their path
  };
  struct TierState {
    Catalog catalog;
    std::array<std::deque<Job>, kStorageQueues> queues;
    // Pages that removes in flight are removing, with the number of these removes.
    std::unordered_map<PageKey, std::uint32_t, PageKeyHash> being_removed;
    std::uint64_t left_out = 0;  // under throttle: of a write, in 1/write_limit()
  };

  static std::size_t queue_of(StorageVerb verb, Tier memory);
  OperationId submit(std::size_t tier, Job job, std::span<const PageKey> keys, std::span<const SlotId> slots);
  std::uint32_t write_run(std::size_t tier, std::uint64_t hold, const PageKey* prior, std::span<const PageKey> keys,
                          std::span<const SlotId> slots, Tier memory, std::int32_t priority, std::size_t pool,
                          const PromptParts& parts);
  Pages write_limit() const;
  bool leaves_out(std::size_t tier, Pages pages);
  Pages make_room(std::size_t tier, const PageKey* prior, Pages pages, std::size_t pool);
  void begin_write(std::size_t tier, const Job& job);
  bool is_state(std::size_t pool) const { return pool != 0 && config_.pools[pool - 1].closure == Closure::point; }
  // A state is another one on each rank.
  std::uint32_t writers(std::size_t pool) const { return is_state(pool) ? config_.ranks : config_.storage_writers; }
  // A page's part of a catalog's capacity: 1, or with pools, whose objects are of other sizes, the bytes of all ranks
  // that write.
  Pages units_of_page() const { return config_.pools.empty() ? 1 : config_.page_bytes() * writers(0); }
  std::vector<PageKey> keys_in(std::size_t pool, std::span<const PageKey> pages) const;
  static Pages largest_usable(const Job& job);
  static std::span<const PageKey> pinned(const Job& job);
  template <typename Visit>
  static bool each_needed(const Job& job, Pages length, Visit visit);
  bool removes_needed(const Job& job) const;
  void sync_objects(const Job& job);
  void take(Job& job);
  void take_look_up(Job& job);
  void take_get(Job& job);
  void take_set(Job& job);
  void take_remove(Job& job);
  void report(Event event) const;
  void forget_lost(std::size_t tier, std::span<const PageKey> keys);
  void remove(std::size_t tier, std::span<const PageKey> keys);
  void drop(std::size_t tier, std::span<const PageKey> keys, Reason reason, std::size_t pool);

  const EngineConfig& config_;
  Substrate& substrate_;
  const EventSink& sink_;
  std::vector<TierState> tiers_;
  std::vector<StorageAnswer> answers_;
  std::vector<Ended> ended_;
  std::uint64_t in_flight_ = 0;
  Pages writing_ = 0;
  // Scratch.
  std::vector<StoragePage> pages_;
  std::vector<PageKey> victims_;
};

}  // namespace kvtwin
