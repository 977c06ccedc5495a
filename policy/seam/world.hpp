// A world runs an engine: it owns the clock and the loop, carries out operations on its lanes, and gives the engine one
// stream of inputs through the engine's Substrate. Simulated worlds are in sim/, the real one in impl/.
//
// A world may have several seats, for several policies with one clock. Each seat has its own Substrate, ids and lanes.
// The seats are several engines that serve one stream of requests, or the ranks of one engine, each of which receives
// all inputs.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "policy/base/check.hpp"
#include "policy/base/types.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// The time that an operation spent on its lane, reported at its end. For meters and timelines; the policy never reads
// it.
struct LaneSpan {
  Lane lane = Lane::compute;
  OperationId id = OperationId::none;
  TimeNs begin = 0, end = 0;  // when the operation held the lane
  TimeNs flowing = 0;         // transfers: bytes moved from this time to the end
  TimeNs stalled_ns = 0;      // passes: time waited for gates, after `begin`; hand-overs: for the pass
  Bytes bytes = 0;            // bytes moved. h2d, d2h: of one rank; storage lanes: of all ranks together
  std::uint64_t steps = 0;    // passes: steps done
  Status status = Status::done;
  bool staged = false;    // a hand-over through host memory on both sides
  bool received = false;  // a staged hand-over on the side that receives: it uses host memory, and no lane
};

class LaneObserver {
 public:
  virtual ~LaneObserver() = default;
  virtual void on_lane(const LaneSpan& span) = 0;
};

// Which of several engines an arrival or a hint is for.
class InputRoute {
 public:
  static constexpr std::size_t kEveryEngine = ~std::size_t{0};
  static constexpr std::size_t kNoEngine = kEveryEngine - 1;
  struct Way {
    std::size_t engine = 0;           // or kEveryEngine
    std::size_t prefill = kNoEngine;  // engines with roles: an arrival in two parts, or its abort, goes there too
  };
  virtual ~InputRoute() = default;
  // Called once for each arrival or hint, when it comes.
  virtual Way way_of(const Input& input) = 0;
  // The engine has been found dead. Each of its requests that has not ended is then given out once more by
  // sent_again(), as an arrival with the next attempt, and its abort if that came before. An arrival's keys are
  // borrowed until the next call. False: no more.
  virtual void engine_lost(std::size_t /*engine*/) {}
  virtual bool sent_again(Input&) { return false; }
};

// Calls deliver(engine, input) for each engine that an arrival or a hint goes to. Of an arrival in two parts, the
// prefill part comes first, and each part has the seat of the other engine. `seats`: of one engine.
template <typename Deliver>
void deliver_by(const InputRoute::Way& way, std::size_t engines, std::size_t seats, Input& input,
                const Deliver& deliver) {
  if (way.engine == InputRoute::kEveryEngine) {
    for (std::size_t engine = 0; engine < engines; ++engine) deliver(engine, input);
    return;
  }
  KV_CHECK(way.engine < engines, "an input goes to an engine that there is");
  if (way.prefill != InputRoute::kNoEngine) {
    KV_CHECK(way.prefill < engines, "an input goes to an engine that there is");
    auto* const arrival = std::get_if<Arrival>(&input.what);
    const auto is_part = [&](RequestPart part, std::size_t peer) {
      if (arrival == nullptr) return;
      arrival->part = part;
      arrival->peer = static_cast<std::uint32_t>(peer * seats);
    };
    is_part(RequestPart::prefill, way.engine);
    deliver(way.prefill, input);
    is_part(RequestPart::decode, way.prefill);
  }
  deliver(way.engine, input);
}

class World {
 public:
  virtual ~World() = default;
  virtual Substrate& substrate() = 0;
  // Delivers arrivals, hints and completions until the source is at its end and nothing is in flight.
  virtual void run(InputSource& source, InputHandler& handler) = 0;
  virtual TimeNs now() const = 0;
  // From now on, reports every LaneSpan, in order of its end; null = to nobody. Requires: the observer outlives the
  // run.
  virtual void watch_lanes(LaneObserver* observer) = 0;
  // For progress: `tick` is called with the time reached, at least once per 1,000 inputs.
  virtual void set_progress(void (*tick)(void* context, TimeNs now), void* context) = 0;

  // The same for each seat; the functions above are for the first seat. By default a world has one seat.
  virtual std::size_t seats() const { return 1; }
  virtual Substrate& substrate_of(std::size_t seat) {
    KV_CHECK(seat == 0, "this world has one seat");
    return substrate();
  }
  // Returns the largest number of pages that a shared tier held at once, whoever stored them. Absent: this world does
  // not know it, or has no such tier.
  virtual std::optional<Pages> stored_pages_max(Tier) const { return std::nullopt; }
  // Returns how many pages such a tier dropped by itself to make room. Absent: as above.
  virtual std::optional<Pages> stored_pages_evicted(Tier) const { return std::nullopt; }
  // The engine in this seat has died (see sim/world.hpp).
  virtual bool has_died(std::size_t /*seat*/) const { return false; }
  virtual void watch_lanes_of(std::size_t seat, LaneObserver* observer) {
    KV_CHECK(seat == 0, "this world has one seat");
    watch_lanes(observer);
  }
  // One handler per seat. `route` may be null if there is one engine.
  virtual void run_seats(InputSource& source, std::span<InputHandler* const> handlers, InputRoute*) {
    KV_CHECK(handlers.size() == 1, "this world has one seat");
    run(source, *handlers[0]);
  }
};

}  // namespace kvtwin
