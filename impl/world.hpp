// The real world: the wall clock, one event loop, a device (impl/device/), storage tiers (impl/storage/), and real
// bytes. Open loop: an arrival is delivered when it is due, even if the engine is busy.
//
// Each input has a later `now` than the previous one, so the seam's rules on equal times hold. The earliest event is
// delivered first. Operations count by their end, timers and arrivals by their due time.
//
// A world drives one rank. Without a group, reduce_min is answered with its own values. In a group (ranks.hpp), a
// separate thread executes the reductions one after another and pushes the answers, as devices do. The clocks of all
// processes start together, so an arrival is due on all ranks at the same time.
//
// A source may be an Inbox (runtime/inbox.hpp), into which other threads put inputs while the run goes on. An engine
// with a role has a lane for hand-overs (runtime/hand_over_lane.hpp), and finds the notices of other engines there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/runtime/hand_over_lane.hpp"
#include "impl/runtime/inbox.hpp"
#include "impl/runtime/ranks.hpp"
#include "impl/storage/tier_queues.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// The time that the event loop itself took.
struct LoopReport {
  std::uint64_t inputs = 0;
  TimeNs run_ns = 0;          // from the wait for the first input to the end of the last
  TimeNs policy_ns = 0;       // inside the handler, without calls of the substrate
  TimeNs loop_ns = 0;         // taking inputs and choosing the next one
  TimeNs loop_median_ns = 0;  // of loop_ns per input
  TimeNs loop_p99_ns = 0;
  std::uint64_t calls = 0;  // number of submit and cancel calls, which pass operations to the device's threads
  TimeNs calls_ns = 0;      // time of these calls
  std::uint64_t arrivals = 0;
  TimeNs arrival_late_sum_ns = 0;  // delivery minus due time
  TimeNs arrival_late_max_ns = 0;
};

struct StorageCounters {
  Tier tier = Tier::disk;
  std::vector<std::pair<std::string, std::uint64_t>> counters;  // name, value
};

class RealWorld : public World {
 public:
  // Requires: run() has returned.
  virtual const LoopReport& loop() const = 0;
  virtual const Verification& verification() const = 0;
  // Returns the notes of the device, one sentence each.
  virtual std::vector<std::string> notes() const = 0;
  // Returns the counters of the storage back ends.
  virtual std::vector<StorageCounters> storage() const = 0;
};

// `storage`: one entry per tier that operations may name; the entries use the device's memory. `ranks`: the group, or
// null for a single rank; `everyone`: all processes whose clocks start together, or null if these are the ranks. Both
// outlive the world. `hand_overs`: for an engine with a role, which also needs an Inbox as its source; else null. If
// the world is destroyed during a run, the rank leaves the group. The threads end with the world. Errors: run() throws
// the errors of the device's start. An exception of the handler or the source ends the run. run() throws
// std::runtime_error if another rank has left, or if the device cannot continue.
std::unique_ptr<RealWorld> make_real_world(std::unique_ptr<Device> device,
                                           std::vector<std::unique_ptr<TierQueues>> storage = {},
                                           RankGroup* ranks = nullptr, RankGroup* everyone = nullptr,
                                           std::unique_ptr<HandOverLane> hand_overs = nullptr);

}  // namespace kvtwin
