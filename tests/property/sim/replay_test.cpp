// An engine in a world that runs by itself, under every decorator: the contract holds, and a fresh engine
// decides the same from the journal alone. Over page sizes, orders, evictions and faults, in tiers so small
// that pages are evicted, requests retracted and rejected.
#include "policy/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "policy/engine.hpp"
#include "policy/eviction.hpp"
#include "policy/seam/decorators.hpp"
#include "policy/write.hpp"
#include "sim/world.hpp"
#include "tests/journal_test_support.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

class RoundCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    const std::uint64_t step = 100 + 7 * std::uint64_t{shape.decode_sequences} + shape.decode_context_tokens / 16;
    return static_cast<TimeNs>(1000 + 3 * shape.prefill_tokens + shape.prefill_context_tokens / 8 + steps * step);
  }
  TransferCost storage(const StorageWork&) const override { return {}; }
  TransferCost transfer(const Plan& plan) const override {
    return {static_cast<TimeNs>(200 + 10 * plan.runs.size()), plan.bytes, 0};
  }
};

// Requests of a few documents that share prefixes; some too long for the device tier. Hints in between.
class Workload final : public InputSource {
 public:
  Workload(const EngineConfig& config, std::uint64_t seed, std::uint64_t requests)
      : random_(seed), page_(config.shape.page_tokens), most_pages_(config.device_pages), left_(requests) {
    for (std::uint64_t document = 0; document < 6; ++document) {
      std::vector<std::uint64_t> pages;
      for (std::uint64_t i = 0; i < 2 * most_pages_; ++i) pages.push_back(document * (i < 3 ? 0 : 1000) + i);
      documents_.push_back(chain(pages));
    }
  }

  bool next(Input& input) override {
    if (left_ == 0) return false;
    now_ += static_cast<TimeNs>(random_.below(4) * random_.below(2'000));
    input.now = now_;
    if (random_.chance(5)) {
      input.what = Hint{static_cast<HintKind>(random_.below(4)), random_.below(9), 1};
      return true;
    }
    --left_;
    keys_ = documents_[random_.below(documents_.size())];
    const Pages pages = random_.chance(3) ? most_pages_ + 1 : 1 + random_.below(most_pages_ / 2);
    Arrival arrival;
    arrival.request = request_++;
    arrival.prompt_tokens = pages * page_ - random_.below(page_);
    arrival.output_tokens = 1 + random_.below(4 * page_ + 8);
    arrival.priority = static_cast<std::int32_t>(random_.below(3));
    arrival.session = random_.below(9);
    keys_.resize(arrival.prompt_tokens / page_);
    // Half of the documents end in a page of their own.
    if (!keys_.empty() && random_.chance(50)) keys_.back() = chain_key({}, (std::uint64_t{1} << 40) + request_);
    arrival.keys = keys_;
    input.what = arrival;
    return true;
  }

 private:
  Splitmix random_;
  Tokens page_;
  Pages most_pages_;
  std::uint64_t left_;
  RequestId request_ = 0;
  TimeNs now_ = 0;
  std::vector<std::vector<PageKey>> documents_;
  std::vector<PageKey> keys_;
};

struct Counts final : Observer {
  void on_event(const Event& event) override {
    ++of[static_cast<std::size_t>(event.kind)];
    if (event.kind != EventKind::finished) return;
    const RequestRecord& r = *event.record;
    EXPECT_EQ(r.prompt_tokens, r.hit.sum() + r.recomputed_after_stop + r.miss);
    EXPECT_EQ(r.first_token - r.arrival, r.queue_ns + r.prefetch_wait_ns + r.load_wait_ns + r.compute_ns);
    EXPECT_GE(r.queue_ns, 0);
    preempted += r.retractions;
  }
  std::uint64_t operator[](EventKind kind) const { return of[static_cast<std::size_t>(kind)]; }
  std::array<std::uint64_t, 64> of{};
  std::uint64_t preempted = 0;  // retractions of finished requests
};

// Checks the parts of each pass: the token budget, and the decode steps beside prefill, as the style promises.
class Budget final : public Substrate {
 public:
  Budget(Substrate& inner, const EngineConfig& config) : inner_(inner), config_(config) {}
  TimeNs now() const override { return inner_.now(); }
  OperationId submit(const Operation& operation) override {
    if (const auto* pass = std::get_if<ForwardOperation>(&operation)) {
      const ForwardShape& shape = pass->shape;
      const bool has_both = shape.prefill_sequences > 0 && shape.decode_sequences > 0;
      mixed += has_both;
      EXPECT_TRUE(!has_both || config_.style == "vllm" || config_.mixed_chunks);
      const bool counts_all = config_.style == "vllm" || has_both;
      EXPECT_LE(shape.prefill_tokens + (counts_all ? shape.decode_sequences : 0), config_.chunk_tokens);
      EXPECT_TRUE(config_.style != "vllm" || pass->gates.empty()) << "no pass waits for a load";
    }
    return inner_.submit(operation);
  }
  OperationId call_at(TimeNs time) override { return inner_.call_at(time); }
  OperationId reduce_min(const ReduceVector& values) override { return inner_.reduce_min(values); }
  void cancel(OperationId id) override { inner_.cancel(id); }
  std::uint64_t mixed = 0;  // passes with prefill and decode

 private:
  Substrate& inner_;
  const EngineConfig& config_;
};

EngineConfig config_of(std::uint64_t seed) {
  Splitmix random(seed ^ 0x5EED);
  EngineConfig config;
  config.shape = {2, 2, 1, 8, std::array<std::uint32_t, 3>{1, 16, 64}[seed % 3]};
  config.ranks = static_cast<std::uint32_t>(1 + random.below(4));
  config.device_pages = 16 + random.below(32);
  config.host_pages = random.chance(15) ? 0 : 20 + random.below(60);
  config.host_layout = random.chance(50) ? Layout::page_first : Layout::layer_first;
  config.eviction = eviction_names()[random.below(eviction_names().size())];
  config.evict_unit = random.chance(50) ? EvictUnit::page : EvictUnit::node;
  config.write_policy = write_policy_names()[random.below(3)];
  config.write_threshold = static_cast<std::uint32_t>(random.below(3));
  config.clean_reserve = static_cast<std::uint32_t>(random.below(400));
  if (config.write_policy == "write_back" && random.chance(50)) config.tiering = Tiering::exclusive;
  config.reclaim_shadowed = random.chance(50);
  config.split_refreshes = random.chance(50);
  config.host_evicts_leaving = random.chance(50);
  if (random.chance(50)) config.reclaim_order = ReclaimOrder::shadowed;
  if (random.chance(50)) config.count_touches = TouchCount::insert;
  config.backup_retries = static_cast<std::uint32_t>(random.below(3));
  config.load_back_min_tokens = random.below(2 * config.shape.page_tokens);
  config.load_back_quota_pages = random.chance(20) ? 4 : 0;
  config.cache_output = random.chance(70);
  config.order = seed % 2 == 0 ? "fcfs" : "longest_prefix";
  config.overtake_limit = static_cast<std::uint32_t>(1 + random.below(8));
  config.max_running = static_cast<std::uint32_t>(2 + random.below(16));
  config.max_waiting = random.chance(50) ? 0 : 10;
  config.chunk_tokens = (1 + random.below(8)) * config.shape.page_tokens + random.below(3);
  config.burst_steps = static_cast<std::uint32_t>(1 + random.below(16));
  if (random.chance(50)) config.reserve_initial = config.reserve_min = 0;  // admits too much
  if (seed % 5 < 2) config.style = "vllm";
  config.mixed_chunks = seed % 5 == 2;
  config.admit_whole_prompt = seed % 5 == 0;
  return config;
}

struct RecordedRun {
  ByteVector journal;
  std::uint64_t records = 0;
  DecisionMark mark;
  Counts events;
  FaultCounts faults;
  std::uint64_t mixed = 0;
};

// After each input, every invariant of the engine.
struct Inspecting final : InputHandler {
  Inspecting(InputHandler& to, const Engine& inspected) : inner(to), engine(inspected) {}
  void handle(const Input& input) override {
    inner.handle(input);
    engine.check_invariants();
  }
  InputHandler& inner;
  const Engine& engine;
};

// A third of the seeds has faults. The inner Checking watches the world, the outer one the engine as well.
RecordedRun run(const EngineConfig& config, std::uint64_t seed) {
  RecordedRun result;
  const RoundCost cost;
  WorldConfig world_config;
  world_config.ranks = config.ranks;
  world_config.h2d_bytes_per_second = 2'000'000'000;
  world_config.d2h_bytes_per_second = 1'500'000'000;
  world_config.cost = &cost;
  const auto world = make_event_world(world_config);
  const std::uint32_t share = seed % 3 == 1 ? 200 : 0;
  Checking inner(world->substrate(), {.page_tokens = config.shape.page_tokens});
  Faulty faulty(inner, {.failed_transfers = share, .cut_bursts = share}, seed << 32);
  Checking outer(faulty, {.page_tokens = config.shape.page_tokens, .bursts_end_early = share > 0});
  DecisionLog decisions;
  Budget budget(outer, config);
  Engine engine(config, budget, decisions, &result.events);
  JournalWriter writer(result.journal, "seed " + std::to_string(seed));
  Recording recording(engine, decisions, writer);
  inner.connect(faulty);
  faulty.connect(outer);
  Inspecting inspecting(recording, engine);
  outer.connect(inspecting);
  Workload workload(config, seed, 150);
  world->run(workload, inner);

  inner.finish();
  outer.finish();
  EXPECT_TRUE(engine.idle()) << "seed " << seed << ": " << engine.state_summary();
  writer.finish(world->now(), {decisions.count(), decisions.digest()});
  result.records = writer.records();
  result.mark = {decisions.count(), decisions.digest()};
  result.faults = faulty.counts();
  result.mixed = budget.mixed;
  return result;
}

constexpr std::uint64_t kSeeds = 60;

TEST(Replay, of_any_run_decides_the_same) {
  const ThrowingChecks checks;
  Counts all;
  FaultCounts faults;
  std::map<std::string, std::uint64_t> mixed, preempted;  // by style
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const EngineConfig config = config_of(seed);
    const RecordedRun recorded = run(config, seed);
    JournalReader reader(recorded.journal.bytes);
    Counts events;
    const ReplayResult result = replay(reader, config, {.observer = &events});
    ASSERT_TRUE(result.whole_and_equal()) << "record " << result.place.number << ", a " << name_of(result.kind);
    ASSERT_EQ(result.inputs, recorded.records);
    ASSERT_EQ(result.got, recorded.mark);
    ASSERT_EQ(events.of, recorded.events.of);
    ASSERT_EQ(recorded.events[EventKind::finished] + recorded.events[EventKind::rejected], 150U);
    for (std::size_t i = 0; i < all.of.size(); ++i) all.of[i] += events.of[i];
    const std::string style = config.style + (config.mixed_chunks ? ", mixed" : "");
    mixed[style] += recorded.mixed;
    preempted[style] += events.preempted;
    faults.failed_transfers += recorded.faults.failed_transfers;
    faults.failed_gates += recorded.faults.failed_gates;
    faults.cut_bursts += recorded.faults.cut_bursts;
  }
  // It would prove little if nothing happened.
  EXPECT_EQ(mixed["sglang"], 0U);
  for (const char* style : {"sglang, mixed", "vllm"}) EXPECT_GT(mixed[style], 0U) << style;
  for (const char* style : {"sglang", "sglang, mixed", "vllm"}) EXPECT_GT(preempted[style], 0U) << style;
  for (const EventKind kind :
       {EventKind::rejected, EventKind::retracted, EventKind::backup_done, EventKind::load_done, EventKind::load_failed,
        EventKind::backup_dropped, EventKind::backup_retried, EventKind::backup_awaited, EventKind::evicted}) {
    EXPECT_GT(all[kind], 20U) << "event " << static_cast<int>(kind);
  }
  EXPECT_GT(faults.failed_transfers, 100U);
  EXPECT_GT(faults.failed_gates, 20U);
  EXPECT_GT(faults.cut_bursts, 100U);
}

TEST(Replay, of_the_same_run_twice_is_the_same_journal) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const EngineConfig config = config_of(seed);
    ASSERT_TRUE(run(config, seed).journal.bytes == run(config, seed).journal.bytes) << "seed " << seed;
  }
}

TEST(Replay, by_another_configuration_is_told_apart) {
  const ThrowingChecks checks;
  std::uint64_t told_apart = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EngineConfig config = config_of(seed);
    const RecordedRun recorded = run(config, seed);
    config.eviction = config.eviction == "lru" ? "fifo" : "lru";
    config.device_pages -= seed % 2;
    JournalReader reader(recorded.journal.bytes);
    const ReplayResult result = replay(reader, config);
    ASSERT_EQ(result.misfit != nullptr, result.verdict == ReplayVerdict::misfit);
    ASSERT_TRUE(result.verdict != ReplayVerdict::diverged || result.expected != result.got);
    told_apart += !result.whole_and_equal();
  }
  EXPECT_GT(told_apart, kSeeds * 3 / 4);
}

// Cut anywhere, as by a kill: what is whole is replayed and equal.
TEST(Replay, of_a_killed_run_is_equal_up_to_there) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const EngineConfig config = config_of(seed);
    const RecordedRun recorded = run(config, seed);
    Splitmix random(seed);
    for (int i = 0; i < 5; ++i) {
      JournalReader reader(std::span(recorded.journal.bytes).first(random.below(recorded.journal.bytes.size())));
      const ReplayResult result = replay(reader, config);
      ASSERT_EQ(result.verdict, ReplayVerdict::equal) << "seed " << seed;
      ASSERT_EQ(result.journal, JournalStatus::truncated);
      ASSERT_EQ(result.inputs + 1, std::max<std::uint64_t>(1, result.place.number)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
