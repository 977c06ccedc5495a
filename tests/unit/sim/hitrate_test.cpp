#include "sim/bounds/hitrate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/program.hpp"
#include "tests/trace_files.hpp"
#include "traces/paging.hpp"

namespace kvtwin {
namespace {

std::vector<HitRate> replay(const std::string& path, const HitRateConfig& config) {
  TraceReader reader(path);
  TraceInputOptions options;
  options.page_tokens = config.block_tokens;
  options.last_page = LastPage::partial;
  TraceInputSource source(reader, options);
  return replay_hit_rates(source, config);
}

HitRateConfig config_of(std::vector<std::string> evictions, std::vector<Pages> capacities, Pages host = 0,
                        bool exclusive = false) {
  HitRateConfig config;
  config.evictions = std::move(evictions);
  config.capacities = std::move(capacities);
  config.host_capacity = host;
  config.exclusive = exclusive;
  return config;
}

std::map<std::pair<std::string, Pages>, std::uint64_t> hits_of(const std::vector<HitRate>& rates) {
  std::map<std::pair<std::string, Pages>, std::uint64_t> hits;
  for (const HitRate& rate : rates) hits[{rate.eviction, rate.capacity_blocks}] = rate.hit_blocks;
  return hits;
}

// A list of requests as an input source. A Pager hashes the block ids to page keys.
class ListSource final : public InputSource {
 public:
  struct Request {
    std::vector<std::uint64_t> blocks;
    Tokens tokens;
    std::int32_t priority = 0;
  };
  ListSource(std::vector<Request> requests, Tokens block_tokens)
      : requests_(std::move(requests)), pager_(block_tokens, block_tokens, LastPage::partial) {}

  bool next(Input& input) override {
    if (at_ == requests_.size()) return false;
    Arrival arrival;
    arrival.request = at_;
    arrival.prompt_tokens = requests_[at_].tokens;
    arrival.output_tokens = 1;
    arrival.priority = requests_[at_].priority;
    arrival.keys = pager_.keys(requests_[at_].blocks, arrival.prompt_tokens, nullptr);
    input.what = arrival;
    ++at_;
    return true;
  }

 private:
  std::vector<Request> requests_;
  Pager pager_;
  std::size_t at_ = 0;
};

TEST(HitRate, FillsEveryField) {
  ListSource source({{{1, 2, 3}, 25}, {{1, 2, 4}, 30}, {{1, 2, 3}, 25}}, 10);
  HitRateConfig config = config_of({"lru"}, {100});
  config.block_tokens = 10;
  const auto rates = replay_hit_rates(source, config);
  ASSERT_EQ(rates.size(), 1U);
  const HitRate& rate = rates.front();
  EXPECT_EQ(rate.eviction, "lru");
  EXPECT_EQ(rate.capacity_blocks, 100U);
  EXPECT_EQ(rate.host_capacity_blocks, 0U);
  EXPECT_EQ(rate.requests, 3U);
  EXPECT_EQ(rate.lookup_blocks, 9U);
  EXPECT_EQ(rate.hit_blocks, 5U);
  EXPECT_EQ(rate.device_hit_blocks, 5U);
  EXPECT_EQ(rate.host_hit_blocks, 0U);
  EXPECT_EQ(rate.block_hit_ratio, 5.0 / 9.0);
  EXPECT_EQ(rate.lookup_tokens, 80U);
  EXPECT_EQ(rate.hit_tokens, 45U) << "the last block counts the 5 tokens that it holds";
  EXPECT_EQ(rate.token_hit_ratio, 45.0 / 80.0);
  EXPECT_EQ(rate.saved_cost, (45.0 * 53'000 + 20 * 19 / 2 + 25 * 24 / 2) / 53'000);
  EXPECT_EQ(rate.total_cost, (80.0 * 53'000 + 2 * (25 * 24 / 2) + 30 * 29 / 2) / 53'000);
}

// Session 1 comes back after others that fill the cache. `hints` come behind the first request.
class SessionSource final : public InputSource {
 public:
  SessionSource(std::vector<Hint> hints, std::vector<std::uint64_t> sessions)
      : hints_(std::move(hints)), sessions_(std::move(sessions)) {}

  bool next(Input& input) override {
    input.now = ++time_;
    if (at_ == 1 && next_hint_ < hints_.size()) {
      input.what = hints_[next_hint_++];
      return true;
    }
    if (at_ == sessions_.size()) return false;
    Arrival arrival;
    arrival.request = at_;
    arrival.session = sessions_[at_];
    arrival.prompt_tokens = 25;
    arrival.output_tokens = 1;
    const bool is_first = at_ == 0 || at_ + 1 == sessions_.size();
    const std::uint64_t block = is_first ? 1 : 10 * at_;
    arrival.keys = pager_.keys(std::vector<std::uint64_t>{block, block + 1, block + 2}, arrival.prompt_tokens, nullptr);
    input.what = arrival;
    ++at_;
    return true;
  }

 private:
  std::vector<Hint> hints_;
  std::vector<std::uint64_t> sessions_;
  Pager pager_{10, 10, LastPage::partial};
  std::size_t at_ = 0, next_hint_ = 0;
  TimeNs time_ = 0;
};

HitRate hits_with(const HitRateConfig& config, const std::vector<Hint>& hints,
                  const std::vector<std::uint64_t>& sessions) {
  SessionSource source(hints, sessions);
  return replay_hit_rates(source, config).front();
}

TEST(HitRate, ObeysHintsWithoutTime) {
  const std::vector<std::uint64_t> sessions{1, 2, 3, 4, 5, 6, 1};
  for (const char* eviction : {"lru", "arc", "tide"}) {
    for (const auto& [host, exclusive] :
         {std::pair(Pages{0}, false), std::pair(Pages{12}, false), std::pair(Pages{12}, true)}) {
      HitRateConfig config = config_of({eviction}, {12}, host, exclusive);
      config.block_tokens = 10;
      config.hints = HintRule::obey;
      const HitRate held = hits_with(config, {{HintKind::pin, 1, 0}}, sessions);
      EXPECT_EQ(held.hit_blocks, 3U) << eviction << ", host " << host;
      EXPECT_EQ(held.hints, 1U);
      EXPECT_EQ(held.idle_hints, 0U);
      EXPECT_EQ(hits_with(config, {{HintKind::share, 1, 0}}, sessions).hit_blocks, 3U);
      const HitRate moved = hits_with(config, {{HintKind::demote, 1, 0}, {HintKind::prefetch, 1, 0}}, sessions);
      EXPECT_EQ(moved.idle_hints, 2U) << "no engine, and no storage tier";
    }
  }
  HitRateConfig config = config_of({"lru"}, {12});
  config.block_tokens = 10;
  EXPECT_EQ(hits_with(config, {{HintKind::pin, 1, 0}}, sessions).idle_hints, 1U) << "lru takes no hints";
  EXPECT_EQ(hits_with(config, {{HintKind::pin, 1, 0}}, sessions).hit_blocks, 0U);
  config.hints = HintRule::ignore;
  EXPECT_EQ(hits_with(config, {{HintKind::pin, 1, 0}}, sessions).hints, 0U);
  config.end_hints = 100;
  EXPECT_THROW(hits_with(config, {}, sessions), HitRateError) << "end hints that are ignored";
  config.end_hints = 0;
  config.hints = HintRule::obey;
  EXPECT_EQ(hits_with(config, {{HintKind::tool_call_pending, 1, 0}}, sessions).idle_hints, 1U);
}

TEST(HitRate, EvictsWhatNoSessionRefersToFirst) {
  for (const auto& [host, exclusive] : {std::pair(Pages{0}, false), std::pair(Pages{12}, true)}) {
    HitRateConfig config = config_of({"lru"}, {12}, host, exclusive);
    config.block_tokens = 10;
    config.session_radix = true;
    const std::vector<std::uint64_t> others(8, 0);
    std::vector<std::uint64_t> sessions{1};
    sessions.insert(sessions.end(), others.begin(), others.end());
    sessions.push_back(1);
    EXPECT_EQ(hits_with(config, {}, sessions).hit_blocks, 3U);
    EXPECT_EQ(hits_with(config, {{HintKind::session_end, 1, 0}}, sessions).hit_blocks, 0U);
  }
  HitRateConfig config = config_of({"arc"}, {12});
  config.session_radix = true;
  EXPECT_THROW(hits_with(config, {}, {1}), HitRateError);
}

TEST(HitRate, TakesACostModel) {
  class Square final : public CostModel {
   public:
    TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
      return static_cast<TimeNs>(shape.prefill_tokens * kNsPerSecond + shape.prefill_pairs);
    }
    TransferCost storage(const StorageWork&) const override { return {}; }
    TransferCost transfer(const Plan&) const override { return {}; }
  };
  const Square model;
  ListSource source({{{1}, 10}, {{1, 2}, 20}}, 10);
  HitRateConfig config = config_of({"lru"}, {100});
  config.block_tokens = 10;
  config.cost = &model;
  const HitRate rate = replay_hit_rates(source, config).front();
  EXPECT_EQ(rate.saved_cost, 10.000000055);
  EXPECT_EQ(rate.total_cost, 30.000000265);
}

// The sequence A, B, A, A: the second A is loaded from the host, the third A hits on the device.
TEST(HitRate, WhatTheHostHitsIsLoaded) {
  ListSource source({{{1, 2}, 15}, {{3, 4}, 20}, {{1, 2}, 15}, {{1, 2}, 15}}, 10);
  HitRateConfig config = config_of({"lru", "opt-tiers", "infinite"}, {2}, 2, true);
  config.block_tokens = 10;
  config.host_load_milli = 53'000'000 / 4;  // per token: a quarter of the cost of computing the first token
  const auto rates = replay_hit_rates(source, config);
  EXPECT_EQ(rates[0].device_hit_blocks, 2U);
  EXPECT_EQ(rates[0].host_hit_blocks, 2U);
  EXPECT_DOUBLE_EQ(rates[0].net_saved_cost, rates[0].saved_cost - 15 * 0.25);
  EXPECT_DOUBLE_EQ(rates[1].net_saved_cost, rates[0].saved_cost) << "B needn't have been on the device";
  EXPECT_EQ(rates[2].net_saved_cost, rates[2].saved_cost) << "all on the device";
}

TEST(HitRate, NothingIsInsertedThatHasNoPlace) {
  for (const char* eviction : {"lru", "fifo", "opt"}) {
    ListSource source({{{1, 2, 3}, 30}, {{1, 2, 3}, 30}, {{1, 2, 3}, 30}}, 10);
    HitRateConfig config = config_of({eviction}, {0, 1, 2, 3});
    config.block_tokens = 10;
    const auto rates = replay_hit_rates(source, config);
    for (const HitRate& rate : rates) EXPECT_EQ(rate.hit_blocks, 2 * rate.capacity_blocks) << eviction;
  }
}

// Prefix [1,2] is used with priority 0 and again with priority 9: it stays, and the blocks of priority 5 are evicted.
TEST(HitRate, PriorityRisesToThatOfEachRequest) {
  const std::vector<ListSource::Request> requests = {
      {{1, 2}, 2, 0}, {{1, 2}, 2, 9}, {{3, 4}, 2, 5}, {{5, 6}, 2, 5}, {{1, 2}, 2, 0}};
  ListSource source(requests, 1);
  HitRateConfig config = config_of({"priority"}, {4});
  config.block_tokens = 1;
  EXPECT_EQ(replay_hit_rates(source, config).front().hit_blocks, 4U);
}

// The same requests, read from a trace file.
TEST(HitRate, TakesPrioritiesFromTraces) {
  const test::Folder folder;
  std::string lines;
  for (const auto& [first, priority] : {std::pair{1, 0}, {1, 9}, {3, 5}, {5, 5}, {1, 0}}) {
    lines += "{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [" +
             std::to_string(first) + ", " + std::to_string(first + 1) + "], \"priority\": " + std::to_string(priority) +
             "}\n";
  }
  test::write_text(folder / "trace.jsonl", lines);
  EXPECT_EQ(replay(folder / "trace.jsonl", config_of({"priority"}, {4})).front().hit_blocks, 4U);
}

TEST(HitRate, RefusesWhatItDoesNotKnow) {
  ListSource source({}, 10);
  const auto message = [&](const HitRateConfig& config) -> std::string {
    try {
      replay_hit_rates(source, config);
      return {};
    } catch (const HitRateError& error) {
      return error.what();
    }
  };
  const std::string unknown = message(config_of({"lru", "clock"}, {1}));
  for (const char* part : {"\"clock\"", "lru", "fifo", "opt", "infinite"}) {
    EXPECT_NE(unknown.find(part), std::string::npos) << unknown;
  }
  for (const char* bound : {"opt", "opt-no-bypass", "opt-bit", "opt-cost", "opt-cost-plan"}) {
    EXPECT_NE(message(config_of({bound}, {1}, 2, true)).find("sum"), std::string::npos) << bound;
    EXPECT_EQ(message(config_of({bound}, {1}, 2)).empty(), !std::string_view(bound).starts_with("opt-cost")) << bound;
  }
  EXPECT_NE(message(config_of({"opt-tiers"}, {1})).find("opt-cost"), std::string::npos);
  EXPECT_EQ(message(config_of({"opt-tiers"}, {1}, 2, true)), "");
  EXPECT_NE(message(config_of({"lru"}, {1}, 0, true)), "");
  EXPECT_EQ(message(config_of({"lru"}, {1}, 2, true)), "");
  EXPECT_TRUE(replay_hit_rates(source, config_of({}, {1})).empty());
}

// The expected numbers come from an independent program that simulates single blocks.
TEST(HitRate, BundledTrace) {
  const auto hits =
      hits_of(replay(test::bundled_trace(), config_of({"lru", "opt", "infinite"}, {1'000, 10'000, 50'000})));
  EXPECT_EQ(hits.at({"lru", 1'000}), 13'168U);
  EXPECT_EQ(hits.at({"lru", 10'000}), 64'892U);
  EXPECT_EQ(hits.at({"lru", 50'000}), 100'547U);
  EXPECT_EQ(hits.at({"opt", 1'000}), 56'256U);
  EXPECT_EQ(hits.at({"opt", 10'000}), 101'673U);
  EXPECT_EQ(hits.at({"infinite", 1'000}), 101'673U);
}

// The counts after a warm-up are the counts of the whole trace minus those of the warm-up.
TEST(HitRate, AWarmUpIsServedAndNotCounted) {
  const auto rates = [](std::uint64_t limit, std::uint64_t warm_up) {
    TraceReader reader(test::bundled_trace());
    TraceInputOptions options;
    options.page_tokens = reader.block_tokens();
    options.last_page = LastPage::partial;
    options.limit = limit;
    TraceInputSource source(reader, options);
    HitRateConfig config = config_of({"lru", "infinite"}, {5'000});
    config.block_tokens = reader.block_tokens();
    config.warm_up = warm_up;
    return replay_hit_rates(source, config);
  };
  const auto all = rates(3'000, 0), start = rates(1'000, 0), rest = rates(3'000, 1'000);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(rest[i].requests, 2'000U);
    EXPECT_EQ(rest[i].hit_tokens, all[i].hit_tokens - start[i].hit_tokens);
    EXPECT_EQ(rest[i].lookup_blocks, all[i].lookup_blocks - start[i].lookup_blocks);
    EXPECT_GT(rest[i].hit_tokens, 0U);
  }
}

// Block 2 is used again before block 1, but only in the warm-up. So a cache with one block keeps block 1.
TEST(HitRate, TheBoundsAreOfTheRequestsAfterTheWarmUp) {
  ListSource source({{{1}, 10}, {{2}, 10}, {{2}, 10}, {{1}, 10}}, 10);
  HitRateConfig config = config_of({"lru", "opt", "opt-no-bypass", "opt-cost", "opt-cost-plan"}, {1});
  config.block_tokens = 10;
  config.warm_up = 3;
  const std::vector<HitRate> rates = replay_hit_rates(source, config);
  for (const HitRate& rate : rates) EXPECT_EQ(rate.requests, 1U) << rate.eviction;
  const auto hits = hits_of(rates);
  EXPECT_EQ(hits.at({"lru", 1}), 0U);
  EXPECT_EQ(hits.at({"opt-no-bypass", 1}), 0U) << "such a cache inserts block 2";
  for (const char* bypass : {"opt", "opt-cost", "opt-cost-plan"}) EXPECT_EQ(hits.at({bypass, 1}), 1U) << bypass;
}

TEST(HitRate, BoundsLieInOrder) {
  const auto rates =
      replay(test::bundled_trace(),
             config_of({"lru", "opt-bit", "opt-no-bypass", "opt", "opt-cost-plan", "opt-cost", "infinite"}, {5'000}));
  for (std::size_t i = 1; i < rates.size(); ++i) {
    EXPECT_LT(rates[i - 1].saved_cost, rates[i].saved_cost) << rates[i].eviction;
    if (i < 4 || i == 6) {
      EXPECT_LT(rates[i - 1].hit_blocks, rates[i].hit_blocks) << rates[i].eviction;
    }
  }
  EXPECT_LT(rates[5].saved_cost, rates[4].saved_cost * 1.01) << "the plan shows that the bound is close";
}

double rounded(std::uint64_t hits, std::uint64_t lookups) {
  const double ratio = static_cast<double>(hits) / static_cast<double>(lookups);
  return static_cast<double>(static_cast<int>(ratio * 1e4 + 0.5)) / 1e4;
}

TEST(HitRate, ConversationTraceAsPublished) {
  const auto path = test::conversation_trace();
  if (!path) GTEST_SKIP() << "the public trace is not here; BundledTrace checked the bundled one";
  const std::vector<Pages> capacities{1'000, 2'000, 3'000, 5'000, 10'000, 50'000, 100'000};
  const auto rates = replay(*path, config_of({"lru", "opt", "opt-bit", "infinite"}, capacities));
  EXPECT_EQ(rates.front().requests, 12'031U);
  EXPECT_EQ(rates.front().lookup_blocks, 288'500U);
  const auto hits = hits_of(rates);
  const auto ratio = [&](const char* eviction, Pages capacity) {
    return rounded(hits.at({eviction, capacity}), 288'500);
  };
  // The hits are equal, to the block, to those of an independent program that simulates single blocks. The ratios are
  // the published ones.
  EXPECT_EQ(hits.at({"lru", 1'000}), 12'847U);
  EXPECT_EQ(hits.at({"lru", 10'000}), 61'046U);
  EXPECT_EQ(hits.at({"lru", 50'000}), 102'290U);
  EXPECT_EQ(hits.at({"lru", 100'000}), 104'924U);
  EXPECT_EQ(hits.at({"opt", 1'000}), 55'019U);
  EXPECT_EQ(hits.at({"opt", 10'000}), 105'710U);
  EXPECT_EQ(ratio("infinite", 1'000), 0.3664);
  EXPECT_EQ(ratio("lru", 1'000), 0.0445);
  EXPECT_EQ(ratio("lru", 2'000), 0.0543);
  EXPECT_EQ(ratio("lru", 5'000), 0.1118);
  EXPECT_EQ(ratio("lru", 10'000), 0.2116);
  EXPECT_EQ(ratio("lru", 50'000), 0.3546);
  EXPECT_EQ(ratio("lru", 100'000), 0.3637);
  EXPECT_EQ(ratio("opt", 1'000), 0.1907);
  EXPECT_EQ(ratio("opt", 2'000), 0.2550);
  EXPECT_EQ(ratio("opt", 5'000), 0.3412);
  EXPECT_EQ(ratio("opt", 10'000), 0.3664);
  // The share of the gap between LRU and optimal (in %) that opt-bit closes. It knows whether a block is used again,
  // but not when.
  const auto closed = [&](Pages capacity) {
    const std::uint64_t lru = hits.at({"lru", capacity}), gap = hits.at({"opt", capacity}) - lru;
    return (100 * (hits.at({"opt-bit", capacity}) - lru) + gap / 2) / gap;
  };
  EXPECT_EQ(closed(3'000), 63U);
  EXPECT_EQ(closed(5'000), 81U);
  EXPECT_EQ(closed(10'000), 100U);
}

TEST(HitRate, AgenticTraceAsPublished) {
  const auto path = test::agentic_trace();
  if (!path) GTEST_SKIP() << "the public trace is not here; BundledTrace checked the bundled one";
  const auto rates = replay(*path, config_of({"lru", "opt", "infinite"}, {1'000, 10'000}));
  EXPECT_EQ(rates.front().requests, 9'284U);
  EXPECT_EQ(rates.front().lookup_blocks, 1'524'696U);
  const auto hits = hits_of(rates);
  const auto ratio = [&](const char* eviction, Pages capacity) {
    return rounded(hits.at({eviction, capacity}), 1'524'696);
  };
  EXPECT_EQ(ratio("infinite", 1'000), 0.9553);
  EXPECT_EQ(ratio("lru", 1'000), 0.0590);
  EXPECT_EQ(ratio("lru", 10'000), 0.9105);
  EXPECT_EQ(ratio("opt", 1'000), 0.4001);
  EXPECT_EQ(ratio("opt", 10'000), 0.9442);
}

// Pages move down to an exclusive host from the end of each path on, and the result depends on what a policy remembers
// of each page that has left it. (If lruk remembered whole runs of a path instead, which is meant for prefix-closed
// tiers, it would hit 42,460 blocks.)
TEST(HitRate, AnExclusiveHostRemembersEachPage) {
  const auto rates = replay(test::bundled_trace(), config_of({"lruk", "arc"}, {1'000}, 5'000, true));
  EXPECT_EQ(rates[0].hit_blocks, 44'226U);
  EXPECT_EQ(rates[1].hit_blocks, 43'137U);
}

TEST(HitRate, TwoTiersAddUp) {
  for (const auto& path : {std::optional(test::bundled_trace()), test::conversation_trace()}) {
    if (!path) continue;
    const auto one = hits_of(replay(*path, config_of({"lru", "opt"}, {1'000, 5'000, 6'000})));
    const HitRate inclusive = replay(*path, config_of({"lru"}, {1'000}, 5'000)).front();
    EXPECT_EQ(inclusive.device_hit_blocks, one.at({"lru", 1'000}));
    EXPECT_EQ(inclusive.hit_blocks, one.at({"lru", 5'000}));
    EXPECT_EQ(inclusive.host_capacity_blocks, 5'000U);
    const HitRate exclusive = replay(*path, config_of({"lru"}, {1'000}, 5'000, true)).front();
    EXPECT_EQ(exclusive.device_hit_blocks, one.at({"lru", 1'000}));
    EXPECT_EQ(exclusive.hit_blocks, one.at({"lru", 6'000}));
    const HitRate opt = replay(*path, config_of({"opt"}, {1'000}, 5'000)).front();
    EXPECT_EQ(opt.device_hit_blocks, one.at({"opt", 1'000}));
    EXPECT_EQ(opt.hit_blocks, one.at({"opt", 5'000}));
  }
}

TEST(HitRate, OtherBlockSizes) {
  HitRateConfig config = config_of({"lru", "opt", "infinite"}, {40'000});
  std::vector<double> ideal;
  for (const Tokens tokens : {256U, 300U, 512U, 1'024U}) {
    config.block_tokens = tokens;
    const auto rates = replay(test::bundled_trace(), config);
    EXPECT_LE(rates[0].hit_blocks, rates[1].hit_blocks);
    EXPECT_LE(rates[1].hit_blocks, rates[2].hit_blocks);
    EXPECT_EQ(rates[0].lookup_tokens, 139'521'034U) << "tokens don't depend on the block size";
    ideal.push_back(rates[2].token_hit_ratio);
  }
  EXPECT_EQ(ideal[0], ideal[2]) << "256 divides 512";
  EXPECT_LT(ideal[1], ideal[2]);
  EXPECT_LT(ideal[3], ideal[2]);
}

}  // namespace
}  // namespace kvtwin
