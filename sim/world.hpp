// The simulated worlds (see policy/seam/world.hpp). They charge operations on modelled lanes.
//
// Two implementations of one interface: SimGrid, where flows share links max-min fairly, for results; and an event heap
// without sharing, as a cross-check. A third world, for swarm tests, is in tests/adversary/adversarial_world.hpp.
//
// Common rules, which WorldCore (world_core.hpp) implements once:
// - Each lane is a FIFO. A transfer takes its latency, then its bytes flow. The next transfer starts when the previous
//   one has ended. Passes queue for the serial compute lane. Starts and ends are rounded to the nearest nanosecond.
// - All ranks move alike: `ranks` GPUs load a shared link `ranks` times, and every rank ends at the same time.
// - The first step of a pass with gates is pipelined by layers. `stalled_ns` is the added time. A failed or cancelled
//   gate ends the pass at once: status gate_failed, 0 steps.
// - Cancel: a transfer ends at once, with the whole pages that have moved (a queued one: none). A running burst ends
//   after the running step. A queued pass ends at once without a step. A timer fires at once. An operation that has
//   ended before the cancel stays done.
// - Storage: each tier has a modelled content, which changes when an operation ends. A set adds its pages; present
//   pages move no bytes. A get moves the leading pages that are present at its start. A look-up does not queue, and
//   returns the pages that are present at its end. In each tier, gets end in the order of submission, and so do sets
//   and removes. A cancelled storage operation ends like a transfer; one that was queued has no page.
// - Planned failures: a page of a node that is down is unreachable, also if the node goes down while the page moves.
//   When the node is up again, its pages are missing. Operations of drives that start in a slow time take longer.
// - reduce_min completes at the same instant with the same values: the engine speaks for all its ranks.
// - Hand-overs: one lane per engine, first in, first out. The bytes load the links of both engines; with peers as pool,
//   also those between switches. A hand-over in groups of layers moves group by group, each after the pass has computed
//   it. If the peer is dead at the end, it has failed.
//   Notices take notice_ns, except `handed`, which comes with the last byte.
//
// Seats (WorldConfig::engines, instances): several policies in one clock. Rank r of engine e has seat e * R + r, with R
// ranks per engine. With instances, the ranks of an engine do reductions and passes together (seats.hpp).
// Groups of attention (WorldConfig::groups): so many consecutive engines are the groups of one. They share one machine:
// its memory, PCIe root, drives, NICs and disk tier, but each has GPUs and their links for itself. They step together
// (shared_steps.hpp), so each of their passes has one step.
// Thread: single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/planned_faults.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

struct StorageTier {
  Tier tier = Tier::disk;
  Pages pages = 0;             // capacity
  bool evicts_itself = false;  // a full tier drops the least recently used page; otherwise a set ends with Cause::full
  // A page that was looked up or read is not dropped for this time, and a get that takes longer has no page; 0 = none.
  TimeNs lease_ns = 0;
  Bytes page_bytes = 0;  // of a page, of all ranks that write; 0 = the engine has no objects of other sizes
  // Drives of the store behind its memory (sim/store_model.hpp); 0 = none. They read at
  // WorldConfig::store_drive_bytes_per_second.
  Pages drive_pages = 0;
  std::uint64_t drive_write_ps = 0;  // of a page
};

// Returns how often a byte crosses the memory of this host when it moves on a lane. Each DMA to or from host memory is
// one crossing. A page that moves through L2 crosses twice per direction: once on the storage lane, once on h2d or d2h.
// A page that is stored and read back through L2 crosses four times. GPUDirect moves bytes between the medium and the
// GPU without host memory: no crossing. So a page that is stored through L2 and read back directly crosses half as
// often. The memory of the pool's hosts is not counted: it is a part of the rate of the pool's network.
constexpr std::uint32_t dram_crossings(Lane lane) {
  const LaneKind kind = spec_of(lane).kind;
  return kind == LaneKind::copy || kind == LaneKind::storage ? 1 : 0;
}

// The network between the engines' hosts and the remote pool:
//
//   host 0 --NICs--+                        +--port-- node 0
//   host 1 --NICs--+-- between switches ----+--port-- node 1
//
// The pages are spread over the nodes (pool_node_of), so a batch loads several ports, and several engines that read
// from one node share its port. With peers, node k is the host of engine k, its port is that host's NICs, and pages on
// the own host cross no NIC. Each direction has rates of its own.
struct PoolNetwork {
  std::uint32_t nodes = 0;                    // 0 = one pool of fabric_bytes_per_second
  std::uint64_t node_bytes_per_second = 0;    // port of one node
  bool peers = false;                         // nodes = engines
  std::uint32_t rails = 0;                    // a rank uses the NICs of one of so many rails; 0 = all NICs
  std::uint64_t switch_bytes_per_second = 0;  // between the switches, all engines together; 0 = never limits
};

enum class NetworkPart : std::uint8_t { nic, switches, pool, node };  // pool: all nodes

// A link at a share of its rate for some time. SimGrid changes the rates of running transfers; the event heap those of
// transfers that start.
struct SlowLink {
  NetworkPart part = NetworkPart::nic;
  std::uint32_t node = 0;
  double share = 1;
  FaultSpan span;
};

// Rates are in bytes per second; 0 = the device is absent or never limits.
struct WorldConfig {
  std::uint32_t ranks = 1;                 // GPUs of the engine; each has a PCIe link of its own, down and up
  std::uint64_t h2d_bytes_per_second = 0;  // one GPU's link, host to device
  std::uint64_t d2h_bytes_per_second = 0;
  std::uint64_t both_ways_bytes_per_second = 0;   // one GPU's link, both directions together
  std::uint64_t dram_bytes_per_second = 0;        // shared by all transfers of the host
  std::uint64_t root_bytes_per_second = 0;        // PCIe root complex, per direction, shared by GPUs, drives and NICs
  std::uint64_t disk_read_bytes_per_second = 0;   // all drives together; reads and writes share the drives' time
  std::uint64_t disk_write_bytes_per_second = 0;  // all drives together, if they only write
  std::uint64_t nic_bytes_per_second = 0;         // all NICs together, per direction
  std::uint64_t fabric_bytes_per_second = 0;      // network of the pool, all pool hosts together, per direction
  std::uint64_t shared_fs_read_bytes_per_second = 0;  // shared file system, all engines together
  std::uint64_t shared_fs_write_bytes_per_second = 0;
  std::uint64_t store_drive_bytes_per_second = 0;  // reads from the drives of the remote store, all engines together
  PoolNetwork network;
  std::vector<StorageTier> storage;
  // Disturbance: this share of the gets takes `storage_stall_factor` times as long. Drawn from `seed` and the
  // OperationId.
  double storage_stall_share = 0.0;
  double storage_stall_factor = 20.0;
  std::uint64_t seed = 1;
  // Planned failures.
  std::vector<NodeDown> node_downs;
  std::vector<SlowSpan> slow_drives;
  std::vector<SlowLink> slow_links;
  // Seats. Each machine has all of the above for itself, except the content of shared tiers and the links that all
  // engines share. Each engine has one machine, or with groups a part of one.
  std::uint32_t engines = 1;        // groups of attention count as engines
  std::uint32_t groups = 1;         // engines on one machine; not with instances
  bool instances = false;           // each rank has a seat, with its part of all shared links and stores
  TimeNs reduce_ns = 10'000;        // with instances: duration of a reduction; at least 1000
  std::vector<double> slower;       // with instances, by rank: factor on the time of transfers and storage; absent = 1
  const CostModel* cost = nullptr;  // outlives the world
  // Engines with roles: the first ones prefill, the others decode. `decode`: ranks, groups, rates and costs of a decode
  // engine if they differ; outlives the world.
  std::uint32_t prefill_engines = 0;
  const WorldConfig* decode = nullptr;
  TimeNs notice_ns = 50'000;  // from one engine to another
  // An engine dies: it takes no more input, and its transfers stop. The others learn of that `detect_ns` later.
  struct Death {
    std::uint32_t engine = 0;
    TimeNs at = 0;
  };
  std::vector<Death> deaths;
  TimeNs detect_ns = kNsPerSecond;
};

// Returns null in a build without SimGrid. At most one per process, because SimGrid's engine is global (KV_CHECK).
std::unique_ptr<World> make_simgrid_world(const WorldConfig& config);
// Time of an operation: latency + bytes / bandwidth. A FIFO per lane; lanes share nothing.
std::unique_ptr<World> make_event_world(const WorldConfig& config);

}  // namespace kvtwin
