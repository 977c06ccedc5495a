// The twin's figures against hitrate on the same requests, and its advice.
#include "lab/watch/watch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <tuple>
#include <vector>

#include "lab/error.hpp"
#include "lab/watch/recording.hpp"
#include "lab/watch/watch_advice.hpp"
#include "lab/watch/watch_run.hpp"
#include "lab/watch/watch_text.hpp"
#include "tests/program.hpp"
#include "tests/trace_files.hpp"
#include "tests/unit/lab/hit_rates.hpp"

namespace kvtwin {
namespace {

std::string vllm_events() { return test::fixture("vllm/kv_events.jsonl"); }

WatchArguments arguments_for(const std::string& source, std::uint64_t device_blocks = 0) {
  WatchArguments arguments;
  arguments.sources = {source};
  arguments.settings.device_blocks = device_blocks;
  return arguments;
}

WatchResult played(const WatchArguments& arguments, const WatchOutput& output = {}) {
  const std::atomic<bool> stop = false;
  return play_recordings(arguments, stop, output, {});
}

const Json* size_of(const Json& sizes, std::uint64_t blocks) {
  for (const Json& one : sizes) {
    if (one.at("blocks").get<std::uint64_t>() == blocks) return &one;
  }
  return nullptr;
}

void expect_equal_to_hitrate(const std::string& path, std::uint64_t device) {
  const WatchResult result = played(arguments_for(path, device));
  const std::vector<Pages> sizes{device / 4, device / 2, device, 2 * device, 4 * device, 8 * device};
  for (const HitRate& one : test::hit_rates(path, sizes, {"lru"})) {
    const Json* const row = size_of(result.json.at("sizes"), one.capacity_blocks);
    ASSERT_NE(row, nullptr) << one.capacity_blocks;
    EXPECT_EQ(row->at("hit_blocks").get<std::uint64_t>(), one.hit_blocks);
    EXPECT_EQ(row->at("hit_tokens").get<std::uint64_t>(), one.hit_tokens);
    EXPECT_EQ(result.json.at("lookup_blocks").get<std::uint64_t>(), one.lookup_blocks);
    EXPECT_EQ(result.json.at("lookup_tokens").get<std::uint64_t>(), one.lookup_tokens);
  }
}

TEST(Watch, EqualsHitrateToTheBlock) {
  expect_equal_to_hitrate(vllm_events(), 100);
  expect_equal_to_hitrate(test::bundled_trace(), 2000);
}

TEST(Watch, TheBestOfAWholeWindowIsTheBoundOfHitrate) {
  const WatchResult result = played(arguments_for(vllm_events(), 100));
  for (const HitRate& one : test::hit_rates(vllm_events(), {50, 100, 200}, {"opt"})) {
    const Json& row = *size_of(result.json.at("sizes"), one.capacity_blocks);
    EXPECT_DOUBLE_EQ(row.at("best_in_windows").get<double>(), one.block_hit_ratio);
    EXPECT_DOUBLE_EQ(row.at("lru_in_windows").get<double>(), row.at("block_hit_ratio").get<double>());
  }
}

TEST(Watch, SizesAboveTheTrackedBlocksAreMarked) {
  WatchArguments arguments = arguments_for(vllm_events(), 100);
  arguments.settings.interval = 5 * kNsPerSecond;
  const Json all = played(arguments).json;
  EXPECT_FALSE(all.contains("known_blocks"));
  arguments.settings.max_blocks = 250;
  const WatchResult result = played(arguments);
  EXPECT_EQ(result.json.at("known_blocks").get<int>(), 250);
  for (const char* const list : {"sizes", "curve"}) {
    for (const Json& row : result.json.at(list)) {
      const bool is_least = row.at("blocks").get<int>() > 250;
      EXPECT_EQ(row.contains("at_least"), is_least) << row.dump();
      const Json* const known = size_of(all.at(list), row.at("blocks").get<std::uint64_t>());
      if (known == nullptr) continue;
      const int hits = row.at("hit_blocks").get<int>(), true_hits = known->at("hit_blocks").get<int>();
      EXPECT_LE(hits, true_hits);
      if (!is_least) {
        EXPECT_EQ(hits, true_hits);
      }
    }
  }
  EXPECT_NE(result.text.find(" >="), std::string::npos) << result.text;
  EXPECT_EQ(result.text.find("enough for all hits"), std::string::npos) << result.text;
  // 200 blocks are known; more may be better.
  EXPECT_NE(result.text.find("add a host tier of 200 blocks"), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("more than 200 blocks are not tracked (--max-blocks)"), std::string::npos) << result.text;
}

TEST(Watch, NothingRestsOnASizeThatIsNotKnown) {
  WatchArguments arguments = arguments_for(vllm_events(), 100);
  arguments.settings.interval = 5 * kNsPerSecond;
  arguments.settings.max_blocks = 80;
  arguments.expect = "hits=0.9";
  WatchResult result = played(arguments);
  EXPECT_NE(result.text.find("no advice: twice the present size, 200 blocks, is above the 80"), std::string::npos)
      << result.text;
  EXPECT_NE(result.missed.find("are at least "), std::string::npos) << result.missed;
  EXPECT_NE(result.missed.find("give a larger --max-blocks"), std::string::npos) << result.missed;
  arguments.settings.max_blocks = 150;
  result = played(arguments);
  EXPECT_NE(result.missed.find("no cache of up to 150 blocks has so many"), std::string::npos) << result.missed;
}

TEST(Watch, ACanaryOfASizeThatIsNotKnownSaysSo) {
  WatchSettings settings;
  settings.device_blocks = 8;
  settings.max_blocks = 4;
  Watch watch(settings, {"a"}, nullptr);
  TraceRequest request;
  request.output = 1;
  for (int i = 0; i < 200; ++i) {
    request.arrival = i * kNsPerSecond;
    request.input = 16;
    request.blocks = {static_cast<std::uint64_t>(i % 6)};
    request.measured_hits = MeasuredHits{i < 6 ? Tokens{0} : Tokens{15}};
    watch.take(0, request, 16);
  }
  const WatchFigures figures = watch.figures();
  ASSERT_TRUE(figures.canary.has_value());
  EXPECT_TRUE(figures.canary->is_least);
  EXPECT_EQ(figures.canary->parted, "") << "the engine hits blocks that the watch has forgotten";
  const std::string text = watch_screen(figures, recommend(figures, nullptr));
  EXPECT_NE(text.find("says at least 0.00 %"), std::string::npos) << text;
  EXPECT_NE(text.find("canary    not known"), std::string::npos) << text;
}

TEST(Watch, TheTwinsCountAsMemory) {
  WatchArguments arguments = arguments_for(vllm_events());
  const auto bytes_of = [](const WatchResult& result) { return result.json.at("memory").at("bytes").get<double>(); };
  const double without = bytes_of(played(arguments));
  arguments.server.experiment = test::fixture("vllm/served.toml");
  EXPECT_GT(bytes_of(played(arguments)), without + 100'000);
}

TEST(Watch, EventsWithGroupsHaveCurvesByPool) {
  const WatchResult result = played(arguments_for(test::fixture("vllm/kv_events_groups.jsonl")));
  const Json& curves = result.json.at("pool_curves");
  ASSERT_EQ(curves.size(), 3U) << curves.dump();
  for (const Json& curve : curves) {
    EXPECT_EQ(curve.at("kind").get<std::string>(), "sliding_window");
    EXPECT_EQ(curve.at("window_tokens").get<int>(), 128);
    double before = 0;
    for (const Json& size : curve.at("sizes")) {
      EXPECT_GE(size.at("usable_ratio").get<double>(), before);
      before = size.at("usable_ratio").get<double>();
    }
    EXPECT_GT(before, 0);
    EXPECT_LE(before, 1);
  }
  EXPECT_NE(result.text.find("pool      group 0, 1, 2, sliding_window of 128 tokens; blocks "), std::string::npos)
      << result.text;
  EXPECT_FALSE(played(arguments_for(vllm_events())).json.contains("pool_curves"));
}

TEST(Watch, EventsTellTheSizeOfAFullPool) {
  const Json json = played(arguments_for(vllm_events())).json;
  EXPECT_EQ(json.at("device_blocks").get<std::uint64_t>(), 100U) << "of tests/fixtures/vllm/served.toml";
  const Json& pool = json.at("pools").at(0);
  EXPECT_EQ(pool.at("stored").get<int>() - pool.at("removed").get<int>(), pool.at("held").get<int>());
  EXPECT_TRUE(pool.at("full").get<bool>());
}

TEST(Watch, TheEnginesOwnRulesHitWhatSGLangMeasured) {
  WatchArguments arguments = arguments_for(test::fixture("sglang/engine_requests.jsonl"));
  arguments.server.experiment = test::fixture("sglang/served.toml");
  const Json canary = played(arguments).json.at("canary");
  EXPECT_EQ(canary.at("rules"), "engine");
  EXPECT_EQ(canary.at("twin_hit_tokens").get<Tokens>(), canary.at("measured_hit_tokens").get<Tokens>());
  EXPECT_EQ(canary.at("parted"), "");
}

// The row of a size is the twin of a server with this size.
TEST(Watch, TheEnginesOwnRulesAtOtherSizes) {
  for (const char* engine : {"sglang", "vllm"}) {
    const bool is_sglang = std::string(engine) == "sglang";
    WatchArguments arguments = arguments_for(is_sglang ? test::fixture("sglang/engine_requests.jsonl") : vllm_events());
    arguments.server.experiment = test::fixture(std::string(engine) + "/served.toml");
    const Json sizes = played(arguments).json.at("sizes");
    std::vector<double> seen;
    for (const Json& row : sizes) {
      if (!row.contains("own_rules_token_hit_ratio")) continue;
      const auto blocks = row.at("blocks").get<std::uint64_t>();
      const std::uint64_t device = is_sglang ? 64 : 100;
      const std::uint64_t tokens = is_sglang ? 16 : 32;
      WatchArguments of_size = arguments;
      if (blocks > device) {
        of_size.server.sets = {"tiers.host.tokens=" + std::to_string(blocks * tokens)};
      } else {
        // vLLM keeps one block for itself.
        of_size.server.sets = {"tiers.host.tokens=0",
                               "tiers.device.tokens=" + std::to_string((blocks + (is_sglang ? 0 : 1)) * tokens)};
      }
      seen.push_back(row.at("own_rules_token_hit_ratio").get<double>());
      EXPECT_EQ(played(of_size).json.at("canary").at("twin_hit_ratio").get<double>(), seen.back()) << engine << blocks;
    }
    EXPECT_GE(seen.size(), 4U);
    EXPECT_GT(seen.back(), seen.front() + 0.1);
  }
}

// Of a model with windows a size is a device, and tokens may be there without their window.
TEST(Watch, AModelWithWindowsAtOtherSizes) {
  WatchArguments arguments = arguments_for(test::bundled_trace());
  arguments.settings.interval = 600 * kNsPerSecond;
  arguments.server.flags.vllm_flags = "";
  arguments.server.sets = {"model.name=gemma-3-27b", "hardware.name=h100-sxm", "cache.page_tokens=512",
                           "tiers.device.tokens=1000000"};
  const WatchResult result = played(arguments);
  EXPECT_NE(result.text.find("own rules no window"), std::string::npos) << result.text;
  const Json& sizes = result.json.at("sizes");
  const Json* larger = nullptr;
  for (const Json& row : sizes) {
    if (row.contains("own_rules_token_hit_ratio") && larger == nullptr &&
        row.at("blocks").get<std::uint64_t>() > result.json.at("device_blocks").get<std::uint64_t>()) {
      larger = &row;
    }
  }
  ASSERT_NE(larger, nullptr) << result.text;
  EXPECT_GT(larger->at("own_rules_token_hit_ratio").get<double>(),
            result.json.at("canary").at("twin_hit_ratio").get<double>());
  EXPECT_GT(larger->at("own_rules_without_window_ratio").get<double>(), 0);
}

TEST(Watch, WhatIsStoredWearsADrive) {
  WatchArguments arguments = arguments_for(vllm_events());
  arguments.server.experiment = test::fixture("vllm/served.toml");
  const WatchResult result = played(arguments);
  const double per_day = result.json.at("written").at("bytes_per_day").get<double>();
  // 525 blocks of 32 tokens in 27.2 s. The built-in drive takes a write of its 7.68 TB per day for five years.
  EXPECT_GT(per_day, 0);
  EXPECT_NEAR(result.json.at("written").at("drive_years").get<double>() * per_day, 7.68e12 * 5, 1e9);
  EXPECT_NE(result.text.find("GB per day, on one drive for"), std::string::npos) << result.text;
}

TEST(Watch, ACanaryThatPartsSaysSince) {
  WatchArguments arguments = arguments_for(test::fixture("sglang/engine_requests.jsonl"));
  arguments.server.experiment = test::fixture("sglang/served.toml");
  arguments.server.sets = {"tiers.host.tokens=0", "tiers.device.tokens=512"};
  const WatchResult result = played(arguments);
  EXPECT_NE(result.json.at("canary").at("parted").get<std::string>().find("more hits than the twin, from 0 s on"),
            std::string::npos)
      << result.json.at("canary").dump();
  EXPECT_NE(result.text.find("PARTED"), std::string::npos);
}

TEST(Watch, TheSameRecordingGivesTheSameBytes) {
  std::string first, second;
  for (std::string* text : {&first, &second}) {
    WatchArguments arguments = arguments_for(vllm_events());
    arguments.settings.interval = 2 * kNsPerSecond;
    WatchOutput output;
    output.interval = [&](const std::string& line) { *text += line; };
    const WatchResult result = played(arguments, output);
    *text += result.text + result.json.dump();
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first.find("advice    add a host tier of 400 blocks"), std::string::npos) << first;
}

TEST(Watch, IntervalsHaveAllLookUps) {
  WatchArguments arguments = arguments_for(vllm_events());
  arguments.settings.interval = kNsPerSecond / 100;  // more intervals than are kept
  std::size_t lines = 0;
  WatchOutput output;
  output.interval = [&](const std::string&) { ++lines; };
  const WatchResult result = played(arguments, output);
  EXPECT_GT(lines, 20U);
  std::uint64_t lookups = 0;
  Watch watch(arguments.settings, {"one"}, nullptr);
  const std::unique_ptr<WatchedRecording> recording = open_recording(vllm_events(), 0);
  while (recording->next_time()) recording->deliver(watch, 0);
  watch.end();
  const WatchFigures figures = watch.figures();
  EXPECT_LE(figures.intervals.size(), 512U);
  for (const WatchInterval& one : figures.intervals) lookups += one.lookup_blocks;
  EXPECT_EQ(lookups, figures.lookup_blocks);
}

TEST(Watch, OnePoolForTwoEnginesHitsWhatOneOfThemStored) {
  WatchArguments arguments = arguments_for(test::bundled_trace(), 1'000'000);
  arguments.sources.push_back(test::bundled_trace());
  const Json json = played(arguments).json;
  const Json& own = *size_of(json.at("sizes"), 1'000'000);
  const Json& shared = *size_of(json.at("shared_pool"), 2'000'000);
  const auto lookups = json.at("lookup_blocks").get<std::uint64_t>();
  EXPECT_EQ(own.at("hit_blocks").get<std::uint64_t>() / 2 + lookups / 2, shared.at("hit_blocks").get<std::uint64_t>());
}

TEST(Watch, LostMessagesAndRestartsAreFaults) {
  const test::Folder folder;
  std::string text = test::text_of(vllm_events());
  const std::size_t cut = text.find('\n', text.size() / 2) + 1;
  test::write_text(folder / "kv_events.jsonl", text.substr(0, cut) +
                                                   "{\"type\":\"missing\",\"from\":3,\"to\":12}\n"
                                                   "{\"type\":\"bad\",\"seq\":13,\"why\":\"is\"}\n"
                                                   "{\"type\":\"restart\",\"seq\":0}\n" +
                                                   text.substr(cut));
  const WatchResult result = played(arguments_for(folder.path().string()));
  EXPECT_NE(result.text.find("faults    10 messages lost, 1 not read, 1 restarts"), std::string::npos) << result.text;
  EXPECT_EQ(result.json.at("events").at("lost_messages").get<int>(), 10);
  // A jump by nearly 2^64 numbers, twice.
  const std::string jump = "{\"type\":\"missing\",\"from\":3,\"to\":18446744073709551000}\n";
  test::write_text(folder / "kv_events.jsonl", text.substr(0, cut) + jump + jump + text.substr(cut));
  const WatchResult many = played(arguments_for(folder.path().string()));
  EXPECT_NE(many.text.find("faults    18,446,744,073,709,551,615 messages lost; at most 100.0 % of the events"),
            std::string::npos)
      << many.text;
}

TEST(Watch, RefusesBlocksOfAnotherSize) {
  WatchArguments arguments = arguments_for(vllm_events());
  arguments.server.experiment = test::fixture("sglang/served.toml");
  EXPECT_THROW(played(arguments), InputError);
  arguments.sources = {"/nowhere"};
  EXPECT_ANY_THROW(played(arguments));
}

std::string refusal_of(const WatchArguments& arguments) {
  try {
    played(arguments);
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

TEST(Watch, RecordingsOfTwoBlockSizesAreRefused) {
  WatchArguments arguments = arguments_for(test::bundled_trace());  // 512 tokens
  arguments.sources.push_back(test::fixture("sglang/engine_requests.jsonl"));
  EXPECT_NE(refusal_of(arguments).find("engine_requests.jsonl, line 96: a request has blocks of 64 tokens, and "
                                       "those before it have 512"),
            std::string::npos)
      << refusal_of(arguments);
  const test::Folder folder;
  std::string text = test::text_of(vllm_events());
  for (const std::string size = "\"block_size\":32"; text.find(size) != std::string::npos;) {
    text.replace(text.find(size), size.size(), "\"block_size\":16");
  }
  test::write_text(folder / "kv_events.jsonl", text);
  arguments.sources = {vllm_events(), folder.path().string()};
  EXPECT_NE(refusal_of(arguments).find("an event has blocks of 16 tokens, and those before it have 32"),
            std::string::npos)
      << refusal_of(arguments);
}

TEST(Watch, RequestsOfAnotherBlockSizeAreBadAndEndNothing) {
  Watch watch({}, {"one", "two"}, nullptr);
  TraceRequest request;
  request.blocks = {1, 2};
  request.input = 64;
  watch.take(0, request, 32);
  watch.take(1, request, 16);
  watch.take(0, request, 32);
  const WatchFigures figures = watch.figures();
  EXPECT_EQ(figures.requests, 2U);
  EXPECT_EQ(figures.bad, 1U);
  EXPECT_EQ(figures.block_tokens, 32U);
  EXPECT_TRUE(figures.first_problem.starts_with("two: a request has blocks of 16 tokens")) << figures.first_problem;
}

// The groups of a hybrid model may have different block sizes.
TEST(Watch, AWindowGroupThatComesFirstDoesNotTellTheBlockSize) {
  Watch watch({}, {"hybrid"}, nullptr);
  const std::vector<std::uint64_t> window{1, 2}, full{11};
  BlockEvent event;
  event.blocks = window;
  event.block_tokens = 16;
  event.group = 0;
  event.group_kind = "sliding_window";
  watch.take(0, event);
  event.blocks = full;
  event.block_tokens = 32;
  event.group = 1;
  event.group_kind = "full_attention";
  watch.take(0, event);
  watch.end();
  const WatchFigures figures = watch.figures();
  EXPECT_EQ(figures.block_tokens, 32U);
  EXPECT_EQ(figures.requests, 1U);
  EXPECT_EQ(figures.bad, 0U);
}

TEST(Watch, MemoryIsFlatWhateverComes) {
  WatchSettings settings;
  settings.max_blocks = 10'000;
  settings.window_blocks = 5'000;
  Watch watch(settings, {"hostile"}, nullptr);
  std::vector<std::uint64_t> blocks(40);
  std::uint64_t next = 1;
  std::size_t largest = 0, middle = 0;
  for (int i = 0; i < 20'000; ++i) {
    for (std::uint64_t& block : blocks) block = next++;
    BlockEvent event;
    event.time = TimeNs{i} * 5 * kNsPerSecond;
    event.block_tokens = 16;
    event.blocks = blocks;
    if (i % 3 != 0) event.parent = next - 45;
    event.medium = i % 7 == 0 ? "CPU" : "";
    event.group = i % 11 == 0 ? std::optional<std::uint64_t>(static_cast<std::uint64_t>(i)) : std::nullopt;
    watch.take(0, event);
    if (i % 1000 != 0) continue;
    const WatchFigures figures = watch.figures();
    largest = std::max(largest, figures.memory_bytes);
    if (i == 10'000) middle = largest;
  }
  EXPECT_EQ(largest, middle) << "the second half needs no more";
  // Distances, the engine's own blocks (84 and 32), the curve and the window.
  EXPECT_LT(largest, settings.max_blocks * (41 + 84 + 64 + 32) + settings.window_blocks * 80 + (4U << 20));
}

TraceRequest request_at(TimeNs arrival) {
  TraceRequest request;
  request.arrival = arrival;
  request.blocks = {1, 2};
  request.input = 32;
  request.output = 1;
  return request;
}

TEST(Watch, RequestsWithLongPausesNeedFewIntervals) {
  WatchSettings settings;
  settings.interval = kNsPerSecond;
  Watch watch(settings, {"one"}, nullptr);
  std::size_t most = 0;
  for (TimeNs i = 0; i < 3000; ++i) {
    watch.take(0, request_at(i * 10'000 * kNsPerSecond), 16);
    if (i % 100 == 0) most = std::max(most, watch.figures().intervals.size());
  }
  EXPECT_LE(most, 512U);
  std::uint64_t requests = 0;
  for (const WatchInterval& one : watch.figures().intervals) requests += one.requests;
  EXPECT_EQ(requests, 3000U);
}

TEST(Watch, ALogThatBeganBeforeTheCountersHasItsOwnTimes) {
  Watch watch({}, {"one"}, nullptr);
  ServerCounters counters;
  counters.looked_up = 5;
  counters.time = 10'000 * kNsPerSecond;
  watch.take(0, counters);
  watch.take(0, request_at(9'000 * kNsPerSecond), 16);
  watch.advance(10'000 * kNsPerSecond);
  watch.take(0, request_at(1'000 * kNsPerSecond), 16);
  watch.take(0, request_at(5'000 * kNsPerSecond), 16);
  const WatchFigures figures = watch.figures();
  EXPECT_EQ(figures.begin, 1'000 * kNsPerSecond);
  EXPECT_EQ(figures.now, 10'000 * kNsPerSecond);
  ASSERT_EQ(figures.intervals.size(), 4U) << "three with a request each, and the present one";
  for (std::size_t i = 0; i < 3; ++i) {
    const TimeNs arrival = (1'000 + 4'000 * static_cast<TimeNs>(i)) * kNsPerSecond;
    EXPECT_EQ(figures.intervals[i].requests, 1U) << i;
    EXPECT_LE(figures.intervals[i].begin, arrival);
    EXPECT_GT(figures.intervals[i].begin + figures.intervals[i].length, arrival);
  }
}

TEST(Watch, ASilentEngineKeepsNoRequest) {
  Watch watch({}, {"one"}, nullptr);
  const std::vector<std::uint64_t> block{1};
  BlockEvent event;
  event.time = 100 * kNsPerSecond;
  event.block_tokens = 16;
  event.blocks = block;
  watch.take(0, event);
  watch.advance(0, 106 * kNsPerSecond);
  EXPECT_EQ(watch.figures().requests, 0U) << "it may go on";
  watch.advance(0, 108 * kNsPerSecond);
  EXPECT_EQ(watch.figures().requests, 1U);
  EXPECT_EQ(watch.figures().now, 100 * kNsPerSecond);
}

TEST(Watch, OneWrongClockDoesNotSetTheTime) {
  Watch watch({}, {"one"}, nullptr);
  const std::vector<std::uint64_t> block{1};
  BlockEvent event;
  event.block_tokens = 16;
  event.blocks = block;
  constexpr TimeNs kYear = TimeNs{365} * 24 * 3600 * kNsPerSecond;
  for (const TimeNs time : {kYear, 9 * kYear, 9 * kYear, kYear + 1, TimeNs{0}, kYear + 2}) {
    event.time = time;
    watch.take(0, event);
  }
  EXPECT_EQ(watch.figures().now, kYear + 2);
  EXPECT_EQ(watch.figures().begin, kYear);
  EXPECT_EQ(watch.figures().bad, 3U);
  for (const TimeNs time : {2 * kYear, 2 * kYear + 1}) {  // a year of silence
    event.time = time;
    watch.take(0, event);
  }
  EXPECT_EQ(watch.figures().now, 2 * kYear + 1);
}

TEST(Watch, PrefixesThatAreLostAgainAndAgainAreNamed) {
  WatchSettings settings;
  settings.device_blocks = 50;
  Watch watch(settings, {"one"}, nullptr);
  std::uint64_t next = 1000;
  for (int i = 0; i < 40; ++i) {
    TraceRequest request;
    request.arrival = TimeNs{i} * kNsPerSecond;
    const bool is_shared = i % 2 == 0;
    for (std::uint64_t block = 0; block < 60; ++block) {
      request.blocks.push_back(is_shared && block < 10 ? block + 1 : next++);
    }
    request.input = request.blocks.size() * 16;
    request.output = 1;
    watch.take(0, request, 16);
  }
  const WatchFigures figures = watch.figures();
  ASSERT_EQ(figures.prefixes.size(), 1U);
  EXPECT_EQ(figures.prefixes[0].blocks, 10U);
  EXPECT_EQ(figures.prefixes[0].requests, 20U);
  EXPECT_EQ(figures.prefixes[0].lost_blocks, 190U);
}

TEST(Watch, AStoreOfMoreBlocksThanAreTrackedIsBad) {
  WatchSettings settings;
  settings.max_blocks = 2;
  Watch watch(settings, {"one"}, nullptr);
  const std::vector<std::uint64_t> blocks{1, 2, 3};
  BlockEvent event;
  event.block_tokens = 16;
  event.blocks = blocks;
  watch.take(0, event);
  watch.end();
  EXPECT_EQ(watch.figures().bad, 1U);
  EXPECT_EQ(watch.figures().requests, 0U);
  EXPECT_EQ(watch.figures().first_problem, "one: an event has 3 blocks, more than --max-blocks 2");
}

TEST(Watch, APrefixHasNoRequestsOfThoseThatItReplaced) {
  WatchSettings settings;
  settings.device_blocks = 1;
  Watch watch(settings, {"one"}, nullptr);
  const auto take = [&](std::uint64_t first) {
    TraceRequest request = request_at(0);
    request.blocks = {first, first + 1'000'000};
    watch.take(0, request, 16);
  };
  for (int round = 0; round < 10; ++round) {
    for (std::uint64_t first = 1; first <= 256; ++first) take(first);  // as many as are counted
  }
  take(1000);
  take(1000);
  const WatchFigures figures = watch.figures();
  ASSERT_EQ(figures.prefixes.size(), 5U);
  for (const WatchedPrefix& one : figures.prefixes) EXPECT_EQ(one.requests, 10U) << "and none has 12";
}

TEST(ServerCounters, OfVllmAndSGLang) {
  const ServerCounters vllm = parse_server_counters(
      "# HELP vllm:prefix_cache_queries_total Prefix cache queries\n"
      "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m{}\"} 1000.0\n"
      "vllm:prefix_cache_queries_total{engine=\"1\",model_name=\"m\"} 500.0\r\n"
      "vllm:prefix_cache_hits_total{engine=\"0\"} 600\n"
      "vllm:external_prefix_cache_hits_total{engine=\"0\"} 70\n"
      "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",source=\"host\"} 30\n"
      "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",source=\"device\"} 600\n"
      "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"301\"} 1.0\n"
      "vllm:request_success_total{finished_reason=\"stop\"} 3\nvllm:request_success_total{finished_reason=\"length\"} "
      "4\n"
      "vllm:generation_tokens_total{engine=\"0\"} 50\n",
      7);
  EXPECT_EQ(vllm.requests, 7U);
  EXPECT_EQ(vllm.answer_tokens, 50U);
  EXPECT_EQ(vllm.time, 7);
  EXPECT_EQ(vllm.looked_up, 1500U);
  EXPECT_EQ(vllm.device_hits, 600U);
  EXPECT_EQ(vllm.host_hits, 30U);
  EXPECT_EQ(vllm.storage_hits, 40U);
  EXPECT_EQ(vllm.device_tokens, 9600U) << "without the first block";
  const ServerCounters sglang = parse_server_counters(
      "sglang:prompt_tokens_total{x=\"y\"} 2e3\nsglang:cached_tokens_total{cache_source=\"device\"} 5\n"
      "sglang:cached_tokens_total{cache_source=\"host\"} 6\nsglang:max_total_num_tokens 4096",
      0);
  EXPECT_EQ(sglang.looked_up, 2000U);
  EXPECT_EQ(sglang.hits(), 11U);
  EXPECT_EQ(sglang.device_tokens, 4096U);
  for (const char* hostile :
       {"", "{", "a{b", "vllm:prefix_cache_queries_total -5", "x nan\ny inf\n z",
        "vllm:prefix_cache_queries_total 1e300", "vllm:cache_config_info{num_gpu_blocks=\"99999999999999999999\"} 1"}) {
    EXPECT_FALSE(parse_server_counters(hostile, 0).looked_up) << hostile;
  }
}

TEST(ServerCounters, ACounterThatFallsIsARestart) {
  WatchSettings settings;
  settings.device_blocks = 10;
  Watch watch(settings, {"one"}, nullptr);
  const auto counters = [](TimeNs time, Tokens looked_up, Tokens hits) {
    ServerCounters of;
    of.time = time;
    of.looked_up = looked_up;
    of.device_hits = hits;
    return of;
  };
  TraceRequest request;
  request.input = 160;
  for (std::uint64_t block = 1; block <= 10; ++block) request.blocks.push_back(block);
  watch.take(0, request, 16);
  watch.take(0, counters(0, 5000, 4000));  // before the watch
  watch.take(0, request, 16);
  watch.take(0, counters(1, 5100, 4050));
  watch.take(0, counters(2, 100, 10));
  const WatchFigures figures = watch.figures();
  ASSERT_TRUE(figures.canary);
  EXPECT_EQ(figures.canary->measured_looked_up, 200U);
  EXPECT_EQ(figures.canary->measured_hits, 60U);
  EXPECT_EQ(figures.canary->twin_looked_up, 160U) << "of the request that both sides have";
}

TEST(ServerCounters, AloneShowMeasuredHitsAndRates) {
  Watch watch({}, {"http://a/metrics"}, nullptr);
  watch.expect_counters_alone(0);
  ServerCounters counters;
  counters.looked_up = 1000;
  counters.device_hits = 900;
  watch.take(0, counters);
  counters.time = 10 * kNsPerSecond;
  counters.looked_up = 2000;
  counters.device_hits = 1200;
  counters.host_hits = 100;
  counters.requests = 20;
  counters.answer_tokens = 500;
  watch.take(0, counters);
  watch.end();
  const WatchFigures figures = watch.figures();
  const std::string text = watch_screen(figures, recommend(figures, nullptr));
  EXPECT_EQ(text,
            "kvtwin watch  1 engine, 10.0 s, counters alone\n"
            "measured  40.00 % of 1,000 prompt tokens hit: 30.00 % on the device, 10.00 % on the host, 0.00 % in "
            "storage\n"
            "rates     2 requests, 100 prompt tokens and 50 tokens of answers per second\n"
            "not shown hits of other sizes, the twin's, the best possible ones, prefixes to pin, writes\n"
            "advice    no advice: counters do not tell which prompts repeat; give tcp://HOST:PORT of KV events, or "
            "--request-log\n");
  EXPECT_EQ(watch_line(figures.intervals.front(), figures),
            "        0 s  measured hits: 40.00 % of 1,000 prompt tokens\n");
  EXPECT_EQ(why_below(figures, 0.4), "");
  EXPECT_NE(why_below(figures, 0.5).find("measured hits are 40.0 %"), std::string::npos);
  EXPECT_NE(watch_prometheus(figures).find("kvtwin_watch_measured_hit_ratio 0.4\n"), std::string::npos);
}

TEST(ServerCounters, CountNothingThatALogHasToo) {
  WatchSettings settings;
  settings.device_blocks = 10;
  Watch watch(settings, {"one"}, nullptr);
  TraceRequest request = request_at(1);
  request.measured_hits.emplace().total = 16;
  ServerCounters counters;
  counters.looked_up = 0;
  watch.take(0, request, 16);
  watch.take(0, counters);
  watch.take(0, request, 16);
  counters.looked_up = 32;
  counters.device_hits = 16;
  watch.take(0, counters);
  const WatchFigures figures = watch.figures();
  ASSERT_TRUE(figures.canary);
  EXPECT_EQ(figures.canary->measured_looked_up, 64U);
  EXPECT_EQ(figures.canary->twin_looked_up, 64U);
}

TEST(Watch, AReportOfReuseWritesNothing) {
  Watch watch({}, {"one"}, nullptr);
  const std::vector<std::uint64_t> blocks{1, 2, 3};
  BlockEvent event;
  event.block_tokens = 16;
  event.blocks = blocks;
  event.group = 0;
  event.group_kind = "full_attention";
  watch.take(0, event);
  watch.take(0, event);  // the blocks are there
  event.group = 1;
  event.group_kind = "sliding_window";
  watch.take(0, event);
  EXPECT_EQ(watch.figures().stored_blocks, 3U);
}

WatchInterval interval_with(std::uint64_t lookups, std::uint32_t near, std::uint32_t far) {
  WatchInterval one;
  one.lookup_blocks = one.sampled = lookups;
  one.hits.resize(kSizeSteps);
  one.hits[size_step(50)] = near;
  one.hits[size_step(300)] = far;
  return one;
}

WatchFigures figures_with(const std::vector<WatchInterval>& intervals) {
  WatchFigures figures;
  figures.sources = 1;
  figures.device_blocks = 100;
  figures.enough_blocks = 320;
  figures.requests = 1000;
  figures.intervals = intervals;
  return figures;
}

TEST(WatchAdvice, WaitsForEnough) {
  WatchFigures figures = figures_with({interval_with(100, 10, 50), interval_with(100, 10, 50)});
  EXPECT_FALSE(recommend(figures, nullptr).is_ready);
  figures.device_blocks = 0;
  EXPECT_NE(recommend(figures, nullptr).sentence.find("--device-blocks"), std::string::npos);
}

TEST(WatchAdvice, AnIdleIntervalTellsNothing) {
  std::vector<WatchInterval> intervals(12);  // a few long pauses
  for (WatchInterval& one : intervals) one.hits.resize(kSizeSteps);
  for (const std::size_t at : {0U, 5U, 11U}) intervals[at] = interval_with(100, 10, 50);
  const WatchAdvice advice = recommend(figures_with(intervals), nullptr);
  EXPECT_FALSE(advice.is_ready);
  EXPECT_TRUE(advice.sentence.starts_with("no advice yet: 1,000 requests in 3 intervals")) << advice.sentence;
}

TEST(WatchAdvice, AHostTierOfManyTimesTheDeviceMayBeTooSmall) {
  WatchFigures figures = figures_with(std::vector<WatchInterval>(8, interval_with(100, 10, 50)));
  figures.device_blocks = 5;
  figures.host_blocks = 200;  // 40 times the device
  const WatchAdvice advice = recommend(figures, nullptr);
  EXPECT_TRUE(advice.is_change);
  EXPECT_EQ(advice.blocks, 400U);
}

TEST(WatchAdvice, ATierThatHitsAndHowSureThatIs) {
  std::vector<WatchInterval> intervals(8, interval_with(100, 10, 50));
  intervals[3] = interval_with(100, 10, 40);
  const WatchAdvice advice = recommend(figures_with(intervals), nullptr);
  EXPECT_TRUE(advice.is_change);
  EXPECT_EQ(advice.blocks, 400U);
  EXPECT_NEAR(advice.gain.middle, 0.4875, 1e-9);
  EXPECT_LT(advice.gain.low, 0.4875);
  EXPECT_GT(advice.gain.low, 0.45);
  EXPECT_NE(advice.flags.find("--hicache-ratio 4"), std::string::npos) << advice.flags;
}

TEST(WatchAdvice, TheGainIsThatOfTheEnginesOwnRules) {
  WatchFigures figures = figures_with(std::vector<WatchInterval>(8, interval_with(100, 10, 50)));
  for (const auto& [blocks, lru, own] : {std::tuple{100U, 0.1, 0.1}, {200U, 0.1, 0.1}, {400U, 0.6, 0.3}}) {
    figures.rows.emplace_back();
    figures.rows.back().blocks = blocks;
    figures.rows.back().lru.token_ratio = lru;
    figures.rows.back().own = own;
  }
  const WatchAdvice advice = recommend(figures, nullptr);
  EXPECT_EQ(advice.blocks, 400U);
  EXPECT_NEAR(advice.gain.middle, 0.2, 1e-9) << "LRU's 0.5, of which the engine has 40 %";
}

TEST(WatchAdvice, ChangesNothingWithoutAGain) {
  const WatchAdvice none = recommend(figures_with(std::vector<WatchInterval>(8, interval_with(100, 10, 0))), nullptr);
  EXPECT_TRUE(none.is_ready);
  EXPECT_FALSE(none.is_change);
  EXPECT_TRUE(none.sentence.starts_with("change nothing")) << none.sentence;
  // A gain in one interval of eight only is not sure.
  std::vector<WatchInterval> intervals(8, interval_with(100, 10, 0));
  intervals[5] = interval_with(100, 10, 20);
  EXPECT_FALSE(recommend(figures_with(intervals), nullptr).is_change);
}

// A cache that is far too small hits nothing at 32 times its size either.
TEST(WatchAdvice, LimitsWhatItSaysOfLargerTiers) {
  const WatchResult result = played(arguments_for(std::string(kSourceFolder) + "/traces/chat_small.jsonl.zst", 1));
  EXPECT_EQ(result.json.at("advice").at("sentence"),
            "change nothing: no larger tier of up to 32 blocks has more hits; 153,305 blocks have every hit");
}

TEST(WatchAdvice, MoneyAndFlagsOfADescription) {
  WatchArguments arguments = arguments_for(test::bundled_trace());
  arguments.settings.interval = 300 * kNsPerSecond;
  arguments.server.flags.sglang_flags = {"--model-path Qwen/Qwen3-32B --page-size 512 --tp 1"};
  arguments.server.sets = {"hardware.name=h100-sxm", "tiers.device.tokens=1536000"};
  WatchResult result = played(arguments);
  const Json advice = result.json.at("advice");
  EXPECT_TRUE(advice.at("change").get<bool>()) << result.text;
  EXPECT_GT(advice.at("money_per_month").at("low").get<double>(), 0);
  EXPECT_NE(advice.at("flags").get<std::string>().find("--enable-hierarchical-cache"), std::string::npos)
      << advice.dump();
  // Memory that costs a fortune.
  const test::Folder folder;
  test::write_text(folder / "prices.toml",
                   "currency = \"USD\"\n[dram]\ngib = {value = 1e9, source = \"test\", date = \"2026-11-29\"}\n");
  arguments.server.sets.push_back("prices.file=" + (folder / "prices.toml"));
  result = played(arguments);
  EXPECT_FALSE(result.json.at("advice").at("change").get<bool>());
  EXPECT_NE(result.text.find("change nothing: a host tier of"), std::string::npos) << result.text;
}

TEST(Expectation, NamesTheCause) {
  EXPECT_EQ(expected_hits("hits=0.55"), 0.55);
  EXPECT_EQ(expected_hits("hits=55%"), 0.55);
  for (const char* wrong : {"", "hits", "hits=", "hits=2", "hits=0", "misses=0.5", "hits=x"}) {
    EXPECT_THROW(expected_hits(wrong), InputError) << wrong;
  }
  const auto missed = [](const std::string& expect) {
    WatchArguments arguments = arguments_for(vllm_events());
    arguments.expect = expect;
    return played(arguments).missed;
  };
  EXPECT_EQ(missed("hits=0.3"), "");
  EXPECT_NE(missed("hits=0.5").find("the cache is too small; 200 blocks in place of 100 have 59.7 %"),
            std::string::npos)
      << missed("hits=0.5");
  EXPECT_NE(missed("hits=0.9").find("the traffic repeats too little"), std::string::npos);
  WatchFigures figures;
  EXPECT_NE(why_below(figures, 0.5).find("no request came"), std::string::npos);
  figures.lookup_tokens = 100;
  figures.canary = Canary();
  figures.canary->measured_looked_up = figures.canary->twin_looked_up = 100;
  figures.canary->measured_hits = 10;
  figures.canary->twin_hits = 60;
  EXPECT_NE(why_below(figures, 0.5).find("the server differs from its description"), std::string::npos);
  figures.canary.reset();
  figures.device_blocks = 10;
  figures.rows.emplace_back().blocks = 10;
  figures.lost_messages = 50;
  figures.events = 50;
  EXPECT_NE(why_below(figures, 0.5).find("50 messages were lost"), std::string::npos);
}

// The hits of a larger cache than the present one are no answer.
TEST(Expectation, WithoutASizeOnlyMeasuredHitsCount) {
  WatchArguments arguments = arguments_for(std::string(kSourceFolder) + "/traces/chat_small.jsonl.zst");
  arguments.expect = "hits=0.01";
  EXPECT_EQ(played(arguments).missed,
            "the hits at the present size are not known, and should be 1.0 %: the size of the device's pool is not "
            "known; give --device-blocks or a description of the server");
  WatchFigures figures;
  figures.lookup_tokens = 100;
  figures.rows.emplace_back().blocks = 10;
  figures.rows.back().lru.token_ratio = 0.9;
  WatchFigures::Measured measured;
  measured.looked_up = 100;
  measured.device_hits = 40;
  figures.measured = measured;
  EXPECT_EQ(why_below(figures, 0.4), "");
  EXPECT_NE(
      why_below(figures, 0.5).find("measured hits are 40.0 % of the prompt tokens, and should be 50.0 %: no twin"),
      std::string::npos);
}

TEST(Expectation, CountersThatCannotBeFetchedAreTheCause) {
  WatchFigures figures;
  figures.counters_alone = true;
  figures.unreachable = 1;
  figures.first_unreachable = "counters of http://a/metrics: can't be connected";
  EXPECT_EQ(why_below(figures, 0.5),
            "no counters came, so the hits are not known: counters of http://a/metrics: can't be connected");
  figures.counters_alone = false;
  EXPECT_EQ(why_below(figures, 0.5),
            "no request came, so no hits either; counters of http://a/metrics: can't be connected");
}

TEST(WatchRecording, FilesOfRequestsAreReadInOrder) {
  const test::Folder folder;
  const std::string later = RequestFileName{16, 5'000'000'000}.text(),
                    earlier = RequestFileName{16, 1'000'000'000}.text();
  EXPECT_EQ(earlier, "requests-16t-000000000001000.jsonl");
  test::write_text(folder / later, "{\"timestamp\":0,\"input_length\":32,\"output_length\":1,\"hash_ids\":[1,2]}\n");
  test::write_text(folder / earlier,
                   "{\"timestamp\":0,\"input_length\":32,\"output_length\":1,\"hash_ids\":[1,2]}\n"
                   "{\"timestamp\":9,\"input_length\":32,\"output_length\":1,\"hash_ids\":[1,3]}\n");
  test::write_text(folder / "requests-x.jsonl", "");
  const WatchResult result = played(arguments_for(folder.path().string(), 2));
  EXPECT_EQ(result.json.at("requests").get<int>(), 3);
  EXPECT_EQ(result.json.at("seconds").get<double>(), 4);
  EXPECT_EQ(size_of(result.json.at("sizes"), 4)->at("hit_blocks").get<int>(), 3);
  for (const char* wrong : {"requests-16t-1.json", "requests-0t-1.jsonl", "requests-16-1.jsonl", "requests-16t-.jsonl",
                            "requests-16t--1.jsonl", "requests-16t-99999999999999999.jsonl"}) {
    EXPECT_FALSE(RequestFileName::parse(wrong)) << wrong;
  }
  const test::Folder empty;
  EXPECT_THROW(played(arguments_for(empty.path().string())), InputError);
}

TEST(WatchText, PrometheusHasALinePerSize) {
  WatchFigures figures;
  figures.rows.emplace_back();
  figures.rows.back().blocks = 100;
  figures.rows.back().lru.block_ratio = 0.25;
  figures.canary = Canary();
  figures.canary->measured_looked_up = 4;
  figures.canary->measured_hits = 1;
  const std::string text = watch_prometheus(figures);
  EXPECT_NE(text.find("kvtwin_watch_hit_ratio{blocks=\"100\"} 0.25\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kvtwin_watch_measured_hit_ratio 0.25\n"), std::string::npos) << text;
}

TEST(SizeSteps, RiseAndAreExactBelow16) {
  std::size_t before = 0;
  for (std::uint64_t size = 0; size < 100'000; ++size) {
    const std::size_t step = size_step(size);
    EXPECT_TRUE(step == before || step == before + 1) << size;
    EXPECT_TRUE(step == before || size == 0 || share_of_step(size - 1) == 1.0) << size;
    before = step;
  }
  EXPECT_EQ(size_step(15), 15U);
  EXPECT_LT(size_step(std::uint64_t{1} << 62), kSizeSteps);
}

}  // namespace
}  // namespace kvtwin
