// Sequential replay: serves the requests one after another in the order of the source. Service takes no time. The
// result depends on the eviction policy only, so policies are compared here with each other and with the bounds.
//
// A block is a page of the source. The last block of a request may hold fewer tokens and counts as one block; without a
// key, it is no block, and its tokens are misses. The hit
// is the longest present prefix. The replay touches the hit blocks and inserts the missing blocks in order. To make
// room, the replay evicts one block at a time: the tail of a leaf that is not on the request's path. If no such leaf
// exists, the remaining blocks are not inserted. The index and the policies are those of the library (RadixTree,
// EvictionPolicy), so the replay measures the deployed code.
//
// Inclusive tiers (write-through, each access refreshes both): each tier is a replay of its own. The hit is the longer
// of the two prefixes. Exclusive tiers: the host holds the blocks that the device evicted. A hit block moves back to
// the device. If the device holds only blocks of the request's path, the remaining hit blocks stay on the host.
//
// Write policies (`engines`): each replay is an engine of the library, whose operations end at once
// (instant_engine.hpp). The hits are those of `simulate` with requests far apart. So the index holds full blocks only,
// answers enter the cache too, at least one token of a prompt is computed, and a request that does not fit into the
// device is rejected.
//
// Cost (memory): one index per eviction and capacity, about 40 bytes per present block (exclusive: up to 400). The
// bounds also keep a log (sim/bounds/opt.hpp); opt-cost needs about 200 bytes per request and 100 bytes per run of
// blocks more.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/config.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// The text names the unusable value and a usable one.
class HitRateError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct HitRateConfig {
  std::vector<std::string> evictions;  // of hit_rate_evictions(), policies with parameters or without
  std::vector<Pages> capacities;       // device tier, in blocks
  Pages host_capacity = 0;             // host tier, in blocks; 0 = no host tier
  bool exclusive = false;
  bool whole_nodes = false;      // evicts whole leaves, as SGLang does; not with exclusive tiers
  bool split_refreshes = false;  // RadixTree::set_split_refreshes()
  Tokens block_tokens = 512;     // page size of the source
  // Not empty: one engine per capacity, with these sizes as its tiers. Then the engine has the rules of the index and
  // of the eviction policies, except the name of the policy; the source has full pages only. Not with bounds,
  // `exclusive` or a queue view.
  std::vector<EngineConfig> engines;
  // Requests at the start that are served and not counted. The bounds are of the counted requests; a request of the
  // warm-up only fills the cache. They are still upper bounds, but not always reachable: while the warm-up uses the
  // start of a path again, a bound may keep the rest of the path without its start.
  std::uint64_t warm_up = 0;
  std::size_t queue_view = 0;  // number of requests behind the served one that policies can see
  // Percentage of correct session hints, 0 to 100. After each request, the correct hint is "session ended" if no later
  // request continues from the request's last full block. In the remaining cases, the hint is given the other way
  // round. If the value is above 0, each request is a session of its own, and the hints of the source are ignored. 0:
  // only the hints of the source. Cost: a value above 0 keeps the whole source in memory.
  unsigned end_hints = 0;
  // What hints do (EngineConfig::hints), and whether sessions refer to blocks (EngineConfig::session_radix). With
  // `engines`, these say it, and the values here are the same.
  HintRule hints = HintRule::policy;
  bool session_radix = false;
  // Null: a token costs 1 + depth / 53,000, with depth = number of tokens before the token.
  const CostModel* cost = nullptr;
  // Cost to load one token from the host. Unit: 1/1000 ns with a cost model, else 1/53,000,000 of the cost to compute
  // the first token of a prompt.
  std::uint64_t host_load_milli = 0;
};

struct HitRate {
  std::string eviction;
  Pages capacity_blocks = 0, host_capacity_blocks = 0;
  std::uint64_t requests = 0;
  std::uint64_t rejected = 0;               // of these, requests that do not fit into the device; only with an engine
  std::uint64_t hints = 0, idle_hints = 0;  // hints, unless they are ignored; of these, the ones without effect here
  std::uint64_t lookup_blocks = 0, hit_blocks = 0, device_hit_blocks = 0, host_hit_blocks = 0;
  double block_hit_ratio = 0.0;
  Tokens lookup_tokens = 0, hit_tokens = 0;
  double token_hit_ratio = 0.0;
  // With an engine, of models with windows or states: tokens that were in memory and that a request could not continue
  // from; and of these, what windows alone, states alone did not allow.
  Tokens unusable_tokens = 0, without_window_tokens = 0, without_state_tokens = 0;
  // Prefill cost of the hit tokens, and of all tokens. Unit: seconds of a pass over only these tokens with a cost
  // model, else the cost to compute the first token of a prompt.
  double saved_cost = 0.0, total_cost = 0.0;
  double net_saved_cost = 0.0;  // saved_cost minus the cost to load the host hits
};

// Returns the names of the policies, then the names of the bounds, which know the future (sim/bounds/opt.hpp, cost.hpp,
// tiers.hpp):
//   opt            upper bound of the hit blocks, for caches with and without bypass
//   opt-no-bypass  upper bound of the hit blocks for caches that insert every served block, as every replay here does
//   opt-bit        LRU that knows which blocks are used again; not a bound
//   opt-cost       upper bound of saved_cost. Its hits are the blocks that the bound counts, not prefixes
//   opt-cost-plan  hits of a cache with bypass that follows opt-cost: the best possible saved_cost lies between the two
//   opt-tiers      upper bound of net_saved_cost, for inclusive and exclusive tiers; needs a host. Its device hits are
//                  those of opt. Its host hits are the other blocks that the bound counts, not prefixes
//   infinite       a cache that never evicts, whatever the capacities; all hits count as device hits
// - Exclusive tiers: of the bounds, only opt-tiers and infinite accept them. For the others, use one tier with the sum
// of
//   the capacities.
// - opt-cost and opt-cost-plan refuse a host. For inclusive tiers, use one tier with the larger capacity.
// - Inclusive tiers: the host hits of opt, opt-no-bypass and opt-bit are, for each request, the hits of the host alone
//   minus the hits of the device alone.
std::vector<std::string_view> hit_rate_evictions();
// Returns only the names of the bounds.
std::span<const std::string_view> hit_rate_bounds();

// Returns one result per eviction and capacity; evictions are the outer loop. Reads `source` once and passes its hints
// to the policies.
// Requires: each arrival has a key for every started block that a cache may hold, or with engines for every full block
// (KV_CHECK).
// Errors: HitRateError if the configuration is unusable.
std::vector<HitRate> replay_hit_rates(InputSource& source, const HitRateConfig& config);

}  // namespace kvtwin
