// Sequential replay: requests are served one after another in the source's order and service takes no time. What is
// left is the policy's own doing, so this is where policies are compared with each other and with the bounds.
//
// A block is a page of the source; a request's last block may hold fewer tokens, and counts as a block. Hit = longest
// present prefix. The hit blocks are touched, the missing ones inserted in order, evicting as needed, one block at a
// time, the tail of a leaf that is not on the request's own path; if there is none, the rest is not inserted. The index
// and the policies are the library's own (RadixTree, EvictionPolicy): what is measured is what is deployed.
//
// Two tiers. Inclusive (write-through, every access refreshes both): each tier is a replay of its own, the hit is the
// longer of the two prefixes. Exclusive: the host holds what the device evicted; a hit block moves back up, and what
// the device can't take (all of it is on the request's path) stays where it is.
//
// Memory: an index per (eviction, capacity), about 40 bytes a block it holds (exclusive: up to 400), and the bounds'
// log where one is asked for (opt-cost: and some 200 bytes a request and 100 a run of blocks used again together).
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// A sentence on what was asked for and what would be right.
class HitRateError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct HitRateConfig {
  std::vector<std::string> evictions;  // hit_rate_evictions()
  std::vector<Pages> capacities;       // blocks of the device tier
  Pages host_capacity = 0;             // blocks; 0 = no host tier
  bool exclusive = false;
  Tokens block_tokens = 512;   // the source's page size
  std::size_t queue_view = 0;  // requests that wait behind the one that is served, for policies that look ahead
  // After each request a hint that its session has ended, if that is so: if none goes on from its last full block. In
  // so many of 100 cases; in the others it is the other way round. 0: none but the source's own. Sessions are then
  // requests, and the source's own hints are passed over. Keeps the whole source in memory.
  unsigned end_hints = 0;
  const CostModel* cost = nullptr;  // null: a token costs 1 + depth / 53,000, depth = the tokens before it
  // What it costs to load a token from the host, in 1/1000 ns with a cost model, else in 1/53,000,000 of computing a
  // first token.
  std::uint64_t host_load_milli = 0;
};

struct HitRate {
  std::string eviction;
  Pages capacity_blocks = 0, host_capacity_blocks = 0;
  std::uint64_t requests = 0;
  std::uint64_t lookup_blocks = 0, hit_blocks = 0, device_hit_blocks = 0, host_hit_blocks = 0;
  double block_hit_ratio = 0.0;
  Tokens lookup_tokens = 0, hit_tokens = 0;
  double token_hit_ratio = 0.0;
  // The prefill cost of the hit tokens, and of all. With a cost model: seconds of one pass over just these tokens.
  double saved_cost = 0.0, total_cost = 0.0;
  double net_saved_cost = 0.0;  // less what it costs to load what the host hits
};

// The policies' names, then what knows the future (sim/bounds/opt.hpp, sim/bounds/cost.hpp, sim/bounds/tiers.hpp):
//   opt            nothing hits more blocks, whether it inserts what it serves or not
//   opt-no-bypass  nothing hits more blocks that inserts all it serves, as every replay here does
//   opt-bit        LRU that knows which blocks are used again; no bound
//   opt-cost       nothing has a higher saved_cost. Its hits are the blocks it counts for that, no prefixes
//   opt-cost-plan  hits of a cache with bypass that is led by opt-cost: the best saved_cost lies between the two
//   opt-tiers      nothing has a higher net_saved_cost, inclusive or exclusive; needs a host. Its device's hits are the
//                  most that the device hits, the host's what it counts beyond, no prefixes
//   infinite       nothing is ever evicted, whatever the capacities; all hits count as the device's
// All but the last two refuse exclusive tiers, for which the sum of the capacities says it all, and opt-cost and its
// plan any host: an inclusive one's bound is that of the larger tier. The others' hits on the host are, of each
// request, what the host alone would hit beyond the device alone.
std::vector<std::string_view> hit_rate_evictions();
// What of these knows the future.
std::span<const std::string_view> hit_rate_bounds();

// One result for each eviction and capacity, evictions outermost. Reads `source` once; its arrivals hold a key for
// every started block (KV_CHECK); its hints are the policies'.
std::vector<HitRate> replay_hit_rates(InputSource& source, const HitRateConfig& config);

}  // namespace kvtwin
