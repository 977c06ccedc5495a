// The simulated worlds (policy/seam/world.hpp says what a world is): operations are charged on modelled lanes. Two of
// them, one interface: SimGrid (flows share links max-min fairly; for results) and an event heap of our own (no
// sharing; as a cross-check). A third, for swarm tests, is in adversarial_world.hpp.
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
// - Storage: what each tier holds is modelled, and changes when an operation ends: a set puts its pages there, present
//   ones move no bytes; a get moves what leads and is there at its start. A look-up doesn't queue, and answers with
//   what is there at its end. Ends of one tier's gets, and of its sets and removes, wait for those submitted before.
//   A cancelled one ends as transfers do; one that was queued has no page.
// - reduce_min is answered at the same instant with the same values: one engine speaks for all its ranks.
// Seats (WorldConfig::engines, instances): several policies in one clock, seat e * R + r for rank r of engine e. With
// instances reductions and passes are what all ranks of an engine do together (seats.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policy/seam/cost.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

struct StorageTier {
  Tier tier = Tier::disk;
  Pages pages = 0;             // its capacity
  bool evicts_itself = false;  // beyond it drops the least recently used; else answers Cause::full
};

// The times that a byte crosses this host's memory when it moves on a lane. Each DMA to or from host memory is one
// crossing: so a page by L2 costs two a byte each way, one on the storage lane and one on h2d or d2h, and a page that
// is stored and read back four. GPUDirect moves bytes between the device and the GPU past host memory: none. A page
// stored by L2 and read back straight so costs exactly half of one that bounces both ways. Memory of the remote
// pool's hosts is theirs: it isn't counted here, and part of the fabric's rate.
constexpr std::uint32_t dram_crossings(Lane lane) {
  const LaneKind kind = spec_of(lane).kind;
  return kind == LaneKind::copy || kind == LaneKind::storage ? 1 : 0;
}

// Rates in bytes a second; 0 = no such device, or it never binds.
struct WorldConfig {
  std::uint32_t ranks = 1;                 // GPUs of the engine; each has its own PCIe link up and down
  std::uint64_t h2d_bytes_per_second = 0;  // one GPU's link, host to device
  std::uint64_t d2h_bytes_per_second = 0;
  std::uint64_t both_ways_bytes_per_second = 0;       // one GPU's link, both directions together
  std::uint64_t dram_bytes_per_second = 0;            // shared by all of the host's transfers
  std::uint64_t root_bytes_per_second = 0;            // PCIe, each direction, shared by GPUs, drives and NICs
  std::uint64_t disk_read_bytes_per_second = 0;       // all drives together; reads and writes share their time
  std::uint64_t disk_write_bytes_per_second = 0;      // if they only write
  std::uint64_t nic_bytes_per_second = 0;             // all NICs together, each direction
  std::uint64_t fabric_bytes_per_second = 0;          // all pool hosts together, each direction
  std::uint64_t shared_fs_read_bytes_per_second = 0;  // the shared file system, for all engines together
  std::uint64_t shared_fs_write_bytes_per_second = 0;
  std::vector<StorageTier> storage;
  // Disturbance: this share of gets takes `storage_stall_factor` times as long. Drawn from `seed` by OperationId.
  double storage_stall_share = 0.0;
  double storage_stall_factor = 20.0;
  std::uint64_t seed = 1;
  // Seats. Each engine has its own of everything above, but the contents of shared tiers and the links that are common.
  std::uint32_t engines = 1;
  bool instances = false;      // each rank has a seat, and its part of what ranks share, with stores, to itself
  TimeNs reduce_ns = 10'000;   // with instances: a reduction takes that, 1000 at least
  std::vector<double> slower;  // likewise, by rank: its transfers and storage take so many times as long; absent = 1
  const CostModel* cost = nullptr;  // outlives the world
};

// One per process: SimGrid's engine is global. Null in a build without SimGrid.
std::unique_ptr<World> make_simgrid_world(const WorldConfig& config);
// Faithful: latency + bytes / bandwidth, a FIFO a lane, no sharing between lanes.
std::unique_ptr<World> make_event_world(const WorldConfig& config);

}  // namespace kvtwin
