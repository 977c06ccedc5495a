// Where an engine's state machines report to: decisions to the log, events to the observer, if there is one.
// An event without a time happens now.
#pragma once

#include <span>

#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class EventSink {
 public:
  // All outlive the sink. `observer` may be null.
  EventSink(const Substrate& substrate, DecisionLog& decisions, Observer* observer)
      : substrate_(substrate), decisions_(decisions), observer_(observer) {}

  void decide(DecisionKind kind, Reason reason, const PageKey& key, Pages pages, RequestId request = kNoRequest) const {
    decisions_.add({kind, reason, request, key, pages});
  }

  void event(Event event) const {
    event.time = substrate_.now();
    event_at(event);
  }
  // At the time that the event has.
  void event_at(const Event& event) const {
    if (observer_ != nullptr) observer_->on_event(event);
  }
  // Slots of a pool, if there are any.
  void slots(EventKind kind, Tier tier, std::span<const SlotId> slots) const {
    if (!slots.empty()) event({.kind = kind, .tier = tier, .pages = slots.size(), .slots = slots});
  }

 private:
  const Substrate& substrate_;
  DecisionLog& decisions_;
  Observer* observer_;
};

}  // namespace kvtwin
