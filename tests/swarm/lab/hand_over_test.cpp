// The swarm test of engines with roles: prefill and decode engines in one clock, with thousands of seeds. A seed
// determines the configuration, the storage tiers, the workload, the faults, and the engines that die: one or several
// of each role. Two worlds take turns: the adversarial one, which moves bytes and checks every byte that a pass or a
// hand-over reads; and the event heap. After each input, all invariants of the engine are checked. The journals of some
// seeds are decided again. If a seed fails, the test prints the command that runs only this seed.
//
// A second test has engines of several ranks that decide each for themselves, with a journal each, in the event heap.
// Ranks fail and are late independently. The world checks that all ranks of an engine send the same notices, with the
// same slots.
//
//   KVTWIN_SWARM_SEED=123 build/tests/swarm_lab --gtest_filter='HandOverSwarm*'  runs seed 123
//   KVTWIN_DEEP=1 build/tests/swarm_lab                                          runs ten times as many seeds
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lab/experiment/request_route.hpp"
#include "policy/base/check.hpp"
#include "policy/engine.hpp"
#include "policy/index/page_key.hpp"
#include "policy/replay.hpp"
#include "policy/seam/decorators.hpp"
#include "sim/world.hpp"
#include "tests/adversary/adversarial_fleet.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 100;
#else
constexpr std::uint64_t kSeeds = 2000;
#endif

std::uint64_t current_seed = 0;

std::string reproduction() {
  return "reproduce: KVTWIN_SWARM_SEED=" + std::to_string(current_seed) + " build/tests/swarm_lab";
}

void print_seed(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "broken promise: %s (%s, %s:%d)\n%s\n", sentence, condition, file, line, reproduction().c_str());
}

template <typename T>
T pick(test::Splitmix& random, std::initializer_list<T> values) {
  return *(values.begin() + random.below(values.size()));
}

struct Scenario {
  std::uint32_t prefill = 1, decode = 1;
  EngineConfig engines[2];  // of each role
  std::uint64_t requests = 0, abort_one_in = 0, fresh_one_in = 4;
  Tokens max_prompt = 0, max_output = 0;
  TimeNs max_gap_ns = 0;
  FaultShares faults;
  RouteRoles roles;
  RouterSetup router;
  std::vector<WorldConfig::Death> deaths;
  TimeNs detect_ns = 0;
};

// Gives the world a store of each tier of either role.
void add_stores(WorldConfig& config, const Scenario& s) {
  for (const EngineConfig& engine : s.engines) {
    for (const StorageTierConfig& tier : engine.storage) {
      const auto there = std::ranges::find(config.storage, tier.tier, &StorageTier::tier);
      if (there == config.storage.end()) {
        config.storage.push_back({tier.tier, tier.pages, !tier.owned});
      } else {
        there->pages = std::max(there->pages, tier.pages);
      }
    }
  }
}

WorldConfig slow_or_fast_world(const Scenario& s, test::Splitmix& random) {
  WorldConfig config;
  config.h2d_bytes_per_second = config.d2h_bytes_per_second = 1'000'000'000;
  config.nic_bytes_per_second = pick<std::uint64_t>(random, {10'000'000, 1'000'000'000});
  config.disk_read_bytes_per_second = pick<std::uint64_t>(random, {10'000'000, 1'000'000'000});
  config.disk_write_bytes_per_second = config.disk_read_bytes_per_second / 2;
  config.shared_fs_read_bytes_per_second = pick<std::uint64_t>(random, {10'000'000, 1'000'000'000});
  config.shared_fs_write_bytes_per_second = config.shared_fs_read_bytes_per_second;
  add_stores(config, s);
  config.engines = s.prefill + s.decode;
  config.prefill_engines = s.prefill;
  return config;
}

EngineConfig draw_engine(test::Splitmix& random, std::uint32_t page, const KvShape& shape) {
  EngineConfig e;
  e.shape = shape;
  e.shape.page_tokens = page;
  e.device_pages = 6 + random.below(pick<std::uint64_t>(random, {8, 40, 100}));
  e.host_pages = random.below(2) == 0 ? 0 : 1 + random.below(60);
  e.eviction = pick(random, {"lru", "lru", "tide"});
  e.write_policy = pick(random, {"write_through", "write_through_selective", "write_back"});
  e.order = pick(random, {"fcfs", "longest_prefix", "shortest_prefill_first"});
  e.max_running = pick<std::uint32_t>(random, {1, 3, 256});
  e.max_waiting = pick<std::uint64_t>(random, {0, 0, 4});
  e.chunk_tokens = pick<Tokens>(random, {1, 7, 32, 8192});
  e.burst_steps = pick<std::uint32_t>(random, {1, 4, 64});
  e.poll_steps = pick<std::uint32_t>(random, {1, 1, 8});
  e.load_back_min_tokens = pick<Tokens>(random, {0, 10});
  e.reserve_initial = pick<std::uint32_t>(random, {0, 717});
  e.reserve_min = std::min(e.reserve_initial, 100U);
  e.style = random.below(3) == 0 ? "vllm" : "sglang";
  if (random.below(2) == 0) {
    if (random.below(2) == 0) e.storage.push_back({Tier::disk, 1 + random.below(100), true});
    if (random.below(4) == 0) e.storage.push_back({Tier::shared_fs, 1 + random.below(200), false});
    if (e.storage.empty() || random.below(2) == 0) e.storage.push_back({Tier::remote, 400, false});
    e.prefetch_policy = pick(random, {"timeout(base=200us)", "wait_complete", "best_effort", "cost_stop"});
    e.prefetch_host_share = pick<std::uint32_t>(random, {100, 512, 1024});
    e.prefetch_retry_steps = pick<std::uint32_t>(random, {0, 1, 8});
    e.prefetch_recheck = random.below(4) != 0;
    e.storage_retries = pick<std::uint32_t>(random, {0, 1});
    e.cost_token_ps = 500'000;
    for (StorageTierConfig& tier : e.storage) tier.read_token_ps = pick<std::uint64_t>(random, {50'000, 5'000'000});
    e.storage_space = storage_space({.model = "swarm", .kv_dtype = "bf16", .name_space = "ours"});
    e.storage_batch_pages = 1 + random.below(5);
    e.prefetch_min_tokens = 1;
    if (e.host_pages == 0) {
      e.path = CachePath::direct;
      e.style = "sglang";
    } else if (e.style == "sglang") {
      e.path = pick(random, {CachePath::via_host, CachePath::direct, CachePath::automatic});
    }
  }
  return e;
}

// A large L3, and prompts that return after L1 and L2 have evicted them.
void prefer_prefetches(test::Splitmix& random, Scenario& s) {
  EngineConfig& e = s.engines[0];
  if (e.storage.empty()) return;
  for (StorageTierConfig& tier : e.storage) tier.pages = 2000;
  e.storage_write_share = 8192;
  e.prefetch_host_share = 1024;
  e.write_policy = random.below(3) == 0 ? "write_back" : "write_through";
  if (e.host_pages > 0) e.host_pages = e.device_pages * (1 + random.below(2));
  s.faults.link_down = 0;
  s.fresh_one_in = 16;
  s.requests *= 2;
  s.abort_one_in = pick<std::uint64_t>(random, {0, 3});
}

// A third of the models keep windows, states or both. `random` is a copy, so the draws behind this one stay as they
// are.
void draw_pools(test::Splitmix random, Scenario& s) {
  if (random.below(3) != 0) return;
  std::vector<PoolConfig> kinds;
  if (random.below(3) != 0) kinds.push_back({Closure::tail, 1 + random.below(60), 0, 0, {}});
  if (kinds.empty() || random.below(2) == 0) kinds.push_back({Closure::point, 0, 0, 0, {}});
  const bool tracks = random.below(3) == 0 || s.engines[0].shape.page_tokens != 1;  // no_buffer has pages of a token
  const std::string points = tracks ? "extra_buffer(chunk=8, interval=16)" : "no_buffer";
  for (EngineConfig& e : s.engines) {
    e.evict_unit = EvictUnit::node;
    e.path = CachePath::via_host;
    if (e.host_pages == 0 || e.write_policy == "write_back") e.storage.clear();
    e.window_release_tokens = pick<Tokens>(random, {1, 8, 128});
    e.max_running = pick<std::uint32_t>(random, {1, 3, 8});
    e.state_points = points;
    for (PoolConfig pool : kinds) {
      pool.shape = e.shape;
      const Pages more = random.below(pick<Pages>(random, {1, 4, 60, 200}));
      pool.device_slots = (pool.window == 0 ? 5 * Pages{e.max_running} : e.least_slots(pool)) + more;
      if (e.host_pages != 0) pool.host_slots = random.below(100);
      e.pools.push_back(pool);
    }
  }
  for (EngineConfig& e : s.engines) {
    e.hand_over.from.beside.assign(kinds.size(), s.engines[0].shape);
    e.hand_over.to.beside.assign(kinds.size(), s.engines[1].shape);
  }
}

Scenario draw_scenario(test::Splitmix& random) {
  Scenario s;
  s.prefill = 1 + static_cast<std::uint32_t>(random.below(3));
  s.decode = 1 + static_cast<std::uint32_t>(random.below(3));
  const auto page = pick<std::uint32_t>(random, {1, 2, 4, 16});
  const std::uint32_t layers = pick<std::uint32_t>(random, {1, 2, 5});
  const std::uint32_t planes = pick<std::uint32_t>(random, {1, 2});
  // With two planes, the decode engine may have twice the ranks with half the heads.
  const std::uint32_t split = planes == 2 ? pick<std::uint32_t>(random, {1, 2}) : 1;
  const KvShape wide{layers, planes, planes == 2 ? 2U : 1U, 16, page};
  KvShape narrow = wide;
  narrow.heads /= split;
  HandOverConfig terms;
  terms.unit = pick(random, {HandOverUnit::whole, HandOverUnit::chunks, HandOverUnit::layers});
  terms.from = {wide, 1, Layout::layer_first};
  terms.to = {narrow, split, Layout::layer_first};
  terms.reuse = random.below(3) != 0;
  terms.cache = random.below(3) != 0;
  for (const std::size_t role : {0U, 1U}) {
    EngineConfig& e = s.engines[role];
    e = draw_engine(random, page, role == 0 ? wide : narrow);
    e.ranks = role == 0 ? 1 : split;
    e.storage_writers = e.ranks;
    e.hand_over = terms;
    e.hand_over.role = role == 0 ? EngineRole::prefill : EngineRole::decode;
  }
  const Tokens capacity = std::min(s.engines[0].device_pages, s.engines[1].device_pages) * page;
  s.max_prompt = std::max<Tokens>(1, capacity * (1 + random.below(11)) / 10);
  s.max_output = 1 + random.below(std::min<Tokens>(capacity, 40));
  s.requests = 10 + random.below(40);
  s.abort_one_in = pick<std::uint64_t>(random, {0, 3, 10});
  s.max_gap_ns = pick<TimeNs>(random, {0, 1000, 100'000, 3'000'000});
  if (random.below(2) == 0) {
    for (std::uint32_t* share :
         {&s.faults.failed_transfers, &s.faults.cut_bursts, &s.faults.late, &s.faults.failed_hand_overs,
          &s.faults.corrupt_pages, &s.faults.duplicates, &s.faults.read_errors, &s.faults.short_reads,
          &s.faults.write_errors, &s.faults.full, &s.faults.lost_writes, &s.faults.link_down}) {
      *share = random.below(2) == 0 ? static_cast<std::uint32_t>(random.below(300)) : 0;
    }
    if (random.below(8) == 0) s.faults.failed_hand_overs = 1024;
  }
  if (random.below(2) == 0) prefer_prefetches(random, s);
  draw_pools(random, s);
  s.router.engines = s.prefill;
  s.router.page_tokens = page;
  s.router.device_pages = s.engines[0].device_pages;
  s.roles.prefill = s.prefill;
  s.roles.decode = s.router;
  s.roles.decode.engines = s.decode;
  s.roles.decode_policy = pick<std::string>(
      random, {"least_loaded", "round_robin", "prefix_affinity", "score", "power_of_two", "session_affinity"});
  s.roles.min_tokens = random.below(2) == 0 ? 0 : random.below(s.max_prompt + 1);
  const bool dies = random.below(3) == 0;
  s.roles.engines_die = dies;
  s.detect_ns = pick<TimeNs>(random, {0, 1000, 1'000'000});
  if (dies) {
    // One engine of each role stays.
    for (const auto& [first, count] : {std::pair(0U, s.prefill), std::pair(s.prefill, s.decode)}) {
      const std::uint32_t stays = static_cast<std::uint32_t>(random.below(count));
      for (std::uint32_t i = 0; i < count; ++i) {
        const auto at = static_cast<TimeNs>(random.below(20'000'000));
        if (i != stays && random.below(3) != 0) s.deaths.push_back({first + i, at});
      }
    }
  }
  return s;
}

// Requests that share prefixes, and aborts.
class Workload final : public InputSource {
 public:
  Workload(const Scenario& scenario, test::Splitmix& random) : scenario_(scenario), random_(random) {}

  bool next(Input& input) override {
    if (scenario_.max_gap_ns > 0) {
      time_ += static_cast<TimeNs>(random_.below(static_cast<std::uint64_t>(scenario_.max_gap_ns)));
    }
    if (requests_ > 0 && scenario_.abort_one_in > 0 && random_.below(scenario_.abort_one_in) == 0) {
      input = {time_, Hint{HintKind::abort, requests_ - 1 - random_.below(std::min<std::uint64_t>(requests_, 8)), 0}};
      return true;
    }
    if (requests_ == scenario_.requests) return false;
    Arrival arrival;
    arrival.request = requests_++;
    arrival.session = arrival.request % 4;
    arrival.prompt_tokens = 1 + random_.below(scenario_.max_prompt);
    arrival.output_tokens = 1 + random_.below(scenario_.max_output);
    const Tokens page = scenario_.engines[0].shape.page_tokens;
    const bool names_output = random_.below(3) == 0;
    const std::size_t pages = (arrival.prompt_tokens + (names_output ? arrival.output_tokens : 0)) / page;
    keys_.clear();
    if (!earlier_.empty() && random_.below(scenario_.fresh_one_in) != 0) {
      keys_ = earlier_[random_.below(earlier_.size())];
      keys_.resize(std::min<std::size_t>(keys_.size(), random_.below(pages + 1)));
    }
    while (keys_.size() < pages) {
      const BlockSegment segment{random_.next(), 0, static_cast<std::uint32_t>(page)};
      keys_.push_back(block_page_key(keys_.empty() ? nullptr : &keys_.back(), std::span(&segment, 1)));
    }
    earlier_.push_back(keys_);
    arrival.keys = keys_;
    input = {time_, arrival};
    return true;
  }

 private:
  const Scenario& scenario_;
  test::Splitmix& random_;
  TimeNs time_ = 0;
  std::uint64_t requests_ = 0;
  std::vector<std::vector<PageKey>> earlier_;
  std::vector<PageKey> keys_;
};

using Marks = std::map<std::string, std::uint64_t>;

// Counts how requests and hand-overs end.
struct Counts {
  Marks& marks;
  std::map<RequestId, std::uint32_t> ended;  // times
  Pages submitted = 0, answered = 0;
};

struct ByteVector final : ByteSink {
  void write(std::span<const std::byte> more) override { bytes.insert(bytes.end(), more.begin(), more.end()); }
  std::vector<std::byte> bytes;
};

// One engine with its decorators, or one rank of it. `route`, `counts`: of the first rank, which speaks for the others.
class Node final : public Observer, public InputHandler {
 public:
  Node(std::size_t engine, const EngineConfig& config, Substrate& world, const FaultShares& faults, std::uint64_t seed,
       RequestRoute* route, Counts* counts, Observer* world_observer, bool ranks_decide = false)
      : number_(engine),
        route_(route),
        counts_(counts),
        world_(world_observer),
        faulty_(world, faults, seed),
        checking_(faulty_, terms_of(config, ranks_decide)),
        engine_(config, checking_, decisions_, this),
        config_(config),
        writer_(journal_, ""),
        recording_(*this, decisions_, writer_) {
    checking_.connect(recording_);
    faulty_.connect(checking_);
  }
  InputHandler& first() { return faulty_; }
  const Engine& engine() const { return engine_; }
  std::uint64_t digest() const { return decisions_.digest(); }
  const FaultCounts& faults() const { return faulty_.counts(); }
  // Ends the journal, and decides again from it alone.
  void expect_equal_replay(TimeNs now) {
    writer_.finish(now, {decisions_.count(), decisions_.digest()});
    JournalReader reader(journal_.bytes);
    const ReplayResult result = replay(reader, config_);
    EXPECT_TRUE(result.whole_and_equal()) << "engine " << number_ << ", record " << result.place.number << ": "
                                          << (result.misfit == nullptr ? "" : result.misfit);
  }

  void handle(const Input& input) override {
    engine_.handle(input);
    engine_.check_invariants();
  }
  void on_event(const Event& event) override {
    if (route_ == nullptr) return;
    route_->on_event(number_, event);
    if (world_ != nullptr) world_->on_event(event);
    switch (event.kind) {
      case EventKind::finished:
      case EventKind::rejected:
      case EventKind::aborted: ++counts_->ended[event.record->request]; break;
      case EventKind::hand_over_submitted: counts_->submitted += event.pages; break;
      case EventKind::hand_over_ended: counts_->answered += event.pages; break;
      default: break;
    }
    if (event.kind == EventKind::finished) {
      const RequestRecord& r = *event.record;
      EXPECT_EQ(r.first_token - r.arrival,
                r.queue_ns + r.prefetch_wait_ns + r.load_wait_ns + r.compute_ns + r.hand_over_ns);
      EXPECT_GE(r.queue_ns, 0);
      EXPECT_EQ(r.prompt_tokens, r.hit.sum() + r.recomputed_after_stop + r.miss);
      ++counts_->marks["finished: " + std::string(name_of(r.part))];
      if (r.attempt > 0) ++counts_->marks["finished: sent again"];
    }
    const auto count = [&](std::string_view name, Reason reason) {
      ++counts_->marks[std::string(name) + ": " + std::string(name_of(reason))];
    };
    if (event.kind == EventKind::fell_back) count("fell back", event.reason);
    if (event.kind == EventKind::hand_over_dropped) count("dropped", event.reason);
    if (event.kind == EventKind::hand_over_ended) count("hand-over", event.reason);
    if (event.kind == EventKind::handed_over) ++counts_->marks["handed over"];
    if (!config_.pools.empty() && event.kind == EventKind::handed_over) ++counts_->marks["handed over with pools"];
    if (!config_.pools.empty() && event.kind == EventKind::fell_back) ++counts_->marks["fell back with pools"];
    if (event.kind == EventKind::prefetch_used) counts_->marks["prefetched pages used"] += event.pages;
    if (event.kind == EventKind::prefetch_stopped) count("prefetch stopped", event.reason);
    if (event.kind == EventKind::prefetch_revoked) count("prefetch revoked", event.reason);
    if (event.kind == EventKind::load_direct_done) count("direct load", event.reason);
    if (event.kind == EventKind::retracted) {
      ++counts_->marks["retracted: " + std::string(name_of(event.record->part))];
    }
  }

 private:
  static ContractTerms terms_of(const EngineConfig& config, bool ranks_decide) {
    ContractTerms terms{config.shape.page_tokens, config.hand_over.role};
    terms.windows = config.windows();
    terms.ranks_decide = ranks_decide;
    terms.bursts_end_early = terms.cancels_unrequested = terms.duplicates = true;
    return terms;
  }

  std::size_t number_;
  RequestRoute* route_;
  Counts* counts_;
  Observer* world_;
  DecisionLog decisions_;
  Faulty faulty_;
  Checking checking_;
  Engine engine_;
  EngineConfig config_;
  ByteVector journal_;
  JournalWriter writer_;
  Recording recording_;
};

class FlatCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(5000 * steps + 500 * shape.prefill_tokens);
  }
  TransferCost transfer(const Plan& plan) const override { return {2000, plan.bytes, 0}; }
  TransferCost storage(const StorageWork& work) const override {
    return {5000, work.pages * work.page_bytes * work.ranks, 0};
  }
};

// Runs one seed in one world. Returns a digest of all decisions.
std::uint64_t run_seed(std::uint64_t seed, bool adversarial, Marks& marks) {
  current_seed = seed;
  test::Splitmix random{seed * 0x9e3779b97f4a7c15ULL + 7};
  const Scenario s = draw_scenario(random);
  const std::size_t seats = s.prefill + s.decode;
  const auto routers = route_names();
  const TimeNs view_delay = seed % 3 == 0 ? 20'000 : 0;
  RequestRoute route(routers[seed / 4 % routers.size()], s.router, view_delay, s.roles);
  Counts counts{marks, {}, 0, 0};
  const std::uint64_t fault_seed = random.next();
  std::unique_ptr<AdversarialFleet> fleet;
  std::unique_ptr<World> world;
  const FlatCost cost;
  WorldConfig decode_world;
  FleetConfig fleet_config;
  fleet_config.seed = random.next();
  fleet_config.max_notice_ns = pick<std::uint64_t>(random, {0, 1000, 1'000'000});
  if (adversarial) {
    fleet_config.deaths = s.deaths;
    fleet_config.detect_ns = s.detect_ns;
    const bool world_faults = random.below(2) == 0;
    for (std::size_t seat = 0; seat < seats; ++seat) {
      const EngineConfig& engine = s.engines[seat < s.prefill ? 0 : 1];
      AdversarialConfig config;
      config.seed = random.next();
      config.page_tokens = engine.shape.page_tokens;
      config.device_pages = engine.device_pages;
      config.host_pages = engine.host_pages;
      config.ranks = engine.ranks;
      add_pools(config, engine);
      config.faults = world_faults;
      for (const StorageTierConfig& tier : engine.storage) add_store(config, tier);
      fleet_config.engines.push_back(config);
    }
    fleet = std::make_unique<AdversarialFleet>(fleet_config);
  } else {
    WorldConfig config = slow_or_fast_world(s, random);
    config.notice_ns = static_cast<TimeNs>(fleet_config.max_notice_ns);
    config.deaths = s.deaths;
    config.detect_ns = s.detect_ns;
    config.cost = &cost;
    decode_world = config;
    decode_world.ranks = s.engines[1].ranks;
    config.decode = &decode_world;
    world = make_event_world(config);
  }
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<InputHandler*> handlers;
  for (std::size_t seat = 0; seat < seats; ++seat) {
    Substrate& substrate = adversarial ? fleet->world(seat).substrate() : world->substrate_of(seat);
    Observer* const observer = adversarial ? &fleet->world(seat) : nullptr;
    nodes.push_back(std::make_unique<Node>(seat, s.engines[seat < s.prefill ? 0 : 1], substrate, s.faults,
                                           fault_seed + seat, &route, &counts, observer));
    handlers.push_back(&nodes.back()->first());
  }
  Workload workload(s, random);
  adversarial ? fleet->run(workload, handlers, route) : world->run_seats(workload, handlers, &route);

  if (s.deaths.size() > 1) ++marks["several deaths"];
  if (s.deaths.size() > 1 && !s.engines[0].storage.empty()) ++marks["several deaths, with storage"];
  std::uint64_t digest = 0;
  for (std::size_t seat = 0; seat < seats; ++seat) {
    digest = digest * 0xD1B54A32D192ED03u + nodes[seat]->digest();
    const bool dead =
        std::ranges::any_of(s.deaths, [&](const WorldConfig::Death& death) { return death.engine == seat; });
    const Engine& engine = nodes[seat]->engine();
    EXPECT_TRUE(dead || engine.idle()) << "engine " << seat << ": " << engine.state_summary();
    if (seed % 8 == 0 || seed % 8 == 7) nodes[seat]->expect_equal_replay(adversarial ? fleet->now() : world->now());
    marks["decorator: failed_hand_overs"] += nodes[seat]->faults().failed_hand_overs;
    if (!adversarial) continue;
    EXPECT_EQ(fleet->world(seat).violation_count(), 0U);
    for (const std::string& violation : fleet->world(seat).violations())
      ADD_FAILURE() << "engine " << seat << ": " << violation;
    for (const auto& [name, count] : fleet->world(seat).coverage()) {
      if (name.starts_with("hand_over")) marks["world: " + std::string(name)] += count;
    }
  }
  EXPECT_EQ(counts.ended.size(), s.requests) << "every request ends";
  for (const auto& [request, times] : counts.ended) EXPECT_EQ(times, 1U) << "request " << request << " ends once";
  EXPECT_TRUE(!s.deaths.empty() || counts.submitted == counts.answered) << "every written page is accounted for";
  return digest;
}

// The same with several ranks per engine, each with a policy of its own.
void run_ranks(std::uint64_t seed, Marks& marks) {
  current_seed = seed;
  test::Splitmix random{seed * 0x9e3779b97f4a7c15ULL + 11};
  Scenario s = draw_scenario(random);
  s.deaths.clear();
  const auto ranks = static_cast<std::uint32_t>(2 + random.below(2));
  HandOverConfig terms = s.engines[0].hand_over;
  terms.unit = pick(random, {HandOverUnit::whole, HandOverUnit::chunks});
  terms.from.ranks = terms.to.ranks = ranks;
  terms.to.shape = terms.from.shape;
  for (const std::size_t role : {0U, 1U}) {
    EngineConfig& e = s.engines[role];
    e.shape = terms.from.shape;
    e.ranks = e.storage_writers = ranks;
    e.hand_over = terms;
    e.hand_over.role = role == 0 ? EngineRole::prefill : EngineRole::decode;
  }
  // The passes of an engine's ranks belong together, so `Faulty` must not hold one back because of a lost load.
  s.faults.failed_transfers = s.faults.corrupt_pages = 0;
  s.faults.read_errors = s.faults.short_reads = s.faults.lost_writes = s.faults.link_down = 0;
  if (s.engines[0].host_pages == 0 || s.engines[1].host_pages == 0) s.faults.late = 0;
  const std::size_t engines = s.prefill + s.decode;
  const auto routers = route_names();
  RequestRoute route(routers[seed / 4 % routers.size()], s.router, 0, s.roles);
  Counts counts{marks, {}, 0, 0};
  const FlatCost cost;
  WorldConfig config = slow_or_fast_world(s, random);
  config.notice_ns = pick<TimeNs>(random, {0, 1000, 1'000'000});
  config.ranks = ranks;
  config.instances = true;
  config.reduce_ns = pick<TimeNs>(random, {1000, 30'000});
  for (std::uint32_t rank = 0; rank < ranks; ++rank) config.slower.push_back(pick(random, {1.0, 1.0, 3.0}));
  config.cost = &cost;
  const std::unique_ptr<World> world = make_event_world(config);
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<InputHandler*> handlers;
  for (std::size_t seat = 0; seat < engines * ranks; ++seat) {
    const bool leads = seat % ranks == 0;
    const FaultShares faults = random.below(3) == 0 ? FaultShares{} : s.faults;
    EngineConfig own = s.engines[seat / ranks < s.prefill ? 0 : 1];
    own.storage_space.words[0] += seat % ranks;
    nodes.push_back(std::make_unique<Node>(seat / ranks, own, world->substrate_of(seat), faults, random.next(),
                                           leads ? &route : nullptr, leads ? &counts : nullptr, nullptr, true));
    handlers.push_back(&nodes.back()->first());
  }
  Workload workload(s, random);
  world->run_seats(workload, handlers, &route);
  for (std::size_t seat = 0; seat < nodes.size(); ++seat) {
    const std::string who = "engine " + std::to_string(seat / ranks) + ", rank " + std::to_string(seat % ranks);
    EXPECT_EQ(nodes[seat]->digest(), nodes[seat - seat % ranks]->digest()) << who;
    EXPECT_TRUE(nodes[seat]->engine().idle()) << who << ": " << nodes[seat]->engine().state_summary();
    if (seed % 8 == 0) nodes[seat]->expect_equal_replay(world->now());
    marks["decorator: failed_hand_overs"] += nodes[seat]->faults().failed_hand_overs;
  }
  EXPECT_EQ(counts.ended.size(), s.requests) << "every request ends";
  for (const auto& [request, times] : counts.ended) EXPECT_EQ(times, 1U) << "request " << request << " ends once";
  EXPECT_EQ(counts.submitted, counts.answered) << "every written page is accounted for";
}

void print_marks(const Marks& marks) {
  if (std::getenv("KVTWIN_SWARM_MARKS") == nullptr) return;
  for (const auto& [mark, count] : marks) {
    std::printf("%10llu %s\n", static_cast<unsigned long long>(count), mark.c_str());
  }
}

TEST(HandOverSwarm, ranks_that_decide_each_for_themselves_decide_alike) {
  set_check_handler(print_seed);
  Marks marks;
  if (const char* one = std::getenv("KVTWIN_SWARM_SEED")) return run_ranks(std::strtoull(one, nullptr, 10), marks);
  const std::uint64_t seeds = kSeeds / 2 * (std::getenv("KVTWIN_DEEP") != nullptr ? 10 : 1);
  for (std::uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    run_ranks(seed, marks);
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  print_marks(marks);
  if (kSeeds < 2000 || HasFailure()) return;
  for (const char* mark : {"finished: whole", "finished: decode", "handed over", "fell back: withdrawn",
                           "dropped: aborted", "dropped: transfer_failed", "hand-over: none",
                           "hand-over: transfer_failed", "retracted: prefill", "decorator: failed_hand_overs"}) {
    EXPECT_GT(marks[mark], 0U) << mark << " never happened";
  }
}

TEST(HandOverSwarm, every_seed_keeps_every_invariant_and_every_byte) {
  set_check_handler(print_seed);
  Marks marks;
  if (const char* one = std::getenv("KVTWIN_SWARM_SEED")) {
    const std::uint64_t seed = std::strtoull(one, nullptr, 10);
    run_seed(seed, seed % 4 != 3, marks);
    return;
  }
  const std::uint64_t seeds = kSeeds * (std::getenv("KVTWIN_DEEP") != nullptr ? 10 : 1);
  for (std::uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    const bool adversarial = seed % 4 != 3;
    const std::uint64_t digest = run_seed(seed, adversarial, marks);
    if (seed % 64 == 0) {
      Marks again;
      EXPECT_EQ(run_seed(seed, adversarial, again), digest) << "the same seed decides the same";
    }
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  for (const std::uint64_t seed : {4622U, 10086U}) run_seed(seed, seed % 4 != 3, marks);  // each found a bug once
  print_marks(marks);
  if (kSeeds < 2000 || HasFailure()) return;
  for (const char* mark : {"finished: whole",
                           "finished: decode",
                           "finished: sent again",
                           "handed over",
                           "handed over with pools",
                           "fell back with pools",
                           "fell back: peer_lost",
                           "fell back: withdrawn",
                           "dropped: aborted",
                           "dropped: transfer_failed",
                           "dropped: peer_lost",
                           "dropped: queue_full",
                           "hand-over: none",
                           "hand-over: transfer_failed",
                           "retracted: prefill",
                           "retracted: decode",
                           "decorator: failed_hand_overs",
                           "world: hand_over_done",
                           "world: hand_over_failed",
                           "world: hand_over_cancelled",
                           "world: hand_over_waited_for_pass",
                           "world: hand_over_pass_failed",
                           "several deaths, with storage",
                           "prefetched pages used",
                           "prefetch stopped: stopped",
                           "prefetch revoked: stopped",
                           "prefetch revoked: miss",
                           "direct load: none"}) {
    EXPECT_GT(marks[mark], 0U) << mark << " never happened";
  }
}

}  // namespace
}  // namespace kvtwin
