// A source of requests that learns of the answers from the engines' events, and the parts that all such sources share.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "policy/seam/event.hpp"
#include "policy/seam/live_source.hpp"

namespace kvtwin {

class AnsweredSource : public LiveSource, public Observer {
 public:
  // Time between a client's request and its arrival.
  using FrontEnd = std::function<TimeNs(Tokens prompt)>;

  // Every event that on_event() receives is passed to `observer`; null: to no observer.
  void pass_events_to(Observer* observer) { observer_ = observer; }
  // A client's request arrives later by its time in the front end, so a short prompt may arrive before a long one that
  // was sent earlier. Requires: called before the first arrival, if at all.
  void add_front_end(FrontEnd front_end) { front_end_ = std::move(front_end); }

  static constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
  // Returns the first time at which a user has nothing to send, because the traffic of users is cut; kNever before.
  // Requests for which other users think at this time arrive later, and the load falls.
  TimeNs cut_at() const { return cut_at_; }

  // Returns a note for readers of the results, or nothing. Known at the end.
  virtual std::string note() const { return {}; }

  void on_event(const Event& event) final {
    if (observer_ != nullptr) observer_->on_event(event);
    const bool ends =
        event.kind == EventKind::finished || event.kind == EventKind::rejected || event.kind == EventKind::aborted;
    if (ends) answered(event.record->request, event.time);
  }

 protected:
  void cut(TimeNs time) { cut_at_ = std::min(cut_at_, time); }
  TimeNs front_end(Tokens prompt) const { return front_end_ ? front_end_(prompt) : 0; }

 private:
  // `request` has ended: it is answered, rejected or aborted.
  virtual void answered(RequestId request, TimeNs time) = 0;

  Observer* observer_ = nullptr;
  TimeNs cut_at_ = kNever;
  FrontEnd front_end_;  // empty: takes no time
};

}  // namespace kvtwin
