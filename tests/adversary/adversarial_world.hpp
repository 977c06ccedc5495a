// A world for swarm tests. It moves real bytes, and does the worst that the contract of the seam allows. A page has
// kPageBytes bytes, which depend only on the page key. So every reader can detect wrong bytes.
// - A transfer poisons its targets at submission. It reads its sources late, in pieces, at random times until it lands.
//   The completion comes even later.
// - A forward pass checks every token of its context at its start (after its gates have landed) and at its end. In
//   between, it writes its new tokens in pieces.
// - A released slot is poisoned immediately (the world observes the slot events of the policy), and using the slot is a
//   violation.
// - Durations, delays of completions, timers and reductions are random. A transfer lane is FIFO or not. A cancel takes
//   effect at a random time, or too late.
// - Transfers may fail and leave garbage in their targets.
// - Storage operations also read and write slots late and in pieces. The medium fails in every way of page_store.hpp.
//   The storage node fails, is slow, or is unreachable for a time. A get checks every page that its completion counts;
//   the slots of the other pages may end with any bytes. Sets and removes of one page take effect in their order.
// - Windows and states have bytes too (pass_parts.hpp): every pass checks the windows that it attends to and the state
//   that it continues from.
// The seed determines which of these a run has, and how strongly. Equal seeds and equal calls give equal runs. An error
// becomes a sentence in violations(), and the run continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/config.hpp"
#include "policy/seam/event.hpp"
#include "sim/world.hpp"

namespace kvtwin {

constexpr std::size_t kPageBytes = 64;

// A storage tier.
struct AdversarialStore {
  Pages pages = 0;      // 0: the tier does not exist
  bool evicts = false;  // when full: true: evicts pages, like a remote pool; false: refuses new pages, like a disk
};

struct AdversarialConfig {
  std::uint64_t seed = 0;
  Tokens page_tokens = 1;
  Pages device_pages = 0;
  Pages host_pages = 0;
  std::uint32_t ranks = 1;  // affects only Completion::bytes
  struct Pool {
    Pages device_slots = 0, host_slots = 0;
    bool state = false;
  };
  std::vector<Pool> pools;  // beside pool 0, as in EngineConfig: windows and states (pass_parts.hpp)
  AdversarialStore disk;
  AdversarialStore shared_fs{0, true};
  AdversarialStore remote{0, true};
  // Spaces of other users of the remote store: they store pages with the same keys and with different bytes.
  std::vector<PageKey> strangers;
  bool faults = true;        // false: no transfer, medium or node fails
  bool tracks_slots = true;  // false: the world observes no policy, so every slot may be used
  // False: a get does not check stored pages. Shows that a later check would find the wrong bytes.
  bool verifies_storage = true;
};

// Gives the world a store of this tier.
inline void add_store(AdversarialConfig& config, const StorageTierConfig& tier) {
  AdversarialStore& store = tier.tier == Tier::disk        ? config.disk
                            : tier.tier == Tier::shared_fs ? config.shared_fs
                                                           : config.remote;
  store = {tier.pages, !tier.owned};
}

// Gives the world memory for the pools of this engine.
inline void add_pools(AdversarialConfig& config, const EngineConfig& engine) {
  for (const PoolConfig& pool : engine.pools)
    config.pools.push_back({pool.device_slots, pool.host_slots, pool.closure == Closure::point});
}

class PageArena;

// The other engines of an AdversarialFleet (adversarial_fleet.hpp).
class AdversarialPeers {
 public:
  virtual ~AdversarialPeers() = default;
  virtual PageArena& device_of(std::uint32_t seat, std::size_t pool) = 0;
  virtual void post(std::uint32_t from, std::uint32_t to, const Notice& notice) = 0;
  virtual bool is_dead(std::uint32_t seat) const = 0;
};

class AdversarialWorld : public World, public Observer {
 public:
  // Returns the first 100 violations, as sentences; violation_count() returns the number of all.
  virtual const std::vector<std::string>& violations() const = 0;
  virtual std::uint64_t violation_count() const = 0;

  // Returns how often each kind of behavior occurred. A suite fails if an interesting kind never occurred. The storage
  // kinds are listed only if there is a store.
  virtual std::vector<std::pair<std::string_view, std::uint64_t>> coverage() const = 0;

  // As a part of a fleet, which has the clock and delivers arrivals and notices.
  virtual void join(AdversarialPeers& peers, std::uint32_t seat, InputHandler& handler) = 0;
  virtual TimeNs next_time() = 0;  // -1 = nothing is in flight
  virtual void step() = 0;
  virtual void give(Input input, TimeNs now) = 0;
  virtual PageArena& device(std::size_t pool) = 0;  // as in Event
};

std::unique_ptr<AdversarialWorld> make_adversarial_world(const AdversarialConfig& config);

}  // namespace kvtwin
