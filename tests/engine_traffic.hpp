// Random engine configurations, and random traffic for engines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy/engine.hpp"
#include "policy/seam/substrate.hpp"
#include "policy/termination.hpp"
#include "policy/write.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"
#include "tests/timeout_text.hpp"

namespace kvtwin::test {

// Random requests. 70 % of them begin with a prefix of an earlier request. Gaps are up to one millisecond.
class EngineTraffic final : public InputSource {
 public:
  EngineTraffic(std::uint64_t seed, Tokens page_tokens, Pages longest, std::uint64_t requests)
      : rng_(mix(seed)), page_tokens_(page_tokens), longest_(longest), requests_(requests) {
    gap_ns_ = 1;
    for (std::uint64_t i = rng_.below(7); i > 0; --i) gap_ns_ *= 10;
  }

  bool next(Input& input) override {
    if (at_ == requests_) return false;
    keys_.clear();
    if (!past_.empty() && rng_.chance(70)) {
      const auto& before = past_[rng_.below(past_.size())];
      keys_.assign(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(rng_.below(before.size() + 1)));
    }
    const Pages pages = std::min<Pages>(longest_, keys_.size() + rng_.below(longest_ / 2 + 1));
    while (keys_.size() < pages) keys_.push_back(chain_key(keys_.empty() ? PageKey{} : keys_.back(), rng_.below(4)));
    past_.push_back(keys_);
    Arrival arrival;
    arrival.request = at_++;
    arrival.prompt_tokens = std::max<Tokens>(1, pages * page_tokens_ + rng_.below(page_tokens_));
    arrival.output_tokens = 1 + rng_.below(3 * page_tokens_ + 4);
    arrival.keys = keys_;
    input = Input{now_ += static_cast<TimeNs>(rng_.below(gap_ns_)), arrival};
    return true;
  }

 private:
  Splitmix rng_;
  Tokens page_tokens_;
  Pages longest_;
  std::uint64_t requests_, at_ = 0, gap_ns_ = 1;
  TimeNs now_ = 0;
  std::vector<PageKey> keys_;
  std::vector<std::vector<PageKey>> past_;
};

// Planner limits for the small pages of tests: with them, layers still land in groups, and the planner uses every path.
inline constexpr PlannerLimits kSmallPlans{.copy_engine_min_h2d = 256,
                                           .copy_engine_min_d2h = 256,
                                           .box_min = 128,
                                           .box_min_busy = 64,
                                           .kernel_min_pieces = 4,
                                           .bulk_copies = true,
                                           .window_h2d = 4096,
                                           .layer_group_min = 1};

inline EngineConfig random_engine(Splitmix& rng) {
  EngineConfig config;
  config.planner = kSmallPlans;
  config.shape = KvShape{2, 2, 1, 16, static_cast<std::uint32_t>(rng.between(1, 6))};
  config.ranks = static_cast<std::uint32_t>(rng.between(1, 4));
  config.device_pages = rng.between(12, 80);
  config.host_pages = rng.chance(20) ? 0 : rng.between(4, 120);
  config.evict_unit = rng.chance(50) ? EvictUnit::page : EvictUnit::node;
  config.write_policy = write_policy_names()[rng.below(3)];
  if (config.write_policy == "write_back" && rng.chance(50)) config.tiering = Tiering::exclusive;
  config.reclaim_shadowed = rng.chance(50);
  config.backup_retries = static_cast<std::uint32_t>(rng.below(3));
  config.clean_reserve = static_cast<std::uint32_t>(rng.below(400));
  config.write_threshold = static_cast<std::uint32_t>(rng.between(0, 2));
  config.load_back_min_tokens = rng.below(8);
  config.load_back_quota_pages = rng.chance(50) ? 0 : rng.between(1, 20);
  config.cache_output = rng.chance(80);
  config.order = rng.chance(50) ? "fcfs" : "longest_prefix";
  config.overtake_limit = static_cast<std::uint32_t>(rng.between(1, 20));
  static constexpr const char* kOrders[] = {"longest_prefix", "shortest_prefill_first", "hrrn"};
  if (config.order != "fcfs") config.order = kOrders[config.overtake_limit % 3];
  config.raise_prompt_priority = config.overtake_limit % 2 == 0;
  config.count_touches = config.overtake_limit % 4 < 2 ? TouchCount::admission : TouchCount::insert;
  config.host_evicts_leaving = config.overtake_limit % 3 == 0;
  config.reclaim_order = config.overtake_limit % 8 < 4 ? ReclaimOrder::inserted : ReclaimOrder::shadowed;
  config.max_running = static_cast<std::uint32_t>(rng.between(1, 12));
  config.max_waiting = rng.chance(80) ? 0 : rng.between(1, 20);
  config.chunk_tokens = rng.between(1, 60);
  config.burst_steps = static_cast<std::uint32_t>(rng.between(1, 16));
  return config;
}

// Returns a random configuration for a real engine of `ranks` ranks: a random shape, layout and I/O back end.
inline EngineConfig random_real_engine(Splitmix& rng, std::size_t ranks) {
  EngineConfig config = random_engine(rng);
  config.ranks = static_cast<std::uint32_t>(ranks);
  config.shape.layers = static_cast<std::uint32_t>(rng.between(1, 4));
  config.shape.planes = static_cast<std::uint32_t>(rng.between(1, 2));
  config.shape.heads = static_cast<std::uint32_t>(rng.between(1, 3));
  config.shape.head_bytes = static_cast<std::uint32_t>(rng.between(1, 40));
  config.host_layout = static_cast<Layout>(rng.below(4));
  config.io = static_cast<IoBackend>(rng.below(3));
  if (rng.chance(40)) config.reserve_initial = config.reserve_min = 0;  // admits more than fits, to cause retractions
  return config;
}

// Adds random storage tiers to a configuration of random_real_engine(), with a probability of 70 %.
inline void draw_storage(Splitmix& rng, EngineConfig& config) {
  if (rng.chance(30)) return;
  if (rng.chance(70)) config.storage.push_back({Tier::disk, rng.between(4, 400), true});
  if (config.storage.empty() || rng.chance(50)) config.storage.push_back({Tier::remote, rng.between(4, 2000), false});
  // Small L1 and L2, so that requests need pages that only L3 has; few running requests, so that prefetches have time.
  config.device_pages = rng.between(12, 24);
  if (config.host_pages != 0) config.host_pages = rng.between(8, 24);
  config.max_running = static_cast<std::uint32_t>(rng.between(1, 4));
  config.path = static_cast<CachePath>(rng.below(3));
  if (config.host_pages == 0) config.path = CachePath::direct;
  config.storage_batch_pages = rng.between(1, 8);
  config.storage_write_share = 8192;
  config.storage_retries = static_cast<std::uint32_t>(rng.below(3));
  config.prefetch_policy = rng.chance(50) ? "wait_complete" : termination_names()[rng.below(3)];
  const auto base = static_cast<TimeNs>(rng.below(300'000));
  if (base % 4 < 2) config.prefetch_timeout_from = TimeoutFrom::issue;
  if (config.prefetch_policy == "timeout" && base % 2 == 0) {
    config.prefetch_policy = "cost_stop";
    config.cost_token_ps = 1000 * static_cast<std::uint64_t>(base);
    for (StorageTierConfig& tier : config.storage) tier.read_token_ps = config.cost_token_ps / 4;
  }
  if (config.prefetch_policy == "timeout") config.prefetch_policy = timeout_text(base, 0);
  if (config.cost_token_ps != 0 && config.storage_batch_pages > 4) {
    config.prefetch_admission = config.load_back_admission = "cost";
    config.load_token_ps = config.cost_token_ps / 2;
  }
  config.prefetch_min_tokens = rng.below(10);
  config.prefetch_host_share = 1024;
  config.prefetch_retry_steps = static_cast<std::uint32_t>(rng.below(3));
  config.prefetch_recheck = config.prefetch_min_tokens % 2 == 0;
}

}  // namespace kvtwin::test
