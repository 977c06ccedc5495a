// The front end of a simulated engine: it has a request before the scheduler has it.
#pragma once

#include "models/serving_times.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

// Returns the record as of the client: it begins when the client sends the request. Requires: `record` is the
// scheduler's.
RequestRecord with_front_end(const ServingTimes& times, RequestRecord record);

// Passes events on, with the records of with_front_end().
class FrontEnd final : public Observer {
 public:
  FrontEnd(const ServingTimes& times, Observer& next) : times_(times), next_(next) {}
  void on_event(const Event& event) override;

 private:
  ServingTimes times_;
  Observer& next_;
};

}  // namespace kvtwin
