// Random simulated experiments in which an engine dies: with roles and without, with groups of attention and without,
// with all storage tiers and all prefetch policies, at any time of the run. A seed determines the experiment. Each
// request ends once, and so does each prefetch, also those of the dead engine.
//
//   KVTWIN_SWARM_SEED=123 build/tests/swarm_lab --gtest_filter='SimulatedDeaths*'  runs seed 123
//   KVTWIN_DEEP=1 build/tests/swarm_lab                                            runs ten times as many seeds
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "lab/simulate.hpp"
#include "policy/base/check.hpp"
#include "tests/program.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 100;
std::uint64_t current_seed = 0;

std::string reproduction() {
  return "reproduce: KVTWIN_SWARM_SEED=" + std::to_string(current_seed) +
         " build/tests/swarm_lab --gtest_filter='SimulatedDeaths*'";
}

void print_seed(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "broken promise: %s (%s, %s:%d)\n%s\n", sentence, condition, file, line, reproduction().c_str());
}

std::string pick(Splitmix& random, std::initializer_list<const char*> values) {
  return *(values.begin() + random.below(values.size()));
}

// Contexts that return, tiers that hold a few of them, and storage that is slow enough for prefetches to be open when
// the engine dies.
Experiment draw_experiment(Splitmix& random) {
  Experiment e = Experiment::from_text("engine = \"none\"", "random");
  const auto set = [&e](const std::string& key, const auto& value) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      e.set(key + "=" + std::to_string(value));
    } else {
      e.set(key + "=" + std::string(value));
    }
  };
  const auto in_ms = [](std::uint64_t ms) { return static_cast<double>(ms) / 1000; };
  set("sim.world", "events");
  set("seed", random.below(1000));
  set("model.name", "tiny");
  set("hardware.name", "cpu-host");
  set("workload.generate.kind", "returning");
  set("workload.generate.prompt_tokens", 256);
  set("workload.generate.question_tokens", 16);
  set("workload.generate.output_tokens", random.between(1, 8));
  set("workload.generate.working_set_tokens", 16384);
  set("workload.generate.visits", 6.0);
  set("workload.generate.prompt_tokens_per_second", static_cast<double>(random.between(10'000, 80'000)));
  set("workload.limit", 120);
  set("workload.loop", pick(random, {"open", "open", "closed"}));
  set("cache.page_tokens", 16);
  set("cache.write_policy", pick(random, {"write_through", "write_through", "write_back"}));
  set("cache.eviction", pick(random, {"lru", "tide"}));
  set("cache.prefetch_policy", pick(random, {"best_effort", "wait_complete", "timeout", "cost_stop"}));
  set("cache.prefetch_timeout_base_s", in_ms(random.between(1, 100)));
  set("cache.prefetch_min_tokens", 16);
  set("cache.path", pick(random, {"via_host", "via_host", "direct", "auto"}));
  set("scheduler.max_running", random.between(2, 16));
  set("tiers.device.tokens", random.between(100, 160) * 16);
  set("tiers.host.tokens", random.between(170, 300) * 16);
  const std::uint64_t ranks = random.between(1, 2);
  set("parallel.tp", ranks);
  if (ranks == 2 && random.chance(50)) {  // two groups of attention, which die together
    set("parallel.attention_dp", 2);
    set("parallel.attention_route", pick(random, {"round_robin", "least_loaded", "prefix_affinity"}));
  }
  const std::uint64_t kinds = random.between(1, 7);
  if ((kinds & 1) != 0) {
    set("tiers.disk.tokens", random.between(400, 4000) * 16);
    set("hardware.set.disk_read_gbps", in_ms(random.between(1, 30)));
  }
  if ((kinds & 2) != 0) {
    set("tiers.shared_fs.tokens", random.between(400, 4000) * 16);
    set("hardware.set.shared_fs_read_bandwidth", in_ms(random.between(1, 30)));
    set("hardware.set.shared_fs_latency", random.below(20'000));
  }
  if ((kinds & 4) != 0) {
    set("tiers.remote.tokens", random.between(400, 4000) * 16);
    set("hardware.set.remote_gbps", in_ms(random.between(1, 30)));
  }
  const std::uint64_t first = random.between(1, 3), second = random.between(1, 3);
  std::uint64_t engines = first + second;
  set("cluster.route", pick(random, {"round_robin", "prefix_affinity", "least_loaded", "score"}));
  std::uint64_t dies = random.below(engines);
  if (random.chance(60)) {
    set("cluster.prefill", first);
    set("cluster.decode", second);
    set("cluster.hand_over", pick(random, {"whole", "chunks", "layers"}));
    set("cluster.hand_over_min_tokens", random.chance(30) ? 280 : 0);
    // Another engine of its kind takes over.
    if (dies < first ? first == 1 : second == 1) dies = engines;
  } else {
    set("cluster.engines", engines);
  }
  if (dies < engines) {
    set("cluster.dead_engine", dies);
    set("cluster.dead_at_s", in_ms(random.below(1200)));
    set("cluster.detect_s", in_ms(random.below(400)));
  }
  return e;
}

// Adds what has happened to `counts`.
void run_seed(std::uint64_t seed, std::map<std::string, std::uint64_t>& counts) {
  current_seed = seed;
  Splitmix random(mix(seed) ^ 0xdead);
  const Json report = Json::parse(simulate(draw_experiment(random)).report);
  const Json& requests = report.at("requests");
  const auto count = [](const Json& of, const char* what) { return of.at(what).get<std::uint64_t>(); };
  EXPECT_EQ(count(requests, "completed") + count(requests, "rejected"), 120U) << requests;
  EXPECT_EQ(count(requests, "total"), 120U) << requests;
  const Json& prefetch = report.at("prefetch");
  EXPECT_EQ(count(prefetch, "open"), 0U) << prefetch;
  EXPECT_EQ(count(prefetch, "issued"), count(prefetch, "completed") + count(prefetch, "failed") +
                                           count(prefetch, "stopped") + count(prefetch, "revoked") +
                                           count(prefetch, "aborted") + count(prefetch, "engine_lost"))
      << prefetch;
  const Json& tokens = report.at("tokens");
  std::uint64_t parts = count(tokens, "recomputed_after_stop") + count(tokens, "miss");
  for (const char* tier : {"hit_device", "hit_host", "hit_disk", "hit_shared_fs", "hit_remote"}) {
    parts += count(tokens, tier);
  }
  EXPECT_EQ(count(tokens, "prompt"), parts) << tokens;
  for (const char* end : {"completed", "stopped", "revoked", "engine_lost"}) counts[end] += count(prefetch, end);
  if (report.contains("hand_overs")) {
    for (const char* what : {"sent_again", "fell_back"}) counts[what] += count(report.at("hand_overs"), what);
  }
}

TEST(SimulatedDeaths, EveryRequestAndEveryPrefetchEndsOnce) {
  set_check_handler(print_seed);
  std::map<std::string, std::uint64_t> counts;
  if (const char* one = std::getenv("KVTWIN_SWARM_SEED")) return run_seed(std::strtoull(one, nullptr, 10), counts);
  const std::uint64_t seeds = kSeeds * (std::getenv("KVTWIN_DEEP") != nullptr ? 10 : 1);
  for (std::uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) {
    try {
      run_seed(seed, counts);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) std::printf("%s\n", reproduction().c_str());
  }
  if (HasFailure()) return;
  for (const char* what : {"completed", "stopped", "revoked", "engine_lost", "sent_again", "fell_back"}) {
    EXPECT_GT(counts[what], 0U) << what << " never happened";
  }
}

}  // namespace
}  // namespace kvtwin::test
