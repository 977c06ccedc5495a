// What runs an engine: a world owns the clock and the loop, carries operations out on its lanes, and feeds one
// engine one stream of inputs through its Substrate. Simulated worlds are in sim/, the real one in impl/.
#pragma once

#include "policy/substrate.hpp"
#include "policy/types.hpp"

namespace kvtwin {

// An operation's stay on its lane, told when it ends; for meters and timelines, never read back by the policy.
struct LaneSpan {
  Lane lane = Lane::compute;
  OperationId id = OperationId::none;
  TimeNs begin = 0, end = 0;  // it held the lane
  TimeNs flowing = 0;         // transfers: bytes moved from here to the end
  TimeNs stalled_ns = 0;      // passes: waited for gates, after the begin
  Bytes bytes = 0;            // h2d, d2h: moved, of one rank; storage lanes: of all ranks together
  std::uint64_t steps = 0;    // passes: done
  Status status = Status::done;
};

class LaneObserver {
 public:
  virtual ~LaneObserver() = default;
  virtual void on_lane(const LaneSpan& span) = 0;
};

class World {
 public:
  virtual ~World() = default;
  virtual Substrate& substrate() = 0;
  // Delivers arrivals, hints and completions until the source is exhausted and nothing is in flight.
  virtual void run(InputSource& source, InputHandler& handler) = 0;
  virtual TimeNs now() const = 0;
  // Every stay on a lane from now on, in order of its end; null = nobody. Outlives the run.
  virtual void watch_lanes(LaneObserver* observer) = 0;
  // Called now and then with the time reached, at least once per 1,000 inputs; for progress.
  virtual void set_progress(void (*tick)(void* context, TimeNs now), void* context) = 0;
};

}  // namespace kvtwin
