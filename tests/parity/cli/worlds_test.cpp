// The two simulated worlds (SimGrid and the event heap) compute times independently. Without shared links, a SimGrid
// flow has its lane to itself, which is what the event heap assumes. So all decisions, and all times of all requests,
// must be equal to the nanosecond.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/simulation.hpp"

#if KVTWIN_TEST_SIMGRID
namespace kvtwin::test {
namespace {

struct Model {
  const char* name;
  std::uint64_t
      token_bytes;  // KV bytes per token of all ranks together (equal for tp 1 to 4, except for an MLA latent)
  bool latent;
};
constexpr Model kModels[] = {{"llama-3.1-8b", 131'072, false},
                             {"qwen3-32b", 262'144, false},
                             {"qwen3-coder-30b-a3b", 98'304, false},
                             {"tiny", 512, false},
                             {"deepseek-v3", 70'272, true}};
constexpr const char* kHardware[] = {"h200-sxm", "b200-sxm", "gb200"};

template <typename List>
const auto& one_of(const List& list, Splitmix& random) {
  return list[random.below(std::size(list))];
}

std::string key(const std::string& name, std::uint64_t value) { return name + "=" + std::to_string(value); }

// Returns random settings. Some tiers hold only a few prompts, so that evictions, load-backs, retractions and
// rejections happen.
Settings draw(std::uint64_t seed, const Folder& folder) {
  Splitmix random(seed);
  Conversations c;
  c.requests = random.between(150, 350);
  c.block_tokens = random.chance(30) ? 512 : 64;
  if (c.block_tokens == 512) c.first_blocks = 6, c.growth_blocks = 2;
  c.gap_ms = random.between(10, 400);
  c.output = 20ULL << random.below(6);
  const std::uint64_t longest = (8 + 2 * c.first_blocks + 40 * c.growth_blocks) * c.block_tokens;

  Settings settings = conversations(c, seed).save(folder);
  const Model& model = one_of(kModels, random);
  static constexpr std::uint64_t kPages[] = {1, 16, 48, 64, 512};
  static constexpr std::uint64_t kRanks[] = {1, 2, 4};
  static constexpr const char* kScales[] = {"0.2", "0.5", "1", "1.7", "4"};
  const std::uint64_t page = one_of(kPages, random), ranks = one_of(kRanks, random);
  const bool latent = model.latent;
  static constexpr const char* kLayouts[] = {"layer_first", "page_first", "page_first_direct", "page_head"};
  const std::string layout = kLayouts[random.below(latent ? 3 : 4)];
  // DeepSeek-V3's weights need eight of these GPUs. It can run on fewer here because the size of the device tier is
  // set.
  settings = settings + Settings{"sim.dram_shared=false",
                                 "sim.both_ways_shared=false",
                                 std::string("model.name=") + model.name,
                                 std::string("hardware.name=") + one_of(kHardware, random),
                                 key("parallel.tp", ranks),
                                 std::string("workload.time_scale=") + one_of(kScales, random),
                                 key("cache.page_tokens", page),
                                 "cache.layout=" + layout,
                                 std::string("cache.io=") + (random.chance(50)   ? "auto"
                                                             : random.chance(50) ? "kernel"
                                                                                 : "direct"),
                                 std::string("cache.evict_unit=") + (random.chance(30) ? "node" : "page"),
                                 std::string("cache.eviction=") + (random.chance(30) ? "fifo" : "lru"),
                                 key("cache.write_threshold", random.between(1, 2)),
                                 std::string("cache.output=") + (random.chance(80) ? "true" : "false"),
                                 key("cache.load_back_quota_tokens", random.chance(20) ? 2048 : 0),
                                 std::string("scheduler.order=") + (random.chance(40) ? "longest_prefix" : "fcfs"),
                                 key("scheduler.order_window", random.between(1, 64)),
                                 key("scheduler.overtake_limit", random.between(0, 32)),
                                 key("scheduler.chunk_tokens", 512ULL << random.below(5)),
                                 key("scheduler.max_running", random.between(1, 64)),
                                 key("scheduler.burst_steps", random.between(1, 64)),
                                 key("tiers.device.tokens", random.between(longest / 4, 2 * longest))};
  if (random.chance(85)) settings.push_back(key("tiers.host.tokens", random.between(page, 8 * longest)));
  if (random.chance(40)) {
    settings.emplace_back("cache.write_policy=write_back");
    settings.push_back(std::string("cache.tiering=") + (random.chance(50) ? "exclusive" : "inclusive"));
  }
  if (random.chance(20)) settings.emplace_back("cache.rules.reclaim_shadowed=true");
  return settings;
}

class Worlds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Worlds, DecideAndTimeAlikeWithoutSharedLinks) {
  const Folder folder;
  const Settings settings = draw(GetParam(), folder);
  std::string shown;
  for (const std::string& setting : settings) shown += " --set " + setting;
  SCOPED_TRACE("kvtwin simulate" + shown);
  const Simulated flows = simulate(settings, "simgrid");
  const Simulated events = simulate(settings, "events");
  EXPECT_EQ(flows.digest(), events.digest());
  EXPECT_EQ(flows.requests_csv, events.requests_csv);
  EXPECT_EQ(flows.lanes_csv, events.lanes_csv);
  Json a = without_costs(flows.report), b = without_costs(events.report);
  a.erase("world");
  b.erase("world");
  EXPECT_EQ(a, b);
  EXPECT_EQ(flows.requests("failed"), 0U);
}

INSTANTIATE_TEST_SUITE_P(BySeed, Worlds, testing::Range<std::uint64_t>(1, 33));

// The random settings must reach every mechanism that could differ; otherwise the equality would prove little.
TEST(WorldDraws, ReachEveryMechanism) {
  std::uint64_t host_hits = 0, retractions = 0, rejected = 0, evicted_host = 0, dropped = 0, waits = 0,
                written_back = 0;
  for (std::uint64_t seed = 1; seed < 33; ++seed) {
    const Folder folder;
    const Simulated run = simulate(draw(seed, folder), "events");
    host_hits += run.tokens("hit_host") > 0;
    retractions += run.requests("retractions") > 0;
    rejected += run.requests("rejected") > 0;
    evicted_host += run.tier("host").at("evicted_pages").get<std::uint64_t>() > 0;
    dropped += !run.tier("host").at("dropped").empty();
    written_back += run.report.at("backups").at("awaited").get<std::uint64_t>() > 0;
    waits += run.report.at("ttft_parts_seconds").at("load_wait").get<double>() > 0;
  }
  EXPECT_GE(host_hits, 8U);
  EXPECT_GE(retractions, 4U);
  EXPECT_GE(rejected, 2U);
  EXPECT_GE(evicted_host, 8U);
  EXPECT_GE(dropped, 2U);
  EXPECT_GE(waits, 2U);
  EXPECT_GE(written_back, 2U);
}

// Where links share bandwidth, the two worlds must differ: eight GPUs together need more bandwidth than the host memory
// has.
TEST(SharedLinks, MemoryBandwidthShows) {
  const Folder folder;
  const Settings busy = conversations({.requests = 250, .gap_ms = 60}, 1).save(folder) +
                        Settings{"parallel.tp=8", "tiers.device.tokens=20032", "tiers.host.tokens=60032"};
  const Simulated flows = simulate(busy, "simgrid");
  const Simulated events = simulate(busy, "events");
  EXPECT_TRUE(flows.requests_csv != events.requests_csv);
}

}  // namespace
}  // namespace kvtwin::test
#endif
