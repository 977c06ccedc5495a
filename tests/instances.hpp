// Runs one engine in the event-heap world with one policy instance per rank (parallel.rank_model = instances): random
// configurations with storage tiers, random traffic, ranks of different speed, and failures on some ranks. Returns the
// result of every rank.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "policy/engine.hpp"
#include "policy/index/page_key.hpp"
#include "policy/seam/decorators.hpp"
#include "policy/termination.hpp"
#include "sim/world.hpp"
#include "tests/engine_traffic.hpp"
#include "tests/splitmix.hpp"
#include "tests/timeout_text.hpp"

namespace kvtwin::test {

// Linear costs in whole numbers. The latency of storage is so long that the order of its completions differs between
// ranks.
class RankCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(20'000 + 500 * shape.prefill_tokens + 10'000 * steps);
  }
  TransferCost transfer(const Plan& plan) const override { return {2'000, plan.bytes, 0}; }
  TransferCost storage(const StorageWork& work) const override {
    const bool moves = work.verb == StorageVerb::get || work.verb == StorageVerb::set;
    return {work.tier == Tier::disk ? 40'000 : 15'000, moves ? work.pages * work.page_bytes * work.ranks : 0, 0};
  }
};

struct InstancesRun {
  EngineConfig engine;
  TimeNs reduce_ns = 10'000;
  std::vector<double> slower;                      // by rank: factor of the times
  std::vector<std::optional<FaultShares>> faults;  // by rank; absent: no faults
  std::uint64_t seed = 0, requests = 60;
  bool instances = true;
  TimeNs late_ns = 0;  // with instances = false: the time of a reduction, which otherwise takes no time
};

struct RankResult {
  std::uint64_t digest = 0, decisions = 0, reductions = 0;
  std::uint64_t ended = 0, finished = 0;  // requests
  Tokens hit_host = 0, hit_stored = 0;
  Pages fell_short = 0;
  bool idle = false;
  std::string left;
};

// For one policy instance for all ranks: delays reductions with timers, so that they take as long as with instances.
class LateReductions final : public Substrate, public InputHandler {
 public:
  LateReductions(Substrate& world, TimeNs late_ns) : world_(world), late_ns_(late_ns) {}
  void connect(InputHandler& handler) { handler_ = &handler; }

  TimeNs now() const override { return world_.now(); }
  OperationId submit(const Operation& operation) override { return world_.submit(operation); }
  OperationId call_at(TimeNs time) override { return world_.call_at(time); }
  OperationId reduce_min(const ReduceVector& values) override {
    const OperationId id = world_.call_at(now() + late_ns_);
    entered_.push_back({id, values});
    return id;
  }
  void cancel(OperationId id) override { world_.cancel(id); }
  void handle(const Input& input) override {
    const auto* timer = std::get_if<TimerFired>(&input.what);
    if (timer == nullptr || entered_.empty() || timer->id != entered_.front().id) return handler_->handle(input);
    const Reduction answer = entered_.front();
    entered_.pop_front();
    handler_->handle(Input{input.now, answer});
  }

 private:
  Substrate& world_;
  TimeNs late_ns_;
  InputHandler* handler_ = nullptr;
  std::deque<Reduction> entered_;  // answered in order
};

// One rank: an engine, and the decorators between the engine and its seat of the world.
class Rank final : public InputHandler, public Observer {
 public:
  Rank(Substrate& seat, const EngineConfig& config, const std::optional<FaultShares>& faults, std::uint64_t seed,
       TimeNs late_ns) {
    ContractTerms terms{config.shape.page_tokens, config.hand_over.role};
    terms.windows = config.windows();
    terms.bursts_end_early = true;  // another rank may have cancelled the burst
    Substrate* below = &seat;
    if (late_ns != 0) below = &late_.emplace(seat, late_ns);
    if (faults) {
      below = &faulty_.emplace(*below, *faults, seed);
      terms.cancels_unrequested = terms.duplicates = true;
    }
    checking_.emplace(*below, terms);
    engine_.emplace(config, *checking_, decisions_, this);
    checking_->connect(*this);
    if (faults) faulty_->connect(*checking_);
    if (late_) late_->connect(first_of_policy());
  }
  InputHandler& first() { return late_ ? static_cast<InputHandler&>(*late_) : first_of_policy(); }

  void handle(const Input& input) override {
    if (std::holds_alternative<Reduction>(input.what)) ++result_.reductions;
    engine_->handle(input);
  }
  void on_event(const Event& event) override {
    if (event.kind == EventKind::storage_fell_short) result_.fell_short += event.pages;
    const bool finished = event.kind == EventKind::finished;
    if (finished || event.kind == EventKind::rejected || event.kind == EventKind::aborted) ++result_.ended;
    if (!finished) return;
    ++result_.finished;
    result_.hit_host += event.record->hit[Tier::host];
    result_.hit_stored += event.record->hit.sum() - event.record->hit[Tier::device] - event.record->hit[Tier::host];
  }
  const Engine& engine() const { return *engine_; }
  RankResult result() {
    result_.digest = decisions_.digest();
    result_.decisions = decisions_.count();
    result_.idle = engine_->idle();
    result_.left = engine_->state_summary();
    if (result_.idle) engine_->check_invariants();
    return result_;
  }

 private:
  InputHandler& first_of_policy() { return faulty_ ? static_cast<InputHandler&>(*faulty_) : *checking_; }

  RankResult result_;
  DecisionLog decisions_;
  std::optional<LateReductions> late_;
  std::optional<Faulty> faulty_;
  std::optional<Checking> checking_;
  std::optional<Engine> engine_;
};

inline WorldConfig instances_world(const InstancesRun& run, const CostModel& cost) {
  WorldConfig world;
  world.ranks = run.engine.ranks;
  world.instances = run.instances;
  world.reduce_ns = run.reduce_ns;
  world.slower = run.slower;
  world.h2d_bytes_per_second = world.d2h_bytes_per_second = 100'000'000;
  world.disk_read_bytes_per_second = world.disk_write_bytes_per_second = 50'000'000;
  world.nic_bytes_per_second = world.fabric_bytes_per_second = 80'000'000;
  world.cost = &cost;
  for (const StorageTierConfig& tier : run.engine.storage)
    world.storage.push_back({tier.tier, tier.pages, !tier.owned});
  return world;
}

inline std::vector<RankResult> run_instances(const InstancesRun& run, InputSource& source) {
  const RankCost cost;
  const auto world = make_event_world(instances_world(run, cost));
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<InputHandler*> handlers;
  for (std::size_t seat = 0; seat < world->seats(); ++seat) {
    EngineConfig own = run.engine;
    own.storage_space = storage_space({.model = "m", .tp = own.ranks, .rank = static_cast<std::uint32_t>(seat)});
    const auto faults = seat < run.faults.size() ? run.faults[seat] : std::nullopt;
    ranks.push_back(std::make_unique<Rank>(world->substrate_of(seat), own, faults, mix(run.seed + seat), run.late_ns));
    handlers.push_back(&ranks.back()->first());
  }
  world->run_seats(source, handlers, nullptr);
  std::vector<RankResult> results;
  for (const auto& rank : ranks) results.push_back(rank->result());
  return results;
}

inline std::vector<RankResult> run_instances(const InstancesRun& run) {
  EngineTraffic source(run.seed, run.engine.shape.page_tokens, run.engine.device_pages * 3 / 4, run.requests);
  return run_instances(run, source);
}

// Returns a random_engine() with storage tiers in 75 % of the draws.
inline EngineConfig random_rank_engine(Splitmix& rng, std::uint32_t ranks) {
  EngineConfig e = random_engine(rng);
  e.ranks = ranks;
  if (rng.chance(75)) {
    if (rng.chance(70)) e.storage.push_back({Tier::disk, rng.between(20, 400), true});
    if (e.storage.empty() || rng.chance(60)) e.storage.push_back({Tier::remote, rng.between(20, 400), false});
  }
  e.path = static_cast<CachePath>(rng.below(3));
  if (e.host_pages == 0) e.path = CachePath::direct;
  e.storage_writers = ranks;
  e.storage_batch_pages = rng.chance(50) ? 128 : rng.between(1, 6);
  e.storage_write_share = rng.chance(50) ? 8192 : 512;
  e.storage_backlog = static_cast<StorageBacklog>(rng.below(4));
  e.storage_retries = static_cast<std::uint32_t>(rng.below(3));
  e.prefetch_policy = termination_names()[rng.below(3)];
  const auto base = static_cast<TimeNs>(rng.below(3) * 200'000);
  const auto per_ki_token = static_cast<TimeNs>(rng.below(2) * 1'000'000);
  if (e.prefetch_policy == "timeout" && base != 0) e.prefetch_policy = timeout_text(base, per_ki_token);
  if (e.prefetch_policy == "timeout") {
    e.prefetch_policy = "cost_stop";
    e.cost_token_ps = 20'000'000;
    for (StorageTierConfig& tier : e.storage) tier.read_token_ps = 4'000'000;
    e.load_token_ps = 8'000'000;
    if (e.storage_batch_pages > 3) e.prefetch_admission = e.load_back_admission = "cost";
  }
  e.prefetch_min_tokens = rng.below(3) * 4;
  e.prefetch_host_share = static_cast<std::uint32_t>(rng.between(200, 1024));
  e.prefetch_retry_steps = static_cast<std::uint32_t>(rng.below(3));
  return e;
}

}  // namespace kvtwin::test
