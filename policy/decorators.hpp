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
#include <vector>

#include "policy/contract.hpp"
#include "policy/decision.hpp"
#include "policy/journal.hpp"
#include "policy/substrate.hpp"

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

// Shares in 1/1024.
struct FaultShares {
  std::uint32_t failed_transfers = 0;
  std::uint32_t cut_bursts = 0;
};

struct FaultCounts {
  std::uint64_t failed_transfers = 0;
  std::uint64_t failed_gates = 0;  // passes that ended gate_failed for it
  std::uint64_t cut_bursts = 0;    // cancels sent; a burst in its last step may still end whole
};

// Reports a drawn share of transfers as failed, and the passes they gate as gate_failed; asks the world to end
// a drawn share of decode bursts early, half of them at once and half when the next input comes. The world
// below may have moved the bytes all the same: a failed transfer's target holds anything. Equal seeds and
// inputs, equal faults.
class Faulty final : public Substrate, public InputHandler {
 public:
  Faulty(Substrate& world, const FaultShares& shares, std::uint64_t seed)
      : world_(world), shares_(shares), random_(seed) {}
  void connect(InputHandler& handler) { handler_ = &handler; }

  TimeNs now() const override { return world_.now(); }
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override { return world_.call_at(time); }
  OperationId reduce_min(const ReduceVector& values) override { return world_.reduce_min(values); }
  void cancel(OperationId id) override { world_.cancel(id); }
  void handle(const Input& input) override;

  const FaultCounts& counts() const { return counts_; }

 private:
  std::uint64_t draw();
  bool drawn(std::uint32_t share) { return draw() % 1024 < share; }
  void cut(OperationId burst);
  Completion distorted(const Completion& completion);

  Substrate& world_;
  FaultShares shares_;
  std::uint64_t random_;
  InputHandler* handler_ = nullptr;
  FaultCounts counts_;
  std::vector<OperationId> doomed_transfers_, doomed_passes_, bursts_to_cut_;  // few at a time
};

}  // namespace kvtwin
