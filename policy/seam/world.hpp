// What runs an engine: a world owns the clock and the loop, carries operations out on its lanes, and feeds one
// engine one stream of inputs through its Substrate. Simulated worlds are in sim/, the real one in impl/.
//
// A world may have several seats, each for one policy with a Substrate, ids and lanes of its own, in one clock: several
// engines that serve one stream of requests, or the ranks of one engine, each of which gets all of its inputs.
#pragma once

#include <cstddef>
#include <span>

#include "policy/base/check.hpp"
#include "policy/base/types.hpp"
#include "policy/seam/substrate.hpp"

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

// Which engine an arrival or a hint is for, where there are several.
class InputRoute {
 public:
  static constexpr std::size_t kEveryEngine = ~std::size_t{0};
  virtual ~InputRoute() = default;
  // Asked once for each, when it comes.
  virtual std::size_t engine_of(const Input& input) = 0;
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

  // The same for each seat; what is above is for the first. A world has one unless it says otherwise.
  virtual std::size_t seats() const { return 1; }
  virtual Substrate& substrate_of(std::size_t seat) {
    KV_CHECK(seat == 0, "this world has one seat");
    return substrate();
  }
  virtual void watch_lanes_of(std::size_t seat, LaneObserver* observer) {
    KV_CHECK(seat == 0, "this world has one seat");
    watch_lanes(observer);
  }
  // A handler for each seat; `route` may be null if there is one engine.
  virtual void run_seats(InputSource& source, std::span<InputHandler* const> handlers, InputRoute*) {
    KV_CHECK(handlers.size() == 1, "this world has one seat");
    run(source, *handlers[0]);
  }
};

}  // namespace kvtwin
