// Operations in flight that are acknowledged in the order of submission. Ranks may see the end of an operation at
// different times, so each step agrees on the minimum of complete_from_oldest() and of failure() over the ranks, and
// acknowledges no more than that. After a failed operation nothing is known yet about the later ones, which wait for
// the next round.
//
// Thread: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

inline constexpr std::uint64_t kNoFailure = std::uint64_t{1} << 62;

struct Acknowledged {
  std::uint64_t total = 0;             // operations since the start of the run
  std::uint64_t failure = kNoFailure;  // number of the oldest that failed, from 0 on
};

// The base of an operation in flight, as this rank sees it.
struct Submitted {
  OperationId id = OperationId::none;
  bool complete = false;
  Status status = Status::done;
  bool has_failed() const { return complete && status != Status::done; }
};

// `Operation` derives from Submitted.
template <class Operation>
class InFlight {
 public:
  void push(Operation operation) { operations_.push_back(std::move(operation)); }
  // Returns false if the completion belongs to no operation in flight.
  bool complete(const Completion& completion) {
    const auto at = std::ranges::find(operations_, completion.id, &Operation::id);  // few operations are in flight
    if (at == operations_.end() || at->complete) return false;
    at->complete = true;
    at->status = completion.status;
    return true;
  }
  // Operations that are complete so far, counted from the oldest on without a gap.
  std::uint64_t complete_from_oldest() const {
    const auto open = std::ranges::find(operations_, false, &Operation::complete);
    return acknowledged_ + static_cast<std::uint64_t>(open - operations_.begin());
  }
  // The oldest operation that has failed.
  std::uint64_t failure() const {
    const auto at = std::ranges::find_if(operations_, &Operation::has_failed);
    return at == operations_.end() ? kNoFailure : acknowledged_ + static_cast<std::uint64_t>(at - operations_.begin());
  }
  bool acknowledgement_due() const { return !operations_.empty() && operations_.front().complete; }
  // Calls take(Operation&&, bool done) for each operation up to `agreed`. Returns true if more of them are agreed on.
  template <class Take>
  bool acknowledge(const Acknowledged& agreed, const Take& take) {
    while (acknowledged_ < agreed.total) {
      if (acknowledged_ > agreed.failure) return true;
      KV_CHECK(!operations_.empty(), "only submitted operations are acknowledged");
      Operation operation = std::move(operations_.front());
      operations_.pop_front();
      const bool done = acknowledged_++ != agreed.failure;
      take(std::move(operation), done);
    }
    return false;
  }

  bool empty() const { return operations_.empty(); }
  const std::deque<Operation>& all() const { return operations_; }  // oldest first
  std::deque<Operation>& all() { return operations_; }
  bool has(std::uint64_t number) const {
    return number >= acknowledged_ && number - acknowledged_ < operations_.size();
  }
  // Returns the operation with this number, as in failure(). Requires: it is in flight.
  const Operation& numbered(std::uint64_t number) const {
    KV_CHECK(has(number), "the operation is in flight");
    return operations_[static_cast<std::size_t>(number - acknowledged_)];
  }

 private:
  std::deque<Operation> operations_;
  std::uint64_t acknowledged_ = 0;
};

}  // namespace kvtwin
