// The simulated worlds (policy/world.hpp says what a world is): operations are charged on modelled lanes. Two of them,
// one interface: SimGrid (flows share links max-min fairly; for results) and an event heap of our own (no sharing; as a
// cross-check). A third, for swarm tests, is in adversarial_world.hpp.
//
// What both do, and `WorldCore` in world_core.hpp implements once:
// - One FIFO a lane. A transfer takes its cost's latency, then flows; the next one starts when it has ended.
//   Passes queue for the serial compute lane. Starts and ends fall on whole nanoseconds, the nearest ones.
// - All ranks move alike, so `ranks` GPUs load shared links `ranks`-fold and every rank ends at once.
// - A pass with gates is layer-pipelined in its first step; `stalled_ns` is what that adds. A failed or
//   cancelled gate ends it at once: gate_failed, no steps.
// - cancel: a transfer ends now, with the whole pages that had moved (a queued one: none); a running burst
//   ends with the step under way; a queued pass ends now without a step; a timer fires now. What has ended
//   by the time of the cancel stays done.
// - reduce_min is answered at the same instant with the same values: one engine speaks for all its ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "policy/cost.hpp"
#include "policy/world.hpp"

namespace kvtwin {

struct WorldConfig {
  std::uint32_t ranks = 1;                 // GPUs of the engine; each has its own PCIe link up and down
  std::uint64_t h2d_bytes_per_second = 0;  // one GPU's link, host to device
  std::uint64_t d2h_bytes_per_second = 0;
  std::uint64_t dram_bytes_per_second = 0;  // shared by all of the host's transfers; 0 = never binds, left out
  std::uint32_t layer_groups = 1;           // a gated pass waits per layer group
  const CostModel* cost = nullptr;          // outlives the world
};

// One per process: SimGrid's engine is global. Null in a build without SimGrid.
std::unique_ptr<World> make_simgrid_world(const WorldConfig& config);
// Faithful: latency + bytes / bandwidth, a FIFO a lane, no sharing between lanes.
std::unique_ptr<World> make_event_world(const WorldConfig& config);

}  // namespace kvtwin
