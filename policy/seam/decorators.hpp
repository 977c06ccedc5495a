// Decorators between an engine and its world. Neither side notices them. In this picture, inputs go to the right and
// calls to the left:
//
//   world     -->  Faulty  -->  Checking  -->  Recording  -->  engine      inputs
//   world     <--  Faulty  <--  Checking  <------------------  engine      calls
//
// Recording writes the journal. Checking stops the program (KV_CHECK) on a broken contract (contract.hpp). Faulty
// injects failures. An engine needs its substrate when it is made, so the handler is connected afterwards, before the
// first input. Requires: all referenced objects outlive the decorator.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "policy/seam/contract.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/hand_over_gap.hpp"
#include "policy/seam/journal.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// Passes each input on, then writes it to the journal with the decisions after it. So an input that breaks the engine
// is the one after the last record.
class Recording final : public InputHandler {
 public:
  Recording(InputHandler& inner, const DecisionLog& decisions, JournalWriter& journal)
      : inner_(inner), decisions_(decisions), journal_(journal) {}
  void handle(const Input& input) override;

 private:
  InputHandler& inner_;
  const DecisionLog& decisions_;
  JournalWriter& journal_;
};

// Checks more than the contract's terms: the clock stands still while an input is handled; no input comes during a call
// or another input; the policy calls only while it handles an input.
class Checking final : public Substrate, public InputHandler {
 public:
  Checking(Substrate& world, const ContractTerms& terms) : world_(world), contract_(terms) {}
  void connect(InputHandler& handler) { handler_ = &handler; }

  TimeNs now() const override;
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;
  void notify(std::uint32_t peer, const Notice& notice) override;
  void handle(const Input& input) override;

  std::size_t outstanding() const { return contract_.outstanding(); }
  // The run is over. Checks that every operation has been answered.
  void finish() const;

 private:
  class Call;

  Substrate& world_;
  InputHandler* handler_ = nullptr;
  SeamContract contract_;
  TimeNs now_ = 0;  // of the current input
  bool handling_ = false;
  bool calling_ = false;
};

// Shares in 1/1024: of transfers, of bursts, of storage operations of the named verb, or of all remote operations or
// operations in flight.
struct FaultShares {
  std::uint32_t failed_transfers = 0;
  std::uint32_t cut_bursts = 0;
  // A storage operation that ends before a drawn page:
  std::uint32_t read_errors = 0;    // get: io_error
  std::uint32_t short_reads = 0;    // get: also io_error
  std::uint32_t corrupt_pages = 0;  // get: corrupt
  std::uint32_t write_errors = 0;   // set: io_error
  std::uint32_t full = 0;           // set: at its first page
  std::uint32_t lost_writes = 0;    // set: completes as done, but its pages from a drawn one on are missing afterwards
  // Operations of remote tiers: all pages unreachable, for a drawn number of operations or for good.
  std::uint32_t link_down = 0;
  std::uint32_t dead_node = 0;
  // Time and number of completions:
  std::uint32_t slow = 0;        // storage: up to 99 times its own time later
  std::uint32_t late = 0;        // storage, transfers: up to a millisecond later
  std::uint32_t duplicates = 0;  // storage: a second completion, up to a millisecond later
  std::uint32_t cancels = 0;     // storage, transfers: cancelled when a drawn later input comes
  std::uint32_t failed_hand_overs = 0;
};

// Faults that took effect. A fault that the world produced by itself is not counted.
struct FaultCounts {
  std::uint64_t failed_transfers = 0;
  std::uint64_t failed_gates = 0;  // passes that ended gate_failed because of a failed transfer
  std::uint64_t cut_bursts = 0;    // cancels sent; a burst in its last step may still end complete
  std::uint64_t read_errors = 0, short_reads = 0, corrupt_pages = 0;
  std::uint64_t write_errors = 0, full = 0;
  std::uint64_t lost_writes = 0;               // sets
  std::uint64_t lost_found = 0;                // gets and look-ups that ended at a lost page
  std::uint64_t link_down = 0, dead_node = 0;  // operations
  std::uint64_t slow = 0, late = 0, duplicates = 0;
  std::uint64_t cancels = 0;  // cancels sent; bytes moved before stay moved
  std::uint64_t failed_hand_overs = 0;
};

// Injects failures over any world. Each fault is drawn with its share when the operation is submitted. Equal seeds and
// inputs give equal faults.
//
// The world below still does its work: slots of pages that are not counted hold any bytes, and a refused page may be
// stored. A fault only takes away. A pass whose gate fails ends gate_failed. Completions of one verb and tier keep
// their order when one is delayed, and a pass waits for its gates. The order of other inputs of equal time is lost. Ids
// on the engine's side are 1, 2, 3 ...; the world's ids differ, because Faulty's own timers take some.
class Faulty final : public Substrate, public InputHandler {
 public:
  Faulty(Substrate& world, const FaultShares& shares, std::uint64_t seed)
      : world_(world), shares_(shares), random_(seed) {}
  void connect(InputHandler& handler) { handler_ = &handler; }

  TimeNs now() const override { return world_.now(); }
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;
  void notify(std::uint32_t peer, const Notice& notice) override { world_.notify(peer, notice); }
  void handle(const Input& input) override;

  const FaultCounts& counts() const { return counts_; }

 private:
  using Count = std::uint64_t FaultCounts::*;
  // The faults of one operation.
  struct Fate {
    Count ends_by = nullptr;  // the operation ends at the latest before `page`
    Cause cause = Cause::none;
    Pages page = 0;
    bool loses = false;  // a set loses its pages from `lost_from` on
    Pages lost_from = 0;
    TimeNs slow = 0, late = 0, again = 0;  // slow: factor of the time taken; late, again: ns
  };
  struct Flight {
    OperationId engine_id = OperationId::none, world_id = OperationId::none;
    TimeNs since = 0;
    bool will_fail = false;  // a transfer, load or pass that will be reported as failed
    bool stores = false;     // a storage operation
    bool hands_over = false;
    bool stand_in = false;   // a timer in place of a pass that the world must not run
    std::uint8_t order = 0;  // operations with the same number stay in order; 0 = any order
    Fate fate = {};
    std::vector<OperationId> gates = {};  // engine ids
    std::vector<PageKey> names = {};      // names of a set's pages
    std::vector<Pages> found = {};        // of a look-up with needs: lengths that lack nothing that was lost
  };
  // A completion that waits for its timer, for others of its order, or for its gates.
  struct Held {
    Completion completion;
    std::vector<Pages> usable = {};         // what `completion` points to
    OperationId timer = OperationId::none;  // id in the world; none = due
    std::uint8_t order = 0;
    TimeNs again = 0;
    bool duplicate = false;
    std::vector<OperationId> gates = {};
  };

  std::uint64_t draw();
  // A share of 0 draws no number, so a new kind of fault does not change the sequence of the others.
  bool drawn(std::uint32_t share) { return share > 0 && draw() % 1024 < share; }
  Flight& open(OperationId world_id);
  Flight* find(OperationId engine_id);
  OperationId submit_pass(const ForwardOperation& pass);
  OperationId submit_storage(const StorageOperation& operation);
  OperationId submit_hand_over(const HandOverOperation& operation);
  void draw_times(Flight& flight);
  void draw_fate(Flight& flight, const StorageOperation& operation);
  void draw_end(Fate& fate, Count count, std::uint32_t share, Cause cause, Pages pages);
  void draw_unreachable(Fate& fate);
  void find_lost(Fate& fate, const StorageOperation& operation);
  void cancel_some(OperationId completing);
  void take(const Completion& completion);
  Completion distorted(const Flight& flight, const Completion& completion);
  void end_early(const Fate& fate, bool look_up, Completion& reported);
  void lose_pages(const Flight& flight, const Completion& reported);
  const Held* held(OperationId engine_id) const;
  bool due(std::size_t at) const;
  void deliver_due();

  Substrate& world_;
  FaultShares shares_;
  std::uint64_t random_;
  InputHandler* handler_ = nullptr;
  FaultCounts counts_;
  std::uint64_t last_id_ = 0;
  std::vector<Flight> flights_;                                      // in the order of both ids; few at a time
  std::vector<Held> held_;                                           // in the order in which the world answered
  std::vector<OperationId> bursts_to_cut_, to_cancel_;               // engine ids
  std::unordered_set<PageKey, PageKeyHash> lost_;                    // names of stored pages
  std::map<std::pair<RequestId, std::uint32_t>, HandOverGap> gaps_;  // open ones, by request and attempt
  std::uint64_t operations_down_ = 0;  // the number of operations for which the link stays down
  bool node_dead_ = false;
};

}  // namespace kvtwin
