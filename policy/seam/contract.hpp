// The contract of the seam: the promises of policy and world to each other. A SeamContract keeps a book of the
// operations in flight, and judges each call and each input. `Checking` stops the program on a broken promise; `replay`
// reports a journal that breaks one.
//
// Promises of the policy:
//
//   pass          steps and shapes agree with the sequences; spans cover the tokens; gates are loads in flight
//   page moves    those of the plan, and those of the plans that are submitted with it
//   cancel        names an operation that was submitted
//   hand-over     writes slots that the decode engine has leased for these pages; waits only for a pass in flight
//
// Promises of the world:
//
//   operation     ids are 1, 2, 3 ...; one answer each, of its kind of input, with a status that this kind may have
//   pass          an answer that counts comes after all gates; no gate has failed
//   timer         not early
//   storage       counts at most the pages of the operation; all of them if the status is done
//   order         gets end in the order of submission, per tier and path to the tier; so do sets with removes
//   reduction     no minimum is above the vector of the engine
//   arrival       in the order of the ordinals; a request that is sent again arrives as a new attempt
//   roles         a part of a request, and a notice, goes to an engine with the role for it
//   room          once per request, for the rest of the prompt
//   hand-over     the answer comes after that of its pass, and all earlier pages of the request have landed
//   end           a decode engine hears once that a request, for which it has leased pages, has ended
//
// The ranks of an engine have one contract each; substrate.hpp has the promises about several ranks. The hand-over unit
// `layers` needs ranks in lockstep, because it takes room at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "policy/seam/hand_over_gap.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

struct ContractTerms {
  std::uint32_t page_tokens = 0;  // of the device tier
  EngineRole role = EngineRole::both;
  // A decode burst may end cancelled although the engine did not cancel it, because `Faulty` lies below.
  bool bursts_end_early = false;
  // Each rank of the engine has a policy of its own. Another rank may end a burst; after the last hand-over of a
  // request is done on this rank, the request may be written again, because another rank's failed; and pages may be
  // handed over before this rank has leased them, because another rank has.
  bool ranks_decide = false;
  bool cancels_unrequested = false;  // the same for transfers and storage operations
  std::vector<Tokens> windows = {};  // EngineConfig::windows(), of an engine with a role
  bool duplicates = false;           // a storage operation may be answered a second time, later
};

// Null, or the broken promise as a sentence.
using BrokenTerm = const char*;

class SeamContract {
 public:
  explicit SeamContract(const ContractTerms& terms) : terms_(terms) {}

  // The policy's calls. Judged before they reach the world.
  BrokenTerm judge(const Operation& operation) const;
  BrokenTerm judge_cancel(OperationId id) const;
  BrokenTerm judge_notice(const Notice& notice) const;
  // The world has answered a call with `id`.
  BrokenTerm submitted(const Operation& operation, OperationId id, TimeNs now);
  BrokenTerm timer_set(TimeNs time, OperationId id);
  BrokenTerm reduction_entered(const ReduceVector& values, OperationId id);
  void cancelled(OperationId id);
  void notified(const Notice& notice);
  // An input of the world. Closes the operation that the input answers.
  BrokenTerm take(const Input& input);

  // Operations that have not been answered.
  std::size_t outstanding() const { return open_.size(); }

 private:
  enum class Kind : std::uint8_t { transfer, load, storage, pass, timer, reduction, hand_over };
  using RequestPartId = std::pair<RequestId, std::uint32_t>;  // with the attempt
  struct Open {
    OperationId id = OperationId::none;
    Kind kind = Kind::transfer;
    bool cancelled = false;
    bool gate_lost = false;  // passes: a gate failed or was cancelled
    TimeNs since = 0;        // time of submission; for a timer, the set time
    std::uint64_t steps = 0;
    std::uint32_t gates = 0, gates_open = 0;
    StorageVerb verb = StorageVerb::look_up;  // storage operations only
    Pages pages = 0;
    bool has_needs = false;
    std::uint8_t order = 0;  // operations with the same number end in order of submission; 0 = in any order
    ReduceVector values{};
    // hand-overs
    OperationId pass = OperationId::none;
    RequestPartId part{};
    Pages first = 0;
    bool last = false;
    bool lacks_pages = false;  // an earlier one was not done, and its pages have not been written again
  };
  struct PrefillPart {
    std::uint32_t peer = 0;
    Pages pages = 0;   // of the prompt
    Pages beside = 0;  // slots of the other pools
    bool room = false;
    HandOverGap gap;  // closed as soon as a hand-over that writes its pages again is submitted
    Pages first = 0;
    std::vector<SlotId> slots;  // leased by the decode engine, for the pages from `first` on, and beside
    Pages end() const { return first + slots.size() - beside; }
  };
  struct Gate {
    OperationId load = OperationId::none;
    OperationId pass = OperationId::none;
  };

  BrokenTerm judge(const TransferOperation& transfer) const;
  static BrokenTerm judge_handed(const HandOverOperation& operation, const PrefillPart& room);
  static BrokenTerm judge_path(const Plan& plan);
  static BrokenTerm judge_beside(const Plan& plan, const Plan& other);
  BrokenTerm judge(const ForwardOperation& pass) const;
  BrokenTerm judge(const StorageOperation& operation) const;
  BrokenTerm judge(const HandOverOperation& operation) const;
  BrokenTerm open(OperationId id, Kind kind, TimeNs since);
  const Open* find(OperationId id) const;
  void lose_pages(const Open& failed);
  Open* find(OperationId id) { return const_cast<Open*>(static_cast<const SeamContract*>(this)->find(id)); }
  void open_gates(const Open& load, Status status);

  BrokenTerm take(const Arrival& arrival, TimeNs now);
  BrokenTerm take_part(const Arrival& arrival);
  bool has_living_part(const Arrival& again) const;
  BrokenTerm take(const Hint&, TimeNs) { return nullptr; }
  BrokenTerm take(const Completion& completion, TimeNs now);
  BrokenTerm take(const TimerFired& timer, TimeNs now);
  BrokenTerm take(const Reduction& reduction, TimeNs now);
  BrokenTerm take(const Notice& notice, TimeNs now);
  BrokenTerm take_pass(const Open& pass, const Completion& completion, TimeNs now) const;
  BrokenTerm take_pages(const Open& open, const Completion& completion) const;
  BrokenTerm take_hand_over(const Open& open, const Completion& completion);
  void close(OperationId id);

  ContractTerms terms_;
  std::vector<Open> open_;                      // by id; few at a time
  std::vector<Gate> gates_;                     // gates whose load has not been answered
  std::unordered_set<std::uint64_t> answered_;  // ids of answered storage operations, if there may be duplicates
  std::uint64_t last_id_ = 0;
  TimeNs last_now_ = 0;
  RequestId next_request_ = 0;                  // the smallest request number that may still arrive
  std::set<RequestPartId> sent_again_;          // arrivals of attempts above 0
  std::map<RequestPartId, PrefillPart> parts_;  // prefill engine: not ended yet
  std::set<std::uint32_t> lost_peers_;
  std::set<RequestPartId> expected_;                          // decode engine: requests for which it has leased pages
  std::set<RequestPartId> handed_early_;                      // before this rank has leased the pages
  std::unordered_map<PageKey, PageKey, PageKeyHash> priors_;  // for every key seen: the key before it in its chain
};

}  // namespace kvtwin
