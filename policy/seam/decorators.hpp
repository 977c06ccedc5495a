// What can be put between an engine and its world, on either side of which nobody notices. Inputs come down
// the left column, calls go up the right:
//
//   world     -->  Faulty  -->  Checking  -->  Recording  -->  engine      inputs
//   world     <--  Faulty  <--  Checking  <------------------  engine      calls
//
// Recording writes the journal, Checking breaks off (KV_CHECK) on a broken contract (contract.hpp), Faulty
// injects failures. An engine needs its substrate when it is made, so the handler is connected afterwards,
// before the first input. Everything referred to outlives the decorator.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "policy/seam/contract.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/journal.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// Hands each input on, then journals it with the decisions after it: what breaks the engine is the input
// after the last record.
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

// Besides the contract's terms: the clock stands still while an input is handled, no input comes during a
// call or another input, and the policy calls only while it handles an input.
class Checking final : public Substrate, public InputHandler {
 public:
  Checking(Substrate& world, const ContractTerms& terms) : world_(world), contract_(terms) {}
  void connect(InputHandler& handler) { handler_ = &handler; }

  TimeNs now() const override;
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;
  void handle(const Input& input) override;

  std::size_t outstanding() const { return contract_.outstanding(); }
  // The run is over: everything has been answered.
  void finish() const;

 private:
  class Call;

  Substrate& world_;
  InputHandler* handler_ = nullptr;
  SeamContract contract_;
  TimeNs now_ = 0;  // of the input being handled
  bool handling_ = false;
  bool calling_ = false;
};

// Shares in 1/1024: of transfers, bursts, storage operations of the verb named, or of all that are remote or in flight.
struct FaultShares {
  std::uint32_t failed_transfers = 0;
  std::uint32_t cut_bursts = 0;
  // A storage operation that ends before a drawn page:
  std::uint32_t read_errors = 0;    // get: io_error
  std::uint32_t short_reads = 0;    // get: io_error, too
  std::uint32_t corrupt_pages = 0;  // get: corrupt
  std::uint32_t write_errors = 0;   // set: io_error
  std::uint32_t full = 0;           // set: at its first page
  std::uint32_t lost_writes = 0;    // set: told done; its pages from a drawn one on are missing afterwards
  // Remote ones: all pages unreachable, for a drawn number of operations or for good.
  std::uint32_t link_down = 0;
  std::uint32_t dead_node = 0;
  // When the completion comes, and how often:
  std::uint32_t slow = 0;        // storage: what it took, up to 100 times over
  std::uint32_t late = 0;        // storage, transfers: up to a millisecond
  std::uint32_t duplicates = 0;  // storage: once more, up to a millisecond later
  std::uint32_t cancels = 0;     // storage, transfers: cancelled when a drawn later input comes
};

// What has struck: a fate that the world fulfilled by itself isn't counted.
struct FaultCounts {
  std::uint64_t failed_transfers = 0;
  std::uint64_t failed_gates = 0;  // passes that ended gate_failed for one of the others
  std::uint64_t cut_bursts = 0;    // cancels sent; a burst in its last step may still end whole
  std::uint64_t read_errors = 0, short_reads = 0, corrupt_pages = 0;
  std::uint64_t write_errors = 0, full = 0;
  std::uint64_t lost_writes = 0;               // sets
  std::uint64_t lost_found = 0;                // gets and look-ups that ended at a lost page
  std::uint64_t link_down = 0, dead_node = 0;  // operations
  std::uint64_t slow = 0, late = 0, duplicates = 0;
  std::uint64_t cancels = 0;  // sent; what has moved by then stays done
};

// Makes things go wrong, over any world: what the shares say, each drawn when the operation is submitted. Equal seeds
// and inputs, equal faults. The world below has done its work all the same: slots of pages that aren't counted hold
// anything, and what was refused may be stored. A fault only ever takes away; a pass whose gate comes out failed ends
// gate_failed. Completions of one verb and tier keep their order when one of them is held back, and a pass waits for
// its gates; other than that the order of inputs of equal time is lost. Ids are the engine's own 1, 2, 3 ..., which the
// world's are not: Faulty's timers have some of those.
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
  void handle(const Input& input) override;

  const FaultCounts& counts() const { return counts_; }

 private:
  using Count = std::uint64_t FaultCounts::*;
  // What is to become of an operation.
  struct Fate {
    Count ends_by = nullptr;  // it ends with the pages before `page` at most
    Cause cause = Cause::none;
    Pages page = 0;
    bool loses = false;  // a set's pages from `lost_from` on
    Pages lost_from = 0;
    TimeNs slow = 0, late = 0, again = 0;  // slow: so many times what it took
  };
  struct Flight {
    OperationId ours = OperationId::none, theirs = OperationId::none;  // the engine's number, and the world's
    TimeNs since = 0;
    bool doomed = false;     // a transfer, a load or a pass that is to come out failed
    bool stores = false;     // a storage operation
    bool stand_in = false;   // a pass that the world never sees, in the guise of a timer
    std::uint8_t order = 0;  // of those of one number none overtakes another; 0 = any may
    Fate fate = {};
    std::vector<OperationId> gates = {};  // ours
    std::vector<PageKey> names = {};      // of a set's pages
  };
  // A completion that waits for its timer, for others of its order, or for its gates.
  struct Held {
    Completion completion;
    OperationId timer = OperationId::none;  // the world's; none = due
    std::uint8_t order = 0;
    TimeNs again = 0;
    bool duplicate = false;
    std::vector<OperationId> gates = {};
  };

  std::uint64_t draw();
  // A share of nothing draws nothing, so that a new kind of fault leaves the others' sequence alone.
  bool drawn(std::uint32_t share) { return share > 0 && draw() % 1024 < share; }
  Flight& open(OperationId theirs);
  Flight* find(OperationId ours);
  OperationId submit_pass(const ForwardOperation& pass);
  OperationId submit_storage(const StorageOperation& operation);
  void draw_times(Flight& flight);
  void draw_fate(Flight& flight, const StorageOperation& operation);
  void draw_end(Fate& fate, Count count, std::uint32_t share, Cause cause, Pages pages);
  void draw_unreachable(Fate& fate);
  void find_lost(Fate& fate, const StorageOperation& operation);
  void cancel_some(OperationId completing);
  void take(const Completion& completion);
  Completion distorted(const Flight& flight, const Completion& completion);
  void end_early(const Fate& fate, bool look_up, Completion& told);
  void lose_pages(const Flight& flight, const Completion& told);
  const Held* held(OperationId ours) const;
  bool due(std::size_t at) const;
  void give_due();

  Substrate& world_;
  FaultShares shares_;
  std::uint64_t random_;
  InputHandler* handler_ = nullptr;
  FaultCounts counts_;
  std::uint64_t last_id_ = 0;
  std::vector<Flight> flights_;                         // in the order of both ids; few at a time
  std::vector<Held> held_;                              // in the order in which the world answered
  std::vector<OperationId> bursts_to_cut_, to_cancel_;  // ours
  std::unordered_set<PageKey, PageKeyHash> lost_;       // names of stored pages
  std::uint64_t operations_down_ = 0;                   // that the link is still to be down for
  bool node_dead_ = false;
};

}  // namespace kvtwin
