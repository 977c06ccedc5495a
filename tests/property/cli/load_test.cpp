// Overload ends and starves nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// About a quarter of what the machine can do, so that hardly anybody queues.
Settings sustainable(const Folder& folder, std::uint64_t seed) {
  return conversations({.requests = 600, .output = 120, .gap_ms = 600}, seed).save(folder) +
         Settings{"tiers.device.tokens=20032", "tiers.host.tokens=60032"};
}

TEST(Overload, TenTimesTheLoadIsServedWhole) {
  const Folder folder;
  const Settings base = sustainable(folder, 1);
  for (const char* order : {"fcfs", "longest_prefix"}) {
    for (const char* unit : {"page", "node"}) {
      const Settings settings =
          base + Settings{std::string("scheduler.order=") + order, std::string("cache.evict_unit=") + unit};
      const Simulated calm = simulate(settings);
      const Simulated flood = simulate(settings + Settings{"workload.time_scale=0.1"});
      const auto queue = [](const Simulated& run) {
        return run.report.at("ttft_parts_seconds").at("queue").get<double>();
      };
      ASSERT_LT(queue(calm), 0.5) << "the base was meant to be sustainable";
      EXPECT_GT(queue(flood), 10 * queue(calm)) << order << " " << unit;
      EXPECT_EQ(flood.requests("completed"), 600U) << order << " " << unit;
      EXPECT_EQ(flood.requests("rejected"), 0U);
      EXPECT_EQ(flood.tokens("output"), calm.tokens("output"));
      EXPECT_EQ(flood.tokens("prompt"), calm.tokens("prompt"));
    }
  }
}

// All at once, on a device that holds hardly more than the longest request: retractions, and still an end.
TEST(Overload, EverybodyAtOnceIsServedWhole) {
  for (const char* order : {"fcfs", "longest_prefix"}) {
    for (const char* page : {"1", "64", "512"}) {
      const Folder folder;
      const Simulated run =
          simulate(conversations({.requests = 200, .output = 400, .gap_ms = 0}, 2).save(folder) +
                   Settings{"tiers.device.tokens=16384", "tiers.host.tokens=16384",
                            std::string("scheduler.order=") + order, std::string("cache.page_tokens=") + page});
      EXPECT_GT(run.requests("retractions"), 0U) << order << " pages of " << page;
      EXPECT_EQ(run.requests("completed"), 200U) << order << " pages of " << page;
    }
  }
}

// Overload by requests that all share a long prefix, which longest_prefix prefers, and a few that share nothing.
TraceText favourites(std::uint64_t strangers) {
  TraceText trace(64);
  std::uint64_t next = 1000;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const bool stranger = i % (400 / strangers) == 5;
    std::vector<std::uint64_t> blocks = stranger ? ids(next, 64) : ids(0, 60);
    if (!stranger) blocks.insert(blocks.end(), {next, next + 1});
    next += 64;
    trace.request(i * 4, 40, blocks);
  }
  return trace;
}

// How many passes began with a younger request while this one waited. Each request of these traces is prefilled in
// one pass, so its queue ends with that pass's start.
std::uint64_t most_overtaken(const Simulated& run) {
  const Table table(run.requests_csv);
  struct Wait {
    std::uint64_t request;
    std::int64_t arrival, start;  // ns
  };
  std::vector<Wait> waits;
  const auto ns = [&](std::size_t row, const char* column) {
    return static_cast<std::int64_t>(table.number(row, column) * 1e9 + 0.5);
  };
  for (std::size_t row = 0; row < table.size(); ++row) {
    const std::int64_t arrival = ns(row, "arrival_s");
    waits.push_back({table.integer(row, "request"), arrival, arrival + ns(row, "queue_s")});
  }
  std::uint64_t most = 0;
  for (const Wait& wait : waits) {
    std::set<std::int64_t> passes;
    for (const Wait& other : waits) {
      if (other.request > wait.request && other.start > wait.arrival && other.start < wait.start)
        passes.insert(other.start);
    }
    most = std::max<std::uint64_t>(most, passes.size());
  }
  return most;
}

TEST(Starvation, NobodyIsOvertakenMoreOftenThanAllowed) {
  const Folder folder;
  const Settings base =
      favourites(8).save(folder) + Settings{"scheduler.order=longest_prefix", "scheduler.max_running=8",
                                            "scheduler.chunk_tokens=65536", "tiers.device.tokens=400000"};
  std::uint64_t unlimited = 0;
  for (const std::uint64_t limit : {1'000'000U, 40U, 10U, 3U, 1U, 0U}) {
    const Simulated run = simulate(base + Settings{"scheduler.overtake_limit=" + std::to_string(limit)});
    ASSERT_EQ(run.requests("completed"), 400U);
    ASSERT_EQ(run.requests("retractions"), 0U);
    const std::uint64_t most = most_overtaken(run);
    if (unlimited == 0) unlimited = most;
    EXPECT_LE(most, limit);
  }
  EXPECT_GT(unlimited, 40U) << "without a limit the strangers were meant to wait long";
}

TEST(Starvation, FirstComeFirstServedOvertakesNobody) {
  const Folder folder;
  const Simulated run =
      simulate(favourites(8).save(folder) +
               Settings{"scheduler.max_running=8", "scheduler.chunk_tokens=65536", "tiers.device.tokens=400000"});
  EXPECT_EQ(most_overtaken(run), 0U);
}

// Looking at one waiting request at a time leaves nothing to choose.
TEST(Starvation, LongestPrefixOfOneIsFirstComeFirstServed) {
  const Folder folder;
  const Settings base = favourites(8).save(folder) + Settings{"scheduler.order_window=1", "scheduler.max_running=8"};
  const Simulated prefix = simulate(base + Settings{"scheduler.order=longest_prefix"});
  const Simulated fcfs = simulate(base);
  EXPECT_EQ(without_costs(prefix.report), without_costs(fcfs.report));
  EXPECT_EQ(prefix.requests_csv, fcfs.requests_csv);
}

}  // namespace
}  // namespace kvtwin::test
