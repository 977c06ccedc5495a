// Where the state machines of an engine report: decisions to the log, events to the observer, if there is one. event()
// sets the time to now.
#pragma once

#include <span>

#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class EventSink {
 public:
  // Requires: all references outlive the sink. `observer` may be null.
  EventSink(const Substrate& substrate, DecisionLog& decisions, Observer* observer)
      : substrate_(substrate), decisions_(decisions), observer_(observer) {}

  void decide(DecisionKind kind, Reason reason, const PageKey& key, Pages pages, RequestId request = kNoRequest,
              std::uint8_t pool = 0) const {
    decisions_.add({kind, reason, request, key, pages, pool});
  }

  void event(Event event) const {
    event.time = substrate_.now();
    event_at(event);
  }
  // Reports the event with its own time.
  void event_at(const Event& event) const {
    if (observer_ != nullptr) observer_->on_event(event);
  }
  // Sends an event of pages that enter or leave a tier.
  void keys(EventKind kind, Tier tier, std::span<const PageKey> keys) const {
    if (observer_ != nullptr) event({.kind = kind, .tier = tier, .pages = keys.size(), .keys = keys});
  }
  // Reports slots of a pool, unless there are none. `pool`: as in Event.
  void slots(EventKind kind, Tier tier, std::span<const SlotId> slots, std::size_t pool = 0) const {
    if (slots.empty()) return;
    event({.kind = kind, .tier = tier, .pool = static_cast<std::uint8_t>(pool), .pages = slots.size(), .slots = slots});
  }

 private:
  const Substrate& substrate_;
  DecisionLog& decisions_;
  Observer* observer_;
};

}  // namespace kvtwin
