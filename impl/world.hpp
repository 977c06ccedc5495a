// The real world: the clock on the wall, one event loop, a device behind it (impl/device/), storage tiers
// (impl/storage/), and real bytes. Open loop: arrivals come when they are due, whatever the engine is doing.
//
// Every input has a later `now` than the one before it, so the seam's rules on equal times hold by themselves. What
// is due first is delivered first: operations by when they ended, timers and arrivals by when they were due.
//
// A world drives one rank. Alone, reduce_min is answered with the values it was given. In a group (ranks.hpp) a thread
// of its own carries reductions out, one after the other, and answers them as devices answer operations; the clocks of
// all ranks start together, so that an arrival is due everywhere at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/runtime/ranks.hpp"
#include "impl/storage/tier_queues.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// What the event loop itself cost.
struct LoopReport {
  std::uint64_t inputs = 0;
  TimeNs run_ns = 0;          // from the first input to be waited for to the last handled
  TimeNs policy_ns = 0;       // inside the handler, but for its calls of the substrate
  TimeNs loop_ns = 0;         // taking inputs, choosing the next
  TimeNs loop_median_ns = 0;  // of that, an input
  TimeNs loop_p99_ns = 0;
  std::uint64_t calls = 0;  // submit and cancel, which hand operations to the device's threads ...
  TimeNs calls_ns = 0;      // ... and what that took
  std::uint64_t arrivals = 0;
  TimeNs arrival_late_sum_ns = 0;  // delivered after they were due
  TimeNs arrival_late_max_ns = 0;
};

struct StorageCounters {
  Tier tier = Tier::disk;
  std::vector<std::pair<std::string, std::uint64_t>> counters;  // by name
};

class RealWorld : public World {
 public:
  // After run().
  virtual const LoopReport& loop() const = 0;
  virtual const Verification& verification() const = 0;
  // What the device has to say, a sentence each.
  virtual std::vector<std::string> notes() const = 0;
  // What the storage tiers' back ends counted.
  virtual std::vector<StorageCounters> storage() const = 0;
};

// What the device's start throws, run() throws. A handler or source that throws ends the run; the threads end with
// the world. `storage`: one for each tier that operations may name; over the device's memory. `ranks`: the group, null
// = alone; outlives the world. A world that goes in the middle of its run leaves the group; run() throws
// std::runtime_error when another rank has left, or the device can't go on.
std::unique_ptr<RealWorld> make_real_world(std::unique_ptr<Device> device,
                                           std::vector<std::unique_ptr<TierQueues>> storage = {},
                                           RankGroup* ranks = nullptr);

}  // namespace kvtwin
