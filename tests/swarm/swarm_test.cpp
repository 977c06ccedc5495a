// The swarm test: runs the whole engine in the adversarial world, with thousands of seeds. A seed determines the
// configuration, the workload and the behavior of the world. After each input, all invariants are checked. The world
// checks every byte that a forward pass reads. If a seed fails, the test prints the command that runs only this seed.
//
//   KVTWIN_SWARM_SEED=123 build-asan/tests/swarm       runs seed 123
//   KVTWIN_SWARM_SEED=123:1000 build-asan/tests/swarm  runs 1,000 seeds from 123 on, and does not check the coverage
//   KVTWIN_DEEP=1 build-asan/tests/swarm               runs 20 times as many seeds
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"
#include "policy/engine.hpp"
#include "policy/eviction.hpp"
#include "policy/index/page_key.hpp"
#include "policy/seam/decorators.hpp"
#include "tests/adversary/adversarial_world.hpp"
#include "tests/splitmix.hpp"
#include "tests/timeout_text.hpp"

namespace kvtwin {

#if defined(KVTWIN_MUTANTS)
int planted_mutant = std::atoi(std::getenv("KVTWIN_MUTANT"));
#endif

namespace {

constexpr std::uint64_t kShards = 4;
// Sanitizers are slow: with them, only the first seeds of each shard run, and the coverage is not checked.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr std::uint64_t kSeedsPerShard = kSanitized ? 48 : 768, kDeep = 20;
// The minimum number of inputs per seed. With storage tiers, it takes longer until pages leave the faster tiers.
std::uint64_t inputs_of(bool storage) { return storage ? 3000 : 1000; }

std::uint64_t current_seed = 0;

std::string reproduction() {
  return "reproduce: KVTWIN_SWARM_SEED=" + std::to_string(current_seed) + " build-asan/tests/swarm";
}

void print_seed(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "broken promise: %s (%s, %s:%d)\n%s\n", sentence, condition, file, line, reproduction().c_str());
}

struct Scenario {
  EngineConfig engine;
  TimeNs limit_base = kNsPerSecond, limit_per_ki_token = kNsPerSecond / 4, limit_most = 0;  // of timeout
  Tokens max_prompt_tokens = 0, max_output_tokens = 0;
  TimeNs max_gap_ns = 0;                // longest gap between arrivals; a small gap means overload
  std::uint64_t fresh_share = 0;        // of 256 prompts: the number that do not continue an earlier prompt
  std::uint64_t abort_one_in = 0;       // n: every nth input is an abort, on average; 0 = none
  std::uint64_t hint_one_in = 0;        // n: every nth input is a session hint, on average; 0 = none
  bool shares = false;                  // hints share too
  std::uint64_t max_open_requests = 0;  // with this number of open requests, the traffic pauses, so that a seed ends
};

template <typename T>
T pick(test::Splitmix& random, std::initializer_list<T> values) {
  return *(values.begin() + random.below(values.size()));
}

// For rules that came later: seeds keep what they drew before.
test::Splitmix of_later_rules(test::Splitmix random) { return test::Splitmix(~random.next()); }

StorageIdentity swarm_identity() { return {.model = "swarm", .kv_dtype = "bf16", .name_space = "ours"}; }

void draw_storage(test::Splitmix& random, Scenario& s) {
  EngineConfig& e = s.engine;
  if (random.below(3) == 0) return;
  const auto most = pick<std::uint64_t>(random, {20, 1000, 4000});
  if (random.below(3) != 0) e.storage.push_back({Tier::disk, 1 + random.below(most), true});
  if (random.below(4) == 0) e.storage.push_back({Tier::shared_fs, 1 + random.below(most), false});
  if (e.storage.empty() || random.below(2) == 0) e.storage.push_back({Tier::remote, 1 + random.below(most), false});
  e.storage_space = storage_space(swarm_identity());
  e.path = pick(random, {CachePath::via_host, CachePath::via_host, CachePath::direct, CachePath::automatic});
  if (e.host_pages == 0) e.path = CachePath::direct;
  e.storage_objects = 1 + static_cast<std::uint32_t>(random.below(4));
  e.storage_writers = random.below(2) == 0 ? 1 : e.ranks;
  e.storage_batch_pages = pick<Pages>(random, {1, 2, 5, 128});
  e.storage_write_share = pick<std::uint32_t>(random, {100, 1024, 8192, 8192});
  e.storage_backlog = static_cast<StorageBacklog>(of_later_rules(random).below(4));
  e.storage_retries = pick<std::uint32_t>(random, {0, 0, 1, 3});
  e.prefetch_policy = pick(random, {"best_effort", "wait_complete", "timeout", "timeout"});
  s.limit_base = pick<TimeNs>(random, {0, 1000, 100'000, 10'000'000});
  s.limit_per_ki_token = pick<TimeNs>(random, {0, 1000, 1'000'000});
  s.limit_most = pick<TimeNs>(random, {0, 0, 50'000});
  if (s.limit_per_ki_token == 1000) e.prefetch_timeout_from = TimeoutFrom::issue;
  e.prefetch_min_tokens = pick<Tokens>(random, {0, 1, 1, 8, 40});
  e.prefetch_host_share = pick<std::uint32_t>(random, {200, 512, 1024});
  e.prefetch_retry_steps = pick<std::uint32_t>(random, {0, 1, 4});
  // Derived from earlier draws, so that the other draws of a seed do not change.
  e.prefetch_recheck = e.prefetch_min_tokens != 0;
  e.prefetch_attempts = 1 + static_cast<std::uint32_t>(e.prefetch_min_tokens);
  e.look_ups_refresh = e.prefetch_host_share == 512;
  if (e.prefetch_retry_steps == 1) e.prefetch_style = PrefetchStyle::sglang;
  if (e.prefetch_policy == "timeout") {
    e.prefetch_policy = s.limit_most != 0 ? "cost_stop" : test::timeout_text(s.limit_base, s.limit_per_ki_token);
  }
  if (e.prefetch_retry_steps == 4) e.prefetch_admission = "cost";
  if (e.storage_objects == 2) e.load_back_admission = "cost";
  e.cost_token_ps = 1000 * static_cast<std::uint64_t>(s.limit_base);
  e.load_token_ps = e.cost_token_ps * e.storage_objects / 2;
  for (StorageTierConfig& tier : e.storage) tier.read_token_ps = e.cost_token_ps / e.storage_objects;
}

// Draws the shares of all faults that a decorator can inject.
FaultShares draw_faults(test::Splitmix& random) {
  FaultShares shares;
  for (std::uint32_t* share : {&shares.failed_transfers, &shares.cut_bursts, &shares.read_errors, &shares.short_reads,
                               &shares.corrupt_pages, &shares.write_errors, &shares.full, &shares.lost_writes,
                               &shares.link_down, &shares.slow, &shares.late, &shares.duplicates, &shares.cancels}) {
    *share = random.below(3) == 0 ? static_cast<std::uint32_t>(random.below(200)) : 0;
  }
  shares.cancels = random.below(2) == 0 ? static_cast<std::uint32_t>(100 + random.below(500)) : 0;
  if (random.below(4) == 0) shares.dead_node = 20;
  return shares;
}

// Seeds from this number on test mainly prefetches: a large L3, requests that use it, and many aborts.
constexpr std::uint64_t kPrefetchSeeds = 1'000'000;

void prefer_prefetches(test::Splitmix& random, Scenario& s) {
  EngineConfig& e = s.engine;
  if (!e.block_groups.groups.empty()) e.pools.clear();
  e.block_groups = {};
  e.block_offload = {};
  e.host_pages = random.below(4) == 0 && e.pools.empty() ? 0 : e.device_pages * (1 + random.below(2));
  for (PoolConfig& pool : e.pools) pool.host_slots = 10 + random.below(100);
  e.write_policy = random.below(3) == 0 && e.pools.empty() ? "write_back" : "write_through";
  e.tiering = Tiering::inclusive;
  e.storage = {{Tier::disk, 2000, true}, {Tier::remote, 4000, false}};
  e.storage_space = storage_space(swarm_identity());
  e.path = e.host_pages == 0 ? CachePath::direct : random.below(3) == 0 ? CachePath::automatic : CachePath::via_host;
  if (!e.pools.empty()) e.path = CachePath::via_host;
  e.storage_batch_pages = 1 + random.below(4);
  e.storage_write_share = 8192;
  e.prefetch_policy =
      random.below(2) == 0 ? "wait_complete" : test::timeout_text(200'000, s.limit_per_ki_token, s.limit_most);
  e.prefetch_min_tokens = 1;
  e.prefetch_host_share = 1024;
  e.max_waiting = 0;
  s.fresh_share = 16;
  s.abort_one_in = 3;
  s.max_gap_ns = 100'000;
  if (e.path != CachePath::via_host) e.style = "sglang";
}

// Seeds from this number on test vLLM's offloading of pages with storage tiers, from a few chunks of host memory on.
constexpr std::uint64_t kOffloadSeeds = 2'000'000;

void prefer_offload(test::Splitmix& random, Scenario& s) {
  EngineConfig& e = s.engine;
  e.pools.clear();
  e.evict_unit = EvictUnit::page;
  e.state_points = "align";
  e.style = "vllm";
  e.write_policy = "write_through";
  e.tiering = Tiering::inclusive;
  e.eviction = "lru";
  e.path = CachePath::via_host;
  e.block_groups = {static_cast<std::uint32_t>(e.device_pages + 1), {{Closure::path, 0, 1}}, Tokens{0}};
  e.block_offload = {};
  e.block_offload.host.chunks = static_cast<std::uint32_t>(1 + random.below(pick<std::uint64_t>(random, {4, 60, 600})));
  e.block_offload.host.eviction = pick(random, {ChunkEviction::lru, ChunkEviction::arc});
  e.block_offload.prompt_only = random.below(2) == 0;
  e.block_offload.shape = e.shape;
  if (random.below(2) == 0) e.block_offload.pressure = pick(random, {PressureAction::throttle, PressureAction::drop});
  e.host_pages = e.block_offload.host.chunks;
  const auto pages = pick<Pages>(random, {30, 2000});
  e.storage.clear();
  if (random.below(3) != 0) e.storage.push_back({Tier::disk, pages, random.below(2) == 0});
  if (e.storage.empty() || random.below(2) == 0) e.storage.push_back({Tier::remote, 2 * pages, false});
  e.storage_space = storage_space(swarm_identity());
  e.storage_batch_pages = 1 + random.below(8);
  e.storage_write_share = random.below(3) == 0 ? 512 : 8192;
  e.max_waiting = 0;
  s.fresh_share = 16;
  s.abort_one_in = pick<std::uint64_t>(random, {0, 24, 3});
  s.max_gap_ns = pick<TimeNs>(random, {1000, 100'000, 10'000'000});
}

// Seeds from this number on test hints that the cache obeys.
constexpr std::uint64_t kHintSeeds = 3'000'000;

void prefer_hints(test::Splitmix& random, Scenario& s) {
  EngineConfig& e = s.engine;
  if (!e.pools.empty() || !e.block_groups.groups.empty()) {
    e.pools.clear();
    e.block_groups = {};
    e.block_offload = {};
    e.state_points = EngineConfig{}.state_points;
    if (e.host_pages != 0) e.host_pages = 1 + random.below(100);
  }
  e.hints = random.below(8) == 0 ? HintRule::ignore : HintRule::obey;
  e.hint_share = pick<std::uint32_t>(random, {0, 100, 512, 1024});
  if (e.host_pages != 0) e.path = CachePath::via_host;
  s.hint_one_in = pick<std::uint64_t>(random, {2, 4, 20});
  s.max_gap_ns = pick<TimeNs>(random, {1000, 100'000, 10'000'000});
  s.fresh_share = 16;
}

void draw_session_rules(test::Splitmix random, Scenario& s) {
  EngineConfig& e = s.engine;
  if (!e.pools.empty() || !e.block_groups.groups.empty()) return;
  s.shares = e.hints == HintRule::obey && random.below(2) == 0;
  const auto policy = make_eviction(e.eviction);
  e.session_radix = random.below(3) == 0 && dynamic_cast<const OrdersReferences*>(policy.get()) != nullptr;
}

// Models with windows or states, which sessions refer to, and which hints hold.
void draw_kept_pools(test::Splitmix random, Scenario& s) {
  EngineConfig& e = s.engine;
  if (e.pools.empty()) return;
  const auto policy = make_eviction(e.eviction);
  e.session_radix = random.below(2) == 0 && dynamic_cast<const OrdersReferences*>(policy.get()) != nullptr;
  if (random.below(2) == 0) {
    e.hints = HintRule::obey;
    e.hint_share = pick<std::uint32_t>(random, {0, 100, 512, 1024});
    s.shares = random.below(2) == 0;
  }
  if (e.session_radix || e.hints == HintRule::obey) s.hint_one_in = pick<std::uint64_t>(random, {2, 4, 20});
}

void draw_style(test::Splitmix& random, EngineConfig& e) {
  if (random.below(3) == 0) e.style = "vllm";
  e.mixed_chunks = random.below(3) == 0;
  e.poll_steps = random.below(4) == 0 ? 1 + static_cast<std::uint32_t>(random.below(40)) : 1;
  e.admit_whole_prompt = random.below(2) == 0;
  // A style that loads before admission loads from L2.
  if (e.style == "vllm" && !e.storage.empty() && e.host_pages == 0) e.style = "sglang";
  if (e.style == "vllm") e.path = CachePath::via_host;
}

// Models with windows, with states, or with both. Pools as small as one request needs, and larger.
void draw_pools(test::Splitmix& random, Scenario& s) {
  EngineConfig& e = s.engine;
  if (random.below(3) != 0) return;
  e.evict_unit = EvictUnit::node;
  if (random.below(3) == 0) e.host_pages = 0;
  e.tiering = Tiering::inclusive;
  if (e.write_policy != "write_back") e.reclaim_shadowed = false;
  if (e.host_pages == 0 || e.write_policy == "write_back") e.storage.clear();
  e.path = CachePath::via_host;
  e.window_release_tokens = pick<Tokens>(random, {1, 8, 128});
  if (random.below(3) != 0) {
    PoolConfig pool{Closure::tail, 1 + random.below(60), 0, 0, e.shape};
    pool.device_slots = e.least_slots(pool) + random.below(pick<Pages>(random, {1, 4, 60, 200}));
    if (e.host_pages != 0) pool.host_slots = random.below(100);
    e.pools.push_back(pool);
  }
  if (e.pools.empty() || random.below(2) == 0) {
    const bool tracks = random.below(3) == 0 || e.shape.page_tokens != 1;  // no_buffer has pages of a token
    e.state_points = tracks ? "extra_buffer(chunk=8, interval=16)" : "no_buffer";
    e.states_per_path = pick<std::uint32_t>(random, {0, 0, 1, 3});
    e.max_running = pick<std::uint32_t>(random, {1, 2, 8});
    e.pools.push_back({Closure::point, 0, 5 * Pages{e.max_running} + random.below(12),
                       e.host_pages == 0 ? 0 : random.below(30), e.shape});
  }
}

// The policies for pools that no engine has. `random` is a copy, so the draws behind this one stay as they are.
void draw_pool_policies(test::Splitmix random, EngineConfig& e) {
  if (e.pools.empty()) return;
  e.pool_eviction = pick(random, {"lru", "work_per_byte", "work_per_byte(inner=0.01, leaves=false)"});
  if (e.state_points.starts_with("extra_buffer") && random.below(2) == 0) {
    e.state_points = "overlap(states=4, apart=3, chunk=8, interval=16)";
  }
}

// The same models in vLLM's form: groups of blocks in one pool, which holds a few pages and more.
void draw_blocks(test::Splitmix& random, EngineConfig& e) {
  if (e.pools.empty() || random.below(2) == 0) return;
  e.pools.clear();
  e.host_pages = 0;
  e.storage.clear();
  e.state_points = "align(retention=" + std::to_string(pick<Tokens>(random, {0, 0, 1, 32})) + ")";
  const auto parts = [&] { return e.shape.page_tokens % 2 == 0 && random.below(3) == 0 ? 2U : 1U; };
  const auto add = [&](Closure closure, std::uint64_t most, Tokens window) {
    const BlockGroup group{closure, window, parts()};
    e.block_groups.groups.insert(e.block_groups.groups.end(), random.below(most + 1), group);
  };
  add(Closure::path, 2, 0);
  add(Closure::tail, 3, 1 + random.below(60));
  add(Closure::point, 2, 0);
  if (e.block_groups.groups.empty() || e.block_groups.groups.front().closure != Closure::path) {
    e.block_groups.groups.insert(e.block_groups.groups.begin(), {Closure::path, 0, parts()});
  }
  e.block_groups.blocks = 100'000;  // of a pool for one request of e.device_pages
  const BlockGroups large(e.block_groups, e.shape.page_tokens);
  std::uint64_t one = large.blocks_of(e.device_pages, e.chunk_tokens);
  while (large.longest_request(one, e.chunk_tokens) == 0) ++one;
  e.block_groups.blocks = static_cast<std::uint32_t>(one + 1 + random.below(pick<std::uint64_t>(random, {1, 20, 400})));
  e.device_pages = large.longest_request(e.block_groups.blocks - 1, e.chunk_tokens);
}

// vLLM's host tier below such a pool, from a few chunks on. `random` is a copy.
void draw_offload(test::Splitmix random, EngineConfig& e) {
  if (e.block_groups.groups.empty() || random.below(3) == 0) return;
  BlockOffloadConfig& blocks = e.block_offload;
  blocks.host.chunks = static_cast<std::uint32_t>(1 + random.below(pick<std::uint64_t>(random, {8, 60, 600})));
  blocks.host.eviction = pick(random, {ChunkEviction::lru, ChunkEviction::arc});
  blocks.host.store_threshold = pick<std::uint32_t>(random, {0, 0, 2});
  blocks.host.remembered_offers = pick<std::size_t>(random, {10, 64'000});
  blocks.prompt_only = random.below(2) == 0;
  blocks.shape = e.shape;
  e.host_pages = blocks.host.chunks;
  e.write_policy = "write_through";
  e.tiering = Tiering::inclusive;
  e.style = "vllm";
  e.path = CachePath::via_host;
}

// A host tier that keeps pages only until storage has them, or that is only a buffer. `random` is a copy.
void draw_host_mode(test::Splitmix random, EngineConfig& e) {
  const auto mode = pick(random, {HostMode::cache, HostMode::until_stored, HostMode::buffer});
  if (e.host_pages == 0 || e.storage.empty() || !e.pools.empty() || !e.block_groups.groups.empty()) return;
  e.host_mode = mode;
  if (mode == HostMode::cache) return;
  e.path = CachePath::via_host;
  if (e.write_policy == "write_back") e.write_policy = "write_through";
  e.tiering = Tiering::inclusive;
}

// Loads of one request only, without a host tier; writes to storage that wait on the host. `random` is a copy.
void draw_tier_rules(test::Splitmix random, EngineConfig& e) {
  const bool is_private = random.below(2) == 0;
  const auto reserve = pick<std::uint32_t>(random, {0, 0, 1, 300, 700, 1024});
  if (e.storage.empty() || !e.pools.empty() || !e.block_groups.groups.empty()) return;
  if (e.host_pages == 0) {
    e.private_loads = is_private && e.draft_restored;
  } else if (!e.buffers()) {
    e.host_clean_reserve = reserve;
  }
}

Scenario draw_scenario(test::Splitmix& random) {
  Scenario s;
  EngineConfig& e = s.engine;
  const auto page = pick<std::uint32_t>(random, {1, 2, 3, 4, 8, 16});
  e.shape = {pick<std::uint32_t>(random, {1, 2, 5}), pick<std::uint32_t>(random, {1, 2}),
             pick<std::uint32_t>(random, {1, 2, 4}), 16, page};
  e.ranks = pick<std::uint32_t>(random, {1, 1, 2, 4});
  e.device_pages = 4 + random.below(pick<std::uint64_t>(random, {8, 40, 253}));
  e.host_pages = random.below(4) == 0 ? 0 : 1 + random.below(pick<std::uint64_t>(random, {8, 60, 256}));
  e.host_layout = pick(random, {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head});
  e.io = pick(random, {IoBackend::automatic, IoBackend::direct, IoBackend::kernel});
  e.eviction = std::string(eviction_names()[random.below(eviction_names().size())]);
  e.evict_unit = random.below(3) == 0 ? EvictUnit::node : EvictUnit::page;
  e.write_policy = pick(random, {"write_through", "write_through_selective", "write_back", "write_back"});
  e.tiering = e.write_policy == "write_back" && random.below(2) == 0 ? Tiering::exclusive : Tiering::inclusive;
  e.reclaim_shadowed = random.below(2) == 0;
  e.reclaim_order = pick(random, {ReclaimOrder::inserted, ReclaimOrder::shadowed});
  e.host_evicts_leaving = random.below(2) == 0;
  e.count_touches = pick(random, {TouchCount::admission, TouchCount::insert});
  e.split_refreshes = random.below(2) == 0;
  e.backup_retries = pick<std::uint32_t>(random, {0, 0, 1, 3});
  e.clean_reserve = pick<std::uint32_t>(random, {0, 50, 102, 300, 1024});
  e.write_threshold = pick<std::uint32_t>(random, {0, 0, 1, 3});
  e.load_back_min_tokens = pick<Tokens>(random, {0, 1, 10, 40});
  e.load_back_quota_pages = pick<Pages>(random, {0, 0, 3, 20});
  e.cache_output = random.below(3) != 0;
  e.order = random.below(2) == 0 ? "fcfs" : "longest_prefix";
  e.order_window = pick<std::uint32_t>(random, {1, 4, 128});
  e.overtake_limit = pick<std::uint32_t>(random, {0, 3, 128});
  e.max_running = pick<std::uint32_t>(random, {1, 2, 8, 256});
  e.max_waiting = pick<std::uint64_t>(random, {0, 0, 5});
  e.chunk_tokens = pick<Tokens>(random, {1, 7, 32, 8192});
  e.burst_steps = pick<std::uint32_t>(random, {1, 4, 64});
  e.reserve_initial = pick<std::uint32_t>(random, {0, 717, 1024});
  e.reserve_min = std::min(e.reserve_initial, pick<std::uint32_t>(random, {0, 100, 1024}));
  draw_storage(random, s);
  const Tokens capacity = e.device_pages * page;
  s.max_prompt_tokens = std::max<Tokens>(1, capacity * (1 + random.below(12)) / 10);
  s.max_output_tokens = 1 + random.below(std::max<Tokens>(1, std::min<Tokens>(capacity, 80)));
  s.max_gap_ns = pick<TimeNs>(random, {0, 1000, 100'000, 10'000'000});
  s.fresh_share = random.below(e.storage.empty() ? 256 : 48);  // L3 needs prompts that return
  s.abort_one_in = pick<std::uint64_t>(random, {0, 24, 2});
  s.max_open_requests = pick<std::uint64_t>(random, {3, 12, 50});
  s.hint_one_in = pick<std::uint64_t>(random, {0, 0, 4});
  draw_style(random, e);
  draw_pools(random, s);
  draw_blocks(random, e);
  draw_pool_policies(random, e);
  draw_offload(random, e);
  return s;
}

// Requests that share prefixes: a prompt continues an earlier prompt, cuts it short, or is new.
class Workload final : public InputSource {
 public:
  Workload(const Scenario& scenario, test::Splitmix& random, const std::uint64_t& inputs, const std::uint64_t& ended)
      : scenario_(scenario), random_(random), inputs_(inputs), ended_(ended) {}

  bool next(Input& input) override {
    if (inputs_ >= inputs_of(!scenario_.engine.storage.empty())) return false;
    if (requests_ > 0 && scenario_.abort_one_in > 0 && random_.below(scenario_.abort_one_in) == 0) {
      if (scenario_.max_gap_ns > 0)
        time_ += static_cast<TimeNs>(random_.below(static_cast<std::uint64_t>(scenario_.max_gap_ns)));
      input = {time_, Hint{HintKind::abort,
                           requests_ - 1 - random_.below(std::min(requests_, scenario_.max_open_requests)), 0}};
      return true;
    }
    if (scenario_.hint_one_in > 0 && random_.below(scenario_.hint_one_in) == 0) {
      constexpr HintKind kKinds[] = {
          HintKind::session_end, HintKind::tool_call_pending, HintKind::pin,  HintKind::unpin,
          HintKind::demote,      HintKind::prefetch,          HintKind::share};
      const std::uint64_t kinds = scenario_.engine.hints == HintRule::policy ? 4 : scenario_.shares ? 7 : 6;
      input = {time_,
               Hint{kKinds[random_.below(kinds)], random_.below(8), static_cast<std::int64_t>(random_.below(20)) - 2}};
      return true;
    }
    if (scenario_.max_gap_ns > 0)
      time_ += static_cast<TimeNs>(random_.below(static_cast<std::uint64_t>(scenario_.max_gap_ns)));
    if (requests_ - ended_ >= scenario_.max_open_requests) time_ += kNsPerSecond;
    const Tokens page = scenario_.engine.shape.page_tokens;
    Arrival arrival;
    arrival.session = requests_ % 8;
    arrival.request = requests_++;
    arrival.prompt_tokens = 1 + random_.below(scenario_.max_prompt_tokens);
    arrival.output_tokens = 1 + random_.below(scenario_.max_output_tokens);
    arrival.priority = static_cast<std::int32_t>(random_.below(3));
    // Some arrivals have page keys of the output too. Then a later prompt may continue the output.
    const bool names_output = random_.below(4) == 0;
    const std::size_t pages = (arrival.prompt_tokens + (names_output ? arrival.output_tokens : 0)) / page;
    std::vector<PageKey> keys;
    if (!earlier_.empty() && random_.below(256) >= scenario_.fresh_share) {
      keys = earlier_[random_.below(earlier_.size())];
      if (keys.size() > pages || random_.below(6) == 0) keys.resize(random_.below(std::min(keys.size(), pages) + 1));
    }
    while (keys.size() < pages) {
      const BlockSegment segment{random_.below(4) == 0 ? random_.below(4) : random_.next(), 0,
                                 static_cast<std::uint32_t>(page)};
      keys.push_back(block_page_key(keys.empty() ? nullptr : &keys.back(), std::span(&segment, 1)));
    }
    if (earlier_.size() < (scenario_.engine.storage.empty() ? 32U : 512U)) {
      earlier_.push_back(keys);
    } else {
      earlier_[random_.below(earlier_.size())] = keys;
    }
    keys_ = std::move(keys);
    arrival.keys = keys_;
    input = {time_, arrival};
    return true;
  }

  std::uint64_t requests() const { return requests_; }

 private:
  const Scenario& scenario_;
  test::Splitmix& random_;
  const std::uint64_t& inputs_;
  const std::uint64_t& ended_;
  TimeNs time_ = 0;
  std::uint64_t requests_ = 0;
  std::vector<std::vector<PageKey>> earlier_;
  std::vector<PageKey> keys_;
};

using Marks = std::map<std::string, std::uint64_t>;

constexpr RequestId kFirstRequestOfHints = RequestId{1} << 63;  // as in Prefetcher

// Passes events to the world, checks each request record, and counts the marks.
class Watcher final : public Observer {
 public:
  Watcher(Observer& world, Marks& marks, const EngineConfig& engine)
      : world_(world),
        marks_(marks),
        style_(!engine.pools.empty() && engine.write_policy == "write_back" ? "write-back of pools"
               : engine.host_mode != HostMode::cache ? "host " + std::string(name_of(engine.host_mode))
               : engine.host_clean_reserve != 0      ? "late writes"
               : engine.private_loads                ? "private loads"
                                                     : engine.style),
        pools_(!engine.pools.empty()) {}

  void on_event(const Event& event) override {
    world_.on_event(event);
    static constexpr std::array kNames = {
        "arrived",           "admitted",         "first token",        "finished",           "rejected",
        "retracted",         "aborted",          "backup queued",      "backup done",        "backup dropped",
        "backup retried",    "backup awaited",   "load queued",        "load declined",      "load done",
        "load failed",       "load direct done", "transfer submitted", "store queued",       "store done",
        "store retried",     "store dropped",    "store awaited",      "storage fell short", "prefetch issued",
        "prefetch declined", "prefetch revoked", "prefetch hit",       "prefetch shortened", "prefetch started",
        "prefetch stopped",  "prefetch done",    "prefetch used",      "prefetch wasted",    "evicted",
        "pages stored",      "pages removed",    "slots allocated",    "slots released",     "prefill started",
        "pass done"};
    static_assert(kNames.size() == static_cast<std::size_t>(EventKind::pass_done) + 1);
    if (event.kind > EventKind::pass_done) return count_hold(event);
    ++marks_[kNames[static_cast<std::size_t>(event.kind)]];
    ++marks_[style_ + ": " + kNames[static_cast<std::size_t>(event.kind)]];
    if (event.kind == EventKind::evicted) ++marks_["evicted: " + std::string(name_of(event.reason))];
    if (event.kind == EventKind::backup_dropped) ++marks_["backup dropped: " + std::string(name_of(event.reason))];
    if (event.kind == EventKind::prefetch_declined || event.kind == EventKind::prefetch_revoked ||
        event.kind == EventKind::prefetch_wasted || event.kind == EventKind::store_dropped) {
      ++marks_[std::string(kNames[static_cast<std::size_t>(event.kind)]) + ": " + std::string(name_of(event.reason))];
    }
    if (event.kind == EventKind::prefetch_done || event.kind == EventKind::prefetch_stopped) {
      ++marks_[std::string(kNames[static_cast<std::size_t>(event.kind)]) + ": " + std::string(name_of(event.reason))];
    }
    if (event.kind == EventKind::prefetch_revoked && event.tier == Tier::device)
      ++marks_["aborted before a direct load"];
    follow_prefetch(event);
    if (event.kind == EventKind::prefetch_done && event.request >= kFirstRequestOfHints && event.pages > 0)
      ++marks_["prefetched for a hint"];
    if (event.kind == EventKind::storage_fell_short) ++marks_["fell short: " + std::string(name_of(event.cause))];
    if (event.kind == EventKind::evicted && event.tier == Tier::disk) ++marks_["evicted from the disk"];
    if (event.kind == EventKind::load_direct_done)
      ++marks_[event.reason == Reason::none ? "direct load" : "failed direct load"];
    if (event.pool != 0 && is_storage(event.tier)) {
      ++marks_["window or state: " + std::string(kNames[static_cast<std::size_t>(event.kind)])];
    }
    if (event.kind == EventKind::aborted) ++ended;
    if (event.kind == EventKind::prefetch_hit) hit += event.pages;
    if (event.kind == EventKind::prefetch_shortened) shortened += event.pages;
    if (event.kind == EventKind::prefetch_started) started += event.pages;
    if (event.kind == EventKind::rejected) {
      ++ended;
      ++marks_["rejected: " + std::string(name_of(event.record->rejected))];
    }
    if (event.kind == EventKind::finished) check(*event.record);
  }

  std::uint64_t ended = 0;  // finished, rejected or aborted
  Pages hit = 0, shortened = 0, started = 0;
  std::uint64_t prefetches_issued = 0, prefetches_ended = 0;

 private:
  void count_hold(const Event& event) {
    if (event.kind == EventKind::held) ++marks_["held: " + std::string(name_of(event.reason))];
    if (event.kind == EventKind::unheld) ++marks_["unheld: " + std::string(name_of(event.reason))];
  }

  // A prefetch that is issued ends once, in one way (policy/prefetch/prefetch.hpp).
  void follow_prefetch(const Event& event) {
    if (event.kind == EventKind::prefetch_issued) {
      ++prefetches_issued;
      EXPECT_TRUE(prefetching_.insert(event.request).second) << "a request has one prefetch at a time";
    }
    const bool after_a_stop = event.kind == EventKind::prefetch_done && event.reason == Reason::stopped;
    const bool end = event.kind == EventKind::prefetch_done || event.kind == EventKind::prefetch_stopped ||
                     event.kind == EventKind::prefetch_revoked;
    if (!end || after_a_stop) return;
    ++prefetches_ended;
    EXPECT_EQ(prefetching_.erase(event.request), 1U) << "a prefetch ends once";
  }

  void check(const RequestRecord& r) {
    ++ended;
    EXPECT_EQ(r.prompt_tokens, r.hit.sum() + r.recomputed_after_stop + r.miss);
    EXPECT_GE(r.miss, 1U) << "a first token has to be computed";
    EXPECT_EQ(r.first_token - r.arrival, r.queue_ns + r.prefetch_wait_ns + r.load_wait_ns + r.compute_ns);
    EXPECT_GE(r.queue_ns, 0);
    EXPECT_GE(r.finished, r.first_token);
    if (r.hit[Tier::host] > 0) ++marks_["hit on the host"];
    if (r.hit[Tier::device] > 0) ++marks_["hit on the device"];
    if (r.hit[Tier::disk] > 0) ++marks_["hit on the disk"];
    if (r.hit[Tier::shared_fs] > 0) ++marks_["hit on the shared file system"];
    if (r.hit[Tier::remote] > 0) ++marks_["hit on the remote"];
    if (pools_ && r.hit[Tier::disk] > 0) ++marks_["with windows or states: hit on the disk"];
    if (pools_ && r.hit[Tier::remote] > 0) ++marks_["with windows or states: hit on the remote"];
    if (r.recomputed_after_stop > 0) ++marks_["recomputed after a stop"];
    if (r.prefetch_wait_ns > 0) ++marks_["waited for a prefetch"];
    if (r.retractions > 0 && r.retracted_recompute > 0) ++marks_["finished after a retraction"];
  }

  Observer& world_;
  Marks& marks_;
  const std::string style_;
  const bool pools_;  // windows or states
  std::set<RequestId> prefetching_;
};

// Counts the loaded prefixes that waiting requests gave back.
class ReleaseCounter final : public DecisionSink {
 public:
  explicit ReleaseCounter(Marks& marks) : marks_(marks) {}
  void decided(const Decision& decision) override {
    if (decision.kind == DecisionKind::release) ++marks_["released: " + std::string(name_of(decision.reason))];
  }

 private:
  Marks& marks_;
};

class Inspector final : public InputHandler {
 public:
  explicit Inspector(std::uint64_t& inputs) : inputs_(inputs) {}
  void handle(const Input& input) override {
    ++inputs_;
    engine->handle(input);
    engine->check_invariants();
  }
  Engine* engine = nullptr;

 private:
  std::uint64_t& inputs_;
};

// Runs one seed. Returns the digest of the decisions: equal seeds must give equal digests.
std::uint64_t run_seed(std::uint64_t seed, Marks& marks) {
  current_seed = seed;
  test::Splitmix random{seed * 0x9e3779b97f4a7c15ULL + 1};
  Scenario scenario = draw_scenario(random);
  if (seed >= kHintSeeds) {
    prefer_hints(random, scenario);
  } else if (seed >= kOffloadSeeds) {
    prefer_offload(random, scenario);
  } else if (seed >= kPrefetchSeeds) {
    prefer_prefetches(random, scenario);
  }
  draw_host_mode(random, scenario.engine);
  test::Splitmix later = of_later_rules(random);
  draw_session_rules(later, scenario);
  draw_tier_rules(of_later_rules(later), scenario.engine);
  draw_kept_pools(of_later_rules(of_later_rules(later)), scenario);
  AdversarialConfig config;
  config.seed = random.next();
  config.page_tokens = scenario.engine.shape.page_tokens;
  config.device_pages = scenario.engine.device_slots();
  config.host_pages = scenario.engine.host_pages;
  config.ranks = scenario.engine.ranks;
  add_pools(config, scenario.engine);
  for (const StorageTierConfig& tier : scenario.engine.storage) add_store(config, tier);
  const StorageIdentity ours = swarm_identity();
  StorageIdentity other_tenant = ours, other_dtype = ours;
  other_tenant.name_space = "theirs";
  other_dtype.kv_dtype = "fp8";
  if (random.below(2) == 0) config.strangers = {storage_space(other_tenant), storage_space(other_dtype)};
  config.faults = random.below(3) != 0;
  const auto world = make_adversarial_world(config);
  const FaultShares shares = random.below(2) == 0 ? draw_faults(random) : FaultShares{};
  Faulty faulty(world->substrate(), shares, random.next());
  ContractTerms terms{scenario.engine.shape.page_tokens};
  terms.bursts_end_early = terms.cancels_unrequested = terms.duplicates = true;
  Checking checking(faulty, terms);
  Watcher watcher(*world, marks, scenario.engine);
  ReleaseCounter releases(marks);
  DecisionLog decisions(&releases);
  Engine engine(scenario.engine, checking, decisions, &watcher);
  std::uint64_t inputs = 0;
  Inspector inspector(inputs);
  inspector.engine = &engine;
  checking.connect(inspector);
  faulty.connect(checking);
  Workload workload(scenario, random, inputs, watcher.ended);
  world->run(workload, faulty);

  EXPECT_TRUE(engine.idle()) << engine.state_summary();
  EXPECT_EQ(watcher.ended, workload.requests()) << "every request ends";
  EXPECT_GE(inputs, inputs_of(!scenario.engine.storage.empty()));
  EXPECT_EQ(world->violation_count(), 0U);
  EXPECT_EQ(watcher.prefetches_issued, watcher.prefetches_ended) << "every prefetch that is issued ends";
  EXPECT_EQ(watcher.hit, watcher.shortened + watcher.started) << "what isn't fetched of a hit has a reason";
  for (const std::string& violation : world->violations()) ADD_FAILURE() << violation;
  for (const auto& [name, count] : world->coverage()) marks["world: " + std::string(name)] += count;
  const FaultCounts& struck = faulty.counts();
  for (const auto& [name, count] :
       std::initializer_list<std::pair<const char*, std::uint64_t>>{{"failed_transfers", struck.failed_transfers},
                                                                    {"failed_gates", struck.failed_gates},
                                                                    {"cut_bursts", struck.cut_bursts},
                                                                    {"read_errors", struck.read_errors},
                                                                    {"short_reads", struck.short_reads},
                                                                    {"corrupt_pages", struck.corrupt_pages},
                                                                    {"write_errors", struck.write_errors},
                                                                    {"full", struck.full},
                                                                    {"lost_writes", struck.lost_writes},
                                                                    {"lost_found", struck.lost_found},
                                                                    {"link_down", struck.link_down},
                                                                    {"dead_node", struck.dead_node},
                                                                    {"slow", struck.slow},
                                                                    {"late", struck.late},
                                                                    {"duplicates", struck.duplicates},
                                                                    {"cancels", struck.cancels}}) {
    marks["decorator: " + std::string(name)] += count;
  }
  return decisions.digest();
}

// Expects that every state of a prefetch ended in every way: success, abort, failure, timeout. Expects every fault,
// too.
void expect_every_end_of_a_prefetch(Marks& marks) {
  for (const auto& [mark, count] : marks) {
    if (mark.starts_with("decorator: ")) {
      EXPECT_GT(count, 0U) << mark << " never happened";
    }
  }
  for (const char* mark :
       {"prefetch hit", "prefetch revoked: aborted", "prefetch revoked: transfer_failed", "prefetch revoked: stopped",
        "prefetch revoked: duplicate", "prefetch done: none", "prefetch stopped: aborted",
        "prefetch done: transfer_failed", "prefetch stopped: stopped", "prefetch done: stopped", "direct load",
        "aborted before a direct load", "failed direct load", "with windows or states: hit on the disk",
        "with windows or states: hit on the remote"}) {
    EXPECT_GT(marks[mark], 0U) << mark << " never happened";
  }
}

bool deep() { return std::getenv("KVTWIN_DEEP") != nullptr; }

class Swarm : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Swarm, every_seed_keeps_every_invariant_and_every_byte) {
  set_check_handler(print_seed);
  Marks marks;
  if (const char* one = std::getenv("KVTWIN_SWARM_SEED")) {
    char* end = nullptr;
    const std::uint64_t first = std::strtoull(one, &end, 10);
    const std::uint64_t count = *end == ':' ? std::strtoull(end + 1, nullptr, 10) : 1;
    for (std::uint64_t i = 0; GetParam() == 0 && i < count && !HasFailure(); ++i) run_seed(first + i, marks);
    return;
  }
  const std::uint64_t seeds = kSeedsPerShard * (deep() ? kDeep : 1);
  for (std::uint64_t i = 0; i < seeds && !HasFailure(); ++i) {
    const std::uint64_t seed = GetParam() * seeds + i;
    const std::uint64_t digest = run_seed(seed, marks);
    if (i % 32 == 0) {
      Marks again;
      EXPECT_EQ(run_seed(seed, again), digest) << "the same seed decides the same";
    }
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  if (std::getenv("KVTWIN_SWARM_MARKS") != nullptr) {
    for (const auto& [mark, count] : marks)
      std::printf("%10llu %s\n", static_cast<unsigned long long>(count), mark.c_str());
  }
  if (kSanitized && !deep()) return;
  // The interesting events must have happened; otherwise the swarm proves little.
  for (const char* mark : {"retracted",
                           "rejected: too_long",
                           "rejected: queue_full",
                           "evicted: demoted",
                           "evicted: lost",
                           "backup dropped: capacity",
                           "backup dropped: transfer_failed",
                           "load done",
                           "backup awaited",
                           "backup retried",
                           "evicted: shadowed",
                           "evicted: host_pressure",
                           "evicted: transfer_failed",
                           "load failed",
                           "hit on the host",
                           "hit on the device",
                           "hit on the disk",
                           "hit on the shared file system",
                           "hit on the remote",
                           "window or state: store done",
                           "window or state: store retried",
                           "window or state: store dropped",
                           "window or state: evicted",
                           "finished after a retraction",
                           "aborted",
                           "recomputed after a stop",
                           "waited for a prefetch",
                           "store done",
                           "store retried",
                           "store dropped: backlog",
                           "store awaited",
                           "store dropped: capacity",
                           "store dropped: transfer_failed",
                           "evicted from the disk",
                           "write-back of pools: backup done",
                           "write-back of pools: backup dropped",
                           "write-back of pools: backup retried",
                           "write-back of pools: load done",
                           "write-back of pools: load failed",
                           "write-back of pools: retracted",
                           "late writes: store done",
                           "late writes: store dropped",
                           "late writes: evicted",
                           "late writes: retracted",
                           "private loads: load direct done",
                           "private loads: retracted",
                           "private loads: aborted",
                           "host buffer: retracted",
                           "host buffer: backup done",
                           "host buffer: backup dropped",
                           "host buffer: load done",
                           "host buffer: load failed",
                           "host until_stored: retracted",
                           "host until_stored: backup done",
                           "host until_stored: backup dropped",
                           "host until_stored: load done",
                           "host until_stored: load failed",
                           "vllm: retracted",
                           "vllm: load done",
                           "vllm: load failed",
                           "released: capacity",
                           "released: transfer_failed",
                           "prefetch stopped",
                           "prefetch used",
                           "prefetch shortened",
                           "prefetch declined: too_short",
                           "prefetch declined: rate_limited",
                           "prefetch declined: not_backed_up",
                           "prefetch revoked: miss",
                           "prefetch revoked: too_short",
                           "prefetch revoked: stopped",
                           "prefetch revoked: aborted",
                           "prefetch wasted: duplicate",
                           "fell short: missing",
                           "fell short: corrupt",
                           "fell short: io_error",
                           "fell short: unreachable",
                           "fell short: full"}) {
    EXPECT_GT(marks[mark], 0U) << mark << " never happened";
  }
  // Events that the engine never causes: it runs one pass at a time, and uses only loads in flight as gates.
  constexpr std::array kNeverCaused = {"world: gate_had_landed", "world: pass_waited_for_pass",
                                       "world: queued_pass_cancelled"};
  for (const auto& [mark, count] : marks) {
    if (std::ranges::find(kNeverCaused, mark) != kNeverCaused.end() || mark.starts_with("decorator: ")) continue;
    EXPECT_GT(count, 0U) << mark << " never happened";
  }
}

// Each of them broke a promise or moved wrong bytes once, and is too rare for the seeds of the shards.
TEST(SwarmSeeds, that_found_faults) {
  set_check_handler(print_seed);
  Marks marks;
  for (const std::uint64_t seed : {std::uint64_t{13219}, std::uint64_t{16161}}) run_seed(seed, marks);
}

TEST(Prefetches, end_in_every_state_in_every_way) {
  set_check_handler(print_seed);
  Marks marks;
  const std::uint64_t seeds = deep() ? kSeedsPerShard * kDeep : kSeedsPerShard / (kSanitized ? 1 : 4);
  for (std::uint64_t i = 0; i < seeds && !HasFailure(); ++i) {
    run_seed(kPrefetchSeeds + i, marks);
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  if (!kSanitized || deep()) expect_every_end_of_a_prefetch(marks);
}

// With vLLM's offloading, what a request hits on storage has come through host memory before its admission.
TEST(Offloading, reads_and_writes_storage_tiers) {
  set_check_handler(print_seed);
  Marks marks;
  const std::uint64_t seeds = deep() ? kSeedsPerShard * kDeep : kSeedsPerShard / (kSanitized ? 1 : 2);
  for (std::uint64_t i = 0; i < seeds && !HasFailure(); ++i) {
    run_seed(kOffloadSeeds + i, marks);
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  if (kSanitized && !deep()) return;
  for (const char* mark : {"hit on the host", "hit on the disk", "hit on the remote", "vllm: load done",
                           "vllm: load failed", "store done", "store dropped: capacity", "store dropped: backlog",
                           "store dropped: transfer_failed", "backup dropped: capacity", "evicted from the disk",
                           "fell short: missing", "fell short: corrupt", "aborted", "released: capacity"}) {
    EXPECT_GT(marks[mark], 0U) << mark << " never happened";
  }
}

TEST(Hints, are_obeyed_in_every_way) {
  set_check_handler(print_seed);
  Marks marks;
  const std::uint64_t seeds = deep() ? kSeedsPerShard * kDeep : kSeedsPerShard / (kSanitized ? 1 : 2);
  for (std::uint64_t i = 0; i < seeds && !HasFailure(); ++i) {
    const std::uint64_t digest = run_seed(kHintSeeds + i, marks);
    if (i % 32 == 0) {
      Marks again;
      EXPECT_EQ(run_seed(kHintSeeds + i, again), digest) << "the same seed decides the same";
    }
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  if (kSanitized && !deep()) return;
  for (const char* mark : {"held: none", "held: quota", "unheld: none", "unheld: expired", "unheld: capacity",
                           "unheld: quota", "prefetched for a hint", "evicted: demoted", "hit on the host"}) {
    EXPECT_GT(marks[mark], 0U) << mark << " never happened";
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, Swarm, testing::Range<std::uint64_t>(0, kShards));

}  // namespace
}  // namespace kvtwin
