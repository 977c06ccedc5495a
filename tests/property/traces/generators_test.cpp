// Compares generated traces, over several seeds, with the published numbers that they imitate, and random draws with
// the moments of their distributions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "traces/agents.hpp"
#include "traces/arrivals.hpp"
#include "traces/info.hpp"
#include "traces/random.hpp"
#include "traces/tools.hpp"

namespace kvtwin {
namespace {

template <class Number>
double quantile(std::vector<Number> values, double share) {
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))]);
}

std::uint64_t fingerprint(TraceSource& source) {
  TraceRequest r;
  std::uint64_t h = 0;
  const auto add = [&h](std::uint64_t value) { h = mix64(h + 0x9e3779b97f4a7c15ULL + value); };
  while (source.next(r)) {
    add(static_cast<std::uint64_t>(r.arrival));
    add(r.input);
    add(r.output);
    add(r.session);
    add(r.turn);
    add(r.type);
    for (const std::uint64_t id : r.blocks) add(id);
  }
  return h;
}

// Expects that requests are in order of time and have as many blocks as their input needs, and that each block always
// has the same position and the same block before it.
void expect_proper(TraceSource& source, TimeNs duration) {
  TraceRequest r;
  TimeNs time = 0;
  std::map<std::uint64_t, std::uint64_t> parents;
  while (source.next(r)) {
    ASSERT_GE(r.arrival, time);
    time = r.arrival;
    ASSERT_LT(time, duration);
    ASSERT_GE(r.output, 1U);
    ASSERT_EQ(r.blocks.size(), (r.input - 1) / source.block_tokens() + 1);
    std::uint64_t parent = ~std::uint64_t{0};
    for (const std::uint64_t id : r.blocks) {
      ASSERT_EQ(parents.emplace(id, parent).first->second, parent) << "a block has one parent";
      parent = id;
    }
  }
  EXPECT_GT(parents.size(), 1'000U);
}

TEST(RandomProperty, GammaHasItsMoments) {
  Random random(11);
  for (const double shape : {0.04, 0.25, 0.7, 1.0, 1.5, 8.0}) {
    constexpr int kDraws = 400'000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double x = random.gamma(shape);
      ASSERT_GE(x, 0.0);
      sum += x;
      squares += x * x;
    }
    const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
    EXPECT_NEAR(mean, shape, 5 * std::sqrt(shape / kDraws));
    // The fourth moment: kurtosis 3 + 6 / shape.
    EXPECT_NEAR(variance, shape, 5 * shape * std::sqrt((2 + 6 / shape) / kDraws));
  }
}

TEST(RandomProperty, WeibullHasItsQuantiles) {
  Random random(12);
  for (const double shape : {0.3113407284243254, 0.5, 1.0, 3.0}) {
    std::vector<double> draws(100'000);
    for (double& x : draws) x = random.weibull(shape);
    for (const double share : {0.1, 0.5, 0.9}) {
      const double below = std::pow(-std::log(1 - share), 1 / shape);
      const auto count = std::count_if(draws.begin(), draws.end(), [&](double x) { return x < below; });
      EXPECT_NEAR(static_cast<double>(count) / 100'000, share, 4.5 * std::sqrt(share * (1 - share) / 100'000));
    }
  }
}

TEST(ClientArrivalsProperty, AFewClientsSendMostOfItInBursts) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    constexpr std::size_t kClients = 60;
    constexpr int kCount = 400'000;
    ClientArrivals arrivals(seed, kClients, 10.0);
    std::vector<std::uint64_t> counts(kClients);
    std::vector<std::vector<TimeNs>> times(kClients);
    TimeNs last = 0;
    for (int i = 0; i < kCount; ++i) {
      const ClientArrivals::Arrival arrival = arrivals.peek();
      ASSERT_GE(arrival.time, last);
      last = arrival.time;
      ++counts[arrival.client];
      times[arrival.client].push_back(arrival.time);
      arrivals.pop();
    }
    EXPECT_NEAR(static_cast<double>(kCount) / (static_cast<double>(last) / 1e9), 10.0, 0.4);
    const auto five = counts[0] + counts[1] + counts[2] + counts[3] + counts[4];
    EXPECT_NEAR(static_cast<double>(five) / kCount, 0.488, 0.03);
    for (std::size_t client = 0; client < 3; ++client) {
      double sum = 0, squares = 0;
      for (std::size_t i = 1; i < times[client].size(); ++i) {
        const auto gap = static_cast<double>(times[client][i] - times[client][i - 1]) / 1e9;
        sum += gap;
        squares += gap * gap;
      }
      const auto n = static_cast<double>(times[client].size() - 1);
      const double variation = std::sqrt(squares / n - sum / n * sum / n) / (sum / n);
      EXPECT_GT(variation, 1.8);
      EXPECT_LT(variation, 5.8);
    }
  }
}

// The measured hour (by third parties): 23,608 requests in 3,537 s, 183,300 different blocks.
TEST(ToolsGeneratorProperty, LooksLikeTheMeasuredHour) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    ToolsConfig config;
    config.seed = seed;
    config.duration = 3'537 * kNsPerSecond;
    ToolsGenerator generator(config);
    const TraceInfo info = trace_info(generator);
    EXPECT_NEAR(static_cast<double>(info.requests), 23'608.0, 2'000.0);
    EXPECT_NEAR(info.input.mean, 8'596.0, 700.0);
    EXPECT_NEAR(static_cast<double>(info.input.p50), 6'346.0, 400.0);
    EXPECT_NEAR(static_cast<double>(info.input.p99), 61'525.0, 9'000.0);
    EXPECT_NEAR(info.output.mean, 182.0, 25.0);
    EXPECT_NEAR(static_cast<double>(info.output.p50), 30.0, 15.0);
    EXPECT_NEAR(info.ideal_block_hit_ratio, 0.5525, 0.025);
    EXPECT_NEAR(static_cast<double>(info.unique_blocks), 183'300.0, 22'000.0);
  }
}

struct Figures {
  std::vector<Tokens> first_inputs;
  std::vector<std::uint64_t> lengths;  // requests per session
  std::vector<double> tool_gaps, user_gaps;
  std::uint64_t users = 0, requests = 0, kept = 0, shrunk = 0, followed = 0;
  std::map<std::uint64_t, std::uint64_t> prefixes;  // first block to number of sessions
};

Figures measure(AgentsGenerator& generator) {
  Figures f;
  TraceRequest r;
  std::map<std::uint64_t, TraceRequest> last;
  while (generator.next(r)) {
    ++f.requests;
    f.users += r.type == 1 ? 1 : 0;
    TraceRequest& before = last[r.session];
    if (r.turn == 1) {
      f.first_inputs.push_back(r.input);
      ++f.prefixes[r.blocks[0]];
    } else {
      ++f.followed;
      const std::size_t full = static_cast<std::size_t>(before.input / AgentsGenerator::kBlockTokens);
      const bool kept =
          r.blocks.size() >= full &&
          std::equal(r.blocks.begin(), r.blocks.begin() + static_cast<std::ptrdiff_t>(full), before.blocks.begin());
      f.kept += kept ? 1 : 0;
      f.shrunk += 10 * r.input < 9 * before.input ? 1 : 0;
      (r.type == 1 ? f.user_gaps : f.tool_gaps).push_back(static_cast<double>(r.arrival - before.arrival) / 1e9);
    }
    before = r;
  }
  for (const auto& [session, request] : last) f.lengths.push_back(request.turn);
  return f;
}

// Measured were 710 sessions with 48,658 requests. The generated trace is long enough that nearly all sessions end.
TEST(AgentsGeneratorProperty, LooksLikeTheMeasuredSessions) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    AgentsConfig config;
    config.seed = seed;
    config.requests = 60'000;
    config.duration = 0;
    config.sessions_per_second = 1.0 / 600;
    AgentsGenerator generator(config);
    const Figures f = measure(generator);
    EXPECT_NEAR(quantile(f.lengths, 0.5), 45.0, 15.0);
    EXPECT_NEAR(quantile(f.lengths, 0.9), 156.0, 40.0);
    EXPECT_NEAR(quantile(f.first_inputs, 0.5), 24'500.0, 5'000.0);
    EXPECT_NEAR(quantile(f.first_inputs, 0.25), 18'600.0, 2'500.0);
    EXPECT_NEAR(quantile(f.first_inputs, 0.75), 104'000.0, 45'000.0);
    EXPECT_NEAR(static_cast<double>(f.users) / static_cast<double>(f.requests), 0.135, 0.03);
    // The gaps, in seconds, from one request to the next one.
    EXPECT_NEAR(quantile(f.tool_gaps, 0.5), 17.0, 5.0);
    EXPECT_NEAR(quantile(f.tool_gaps, 0.9), 95.0, 25.0);
    EXPECT_NEAR(quantile(f.user_gaps, 0.5), 22.0, 20.0);
    EXPECT_NEAR(quantile(f.user_gaps, 0.75), 135.0, 40.0);
    EXPECT_NEAR(quantile(f.user_gaps, 0.9), 612.0, 180.0);
    EXPECT_GT(static_cast<double>(f.kept) / static_cast<double>(f.followed), 0.95);
    EXPECT_NEAR(static_cast<double>(f.shrunk) / static_cast<double>(f.followed), 0.007, 0.004);
    // The 710 measured sessions have 343 different prefixes; the most frequent one occurs 25 times.
    std::uint64_t commonest = 0;
    for (const auto& [block, count] : f.prefixes) commonest = std::max(commonest, count);
    const double per_session = 1.0 / static_cast<double>(f.first_inputs.size());
    EXPECT_NEAR(static_cast<double>(f.prefixes.size()) * per_session, 343.0 / 710, 0.08);
    EXPECT_NEAR(static_cast<double>(commonest) * per_session, 25.0 / 710, 0.02);
  }
}

TEST(AgentsGeneratorProperty, ReusesAsMuchAsMeasured) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    AgentsConfig config;
    config.seed = seed;
    config.duration = 7'200 * kNsPerSecond;
    AgentsGenerator generator(config);
    const TraceInfo info = trace_info(generator);
    EXPECT_NEAR(info.ideal_block_hit_ratio, 0.9553, 0.02);
    EXPECT_NEAR(static_cast<double>(info.requests), 9'284, 2'500) << "of 240 sessions begun within two hours";
    EXPECT_NEAR(static_cast<double>(info.input.p50), 81'000, 30'000);
    EXPECT_NEAR(static_cast<double>(info.output.p50), 212, 60);
    EXPECT_NEAR(static_cast<double>(info.output.p90), 836, 200);
  }
}

TEST(Generators, MakeProperTraces) {
  AgentsConfig agents;
  agents.seed = 5;
  AgentsGenerator coding(agents);
  expect_proper(coding, agents.duration);
  ToolsConfig applications;
  applications.seed = 5;
  ToolsGenerator tools(applications);
  expect_proper(tools, applications.duration);
}

// The generators make the same bytes on every machine. The expected numbers were computed once, on one machine.
TEST(Generators, AreTheSameEverywhere) {
  AgentsGenerator coding{AgentsConfig{}};
  EXPECT_EQ(fingerprint(coding), 8412020430036347978U);
  ToolsGenerator tools{ToolsConfig{}};
  EXPECT_EQ(fingerprint(tools), 11257289402313751502U);
}

TEST(Generators, EndWhereTheyAreTold) {
  const auto count = [](TraceSource& source) {
    TraceRequest r;
    std::uint64_t n = 0;
    while (n < 20'000 && source.next(r)) ++n;
    return n;
  };
  for (const std::uint64_t requests : {1U, 777U}) {
    AgentsGenerator coding{AgentsConfig{1, requests, 0}};
    EXPECT_EQ(count(coding), requests);
    ToolsGenerator tools{ToolsConfig{1, requests, 0}};
    EXPECT_EQ(count(tools), requests);
  }
  AgentsGenerator none{AgentsConfig{1, 0, 1}};
  EXPECT_EQ(count(none), 0U);
  ToolsGenerator endless{ToolsConfig{1, 0, 0}};
  EXPECT_EQ(count(endless), 20'000U);
  EXPECT_THROW(AgentsGenerator(AgentsConfig{1, 0, 0, 0.0}), TraceError);
  EXPECT_THROW(ToolsGenerator(ToolsConfig{1, 0, 0, -1.0}), TraceError);
}

}  // namespace
}  // namespace kvtwin
