// What the two sides of the seam promise each other, as a book of the operations in flight that judges each
// call and each input. `Checking` breaks off on a broken promise; `replay` reports a journal that breaks one.
//
// The policy's side: steps and shapes agree with the sequences, spans cover the tokens, page moves are the
// plan's, and the side plan's too, gates are loads in flight, only known operations are cancelled.
// The world's side: ids are 1, 2, 3 ...; each operation is answered exactly once, by its kind of input and
// with a status that it can have; a pass that counts is answered after its gates, none of which failed; a
// timer isn't early; a storage operation counts no more pages than it was given, and all of them if it is done; gets,
// and sets with removes, end in the order of their submission, of each tier and each way to it; a minimum isn't above
// our own vector; arrivals come in order of their ordinals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "policy/seam/substrate.hpp"

namespace kvtwin {

struct ContractTerms {
  std::uint32_t page_tokens = 0;  // of the device tier
  // A decode burst may come back cancelled though nobody here cancelled it: `Faulty` lies below.
  bool bursts_end_early = false;
  bool cancels_unasked = false;  // nor transfers and storage operations
  bool duplicates = false;       // a storage operation may be answered again, later
};

// Null, or the promise that was broken, as a sentence.
using BrokenTerm = const char*;

class SeamContract {
 public:
  explicit SeamContract(const ContractTerms& terms) : terms_(terms) {}

  // The policy's calls; judged before they reach the world.
  BrokenTerm judge(const Operation& operation) const;
  BrokenTerm judge_cancel(OperationId id) const;
  // The world has answered a call with `id`.
  BrokenTerm submitted(const Operation& operation, OperationId id, TimeNs now);
  BrokenTerm timer_set(TimeNs time, OperationId id);
  BrokenTerm reduction_entered(const ReduceVector& values, OperationId id);
  void cancelled(OperationId id);
  // The world's input; closes the operation that it answers.
  BrokenTerm take(const Input& input);

  // Operations not answered yet.
  std::size_t outstanding() const { return open_.size(); }

 private:
  enum class Kind : std::uint8_t { transfer, load, storage, pass, timer, reduction };
  struct Open {
    OperationId id = OperationId::none;
    Kind kind = Kind::transfer;
    bool cancelled = false;
    bool gate_lost = false;  // passes: a gate failed or was cancelled
    TimeNs since = 0;        // submitted; of a timer, its time
    std::uint64_t steps = 0;
    std::uint32_t gates = 0, gates_open = 0;
    StorageVerb verb = StorageVerb::look_up;  // storage operations
    Pages pages = 0;
    std::uint8_t order = 0;  // those of one number end in order; 0 = any
    ReduceVector values{};
  };
  struct Gate {
    OperationId load = OperationId::none;
    OperationId pass = OperationId::none;
  };

  BrokenTerm judge(const TransferOperation& transfer) const;
  static BrokenTerm judge_path(const Plan& plan);
  static BrokenTerm judge_side(const TransferOperation& transfer);
  BrokenTerm judge(const ForwardOperation& pass) const;
  BrokenTerm judge(const StorageOperation& operation) const;
  BrokenTerm open(OperationId id, Kind kind, TimeNs since);
  const Open* find(OperationId id) const;
  Open* find(OperationId id) { return const_cast<Open*>(static_cast<const SeamContract*>(this)->find(id)); }
  void open_gates(const Open& load, Status status);

  BrokenTerm take(const Arrival& arrival, TimeNs now);
  BrokenTerm take(const Hint&, TimeNs) { return nullptr; }
  BrokenTerm take(const Completion& completion, TimeNs now);
  BrokenTerm take(const TimerFired& timer, TimeNs now);
  BrokenTerm take(const Reduction& reduction, TimeNs now);
  BrokenTerm take_pass(const Open& pass, const Completion& completion, TimeNs now) const;
  BrokenTerm take_pages(const Open& open, const Completion& completion) const;
  void close(OperationId id);

  ContractTerms terms_;
  std::vector<Open> open_;                      // by id; few at a time
  std::vector<Gate> gates_;                     // whose load hasn't been answered
  std::unordered_set<std::uint64_t> answered_;  // storage operations, where there may be duplicates
  std::uint64_t last_id_ = 0;
  TimeNs last_now_ = 0;
  RequestId next_request_ = 0;                                // no arrival may be below
  std::unordered_map<PageKey, PageKey, PageKeyHash> priors_;  // of every key seen: the one before it in its chain
};

}  // namespace kvtwin
