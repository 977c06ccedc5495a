// Makes the parts of a run from an experiment: model geometry, hardware, cost model, configurations of engine and
// world (workload.hpp makes the requests). Refuses everything in an experiment that this program cannot do.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/bill.hpp"
#include "lab/experiment/draft_setup.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/request_route.hpp"
#include "models/device_memory.hpp"
#include "models/engine_pools.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/roofline.hpp"
#include "models/stores.hpp"
#include "policy/engine.hpp"
#include "policy/route.hpp"
#include "sim/world.hpp"

namespace kvtwin {

struct Setup {
  ModelGeometry model;
  HardwareSpec hardware;
  bool has_role = false;  // the engines only prefill, or only decode
  std::unique_ptr<RooflineCost> cost;
  std::optional<StoreSpec> store;      // of the remote tier; nothing: the hardware's own figures
  ServingTimes serving;                // zeros without serving.engine
  KvShape target;                      // of one rank, without the layers of a packed draft
  std::optional<DraftSetup> draft;     // nothing without a draft model
  std::optional<DeviceMemory> memory;  // of a GPU; nothing if the experiment gives the size of L1
  // SGLang's pools of a rank, for a model with several kinds of KV; else empty. L1 and L2 have the pages of the full
  // pools.
  DevicePools device_pools;
  std::vector<PoolSize> host_pools;
  std::optional<BlockPool> block_pool;  // of a rank, by vLLM's rules, for a model with several kinds of KV
  EngineConfig engine;                  // of each engine
  WorldConfig world;
  // Data parallelism of attention. With more than 1, each group of ranks is an engine of the world, with a policy of
  // its own: `engine` is that of a group, and so many consecutive engines are one of cluster.engines, on one machine.
  std::uint32_t attention_dp = 1;
  std::uint32_t engine_gpus() const { return engine.ranks * attention_dp; }  // of one machine
  // Copies of a page on the host, of one engine: one a rank, or one (cache.host_copies).
  std::uint32_t copies_on_host = 1;
  std::string route = "round_robin";  // for several engines; a name of route_names()
  RouterSetup router;
  TimeNs route_view_delay = 0;  // the router receives events of engines so late
  RouteRoles roles;             // of engines that only prefill or only decode
  // Engines with roles: the decode engines; `engine`, `cost` and so on are then those of the prefill engines.
  std::unique_ptr<Setup> decode;
  std::vector<PageKey> rank_spaces;  // storage space of each rank; only for ranks as instances
  // Returns the bytes of a page outside the device, for one rank.
  Bytes page_bytes() const { return engine.page_bytes(); }
  std::size_t rank = 0;           // of the first seat of the world; a real world has only this rank
  std::size_t engine_number = 0;  // of the first seat, if a real run has several engines
  // Returns the configuration of the engine in a seat of the world.
  EngineConfig engine_of(std::size_t seat) const;
  bool is_decode_engine(std::size_t seat) const { return decode != nullptr && engine_number + seat >= roles.prefill; }
  // Returns the sum of `figure` over all engines.
  template <typename Figure>
  std::uint64_t sum_of_engines(const Figure& figure) const {
    if (decode == nullptr) return world.engines * std::uint64_t{figure(engine)};
    return roles.prefill * std::uint64_t{figure(engine)} + roles.decode.engines * std::uint64_t{figure(decode->engine)};
  }
  // Returns whether the engine decides by vLLM's blocks, and whether these are of several kinds of KV.
  bool has_blocks() const { return !engine.block_groups.groups.empty(); }
  bool has_block_groups() const { return engine.block_groups.groups.size() > 1; }
  std::uint64_t gpus() const {
    return sum_of_engines([](const EngineConfig& of) { return of.ranks; });
  }
  // Returns the number of machines of all engines, and of the engines that this setup is of: with roles, of one role.
  std::uint32_t all_machines() const {
    const std::size_t decoding = decode == nullptr ? 0 : roles.decode.engines / decode->attention_dp;
    return machines() + static_cast<std::uint32_t>(decoding);
  }
  std::uint32_t machines() const {
    return (decode == nullptr ? world.engines : static_cast<std::uint32_t>(roles.prefill)) / attention_dp;
  }
  // Returns the first group of attention on the machine of this one; the engine itself without groups.
  std::size_t first_on_machine(std::size_t seat) const {
    const bool decodes = decode != nullptr && seat >= roles.prefill;
    const std::size_t in_role = decodes ? seat - roles.prefill : seat;
    return seat - in_role % (decodes ? decode->attention_dp : attention_dp);
  }
  // Returns the number of stores that a storage tier has: one for all engines, or one on each machine.
  std::uint32_t stores_of(Tier tier) const { return spec_of(tier).shared ? 1 : all_machines(); }
  bool has_storage() const { return !engine.storage.empty(); }
  double host_memory_bytes = 0;    // tiers.host.memory_gib, for one engine; 0 = not given
  std::vector<std::string> notes;  // approximations, for the report
  std::optional<Bill> bill;        // nothing if the price list has no price for the GPU
};

// Returns the number of engines, of both roles together (cluster.engines, or cluster.prefill and cluster.decode).
std::int64_t total_engines(const Experiment& experiment);

// `hardware`: takes the place of the experiment's hardware.name and hardware.file; null = these keys. The other keys
// hardware.* apply to it. Errors: InputError, ModelError.
Setup make_setup(const Experiment& experiment, const HardwareSpec* hardware = nullptr);

// Returns the number of objects that a storage tier stores a rank's part of a page as, by cache.layout and
// cache.split_kv. 0 for a part without layers.
std::uint32_t objects_of(const Experiment& experiment, const KvShape& part);

// Returns the hardware of hardware.file or hardware.name, without the other keys hardware.*.
HardwareSpec hardware_of(const Experiment& experiment);
// Returns the machine with the GPU memory that the experiment has: of hardware.set, if that gives it.
HardwareSpec hardware_with_memory(const Experiment& experiment);

// Returns the error text for hardware without a figure that has an interval.
std::string without_intervals(const HardwareSpec& hardware);

// Returns the world of sim.world. Requires: `setup` outlives the world. Errors: InputError if the build lacks this
// world.
std::unique_ptr<World> make_simulated_world(const Experiment& experiment, const Setup& setup);

// Returns the share of a typical decode step whose times come from the operator table; nothing without a table.
std::optional<double> measured_decode_share(const Setup& setup);
// Returns whether the experiment gives the tier a capacity.
bool has_tier(const Experiment& experiment, Tier tier);

}  // namespace kvtwin
