// report.bounds: no run has more hits than the bound, whatever its settings, and a run with space for all pages has
// exactly as many.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/eviction.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

const Settings kBounds{"report.bounds=true"};

std::uint64_t hits_of(const Simulated& run) {
  return run.tokens("hit_device") + run.tokens("hit_host") + run.tokens("hit_disk") + run.tokens("hit_remote");
}

std::uint64_t bound_of(const Simulated& run, const char* key) {
  return run.report.at("bounds").at(key).get<std::uint64_t>();
}

void expect_bounded(const Simulated& run, const std::string& what) {
  const std::uint64_t opt = bound_of(run, "eviction_opt_hit_tokens"), lru = bound_of(run, "lru_hit_tokens");
  EXPECT_LE(hits_of(run), opt) << what;
  EXPECT_LE(lru, opt) << what;
  EXPECT_GT(opt, 0U) << what;
  if (opt == lru) {
    EXPECT_TRUE(run.report.at("bounds").at("gap_closed").is_null()) << what;
  } else {
    const double gap = static_cast<double>(opt - lru);
    const double beyond = static_cast<double>(hits_of(run)) - static_cast<double>(lru);
    EXPECT_EQ(run.report.at("bounds").at("gap_closed").get<double>(), beyond / gap) << what;
  }
  const double saved = run.report.at("bounds").at("net_saved_seconds"),
               most = run.report.at("bounds").at("net_saved_seconds_max");
  EXPECT_LE(saved, most) << what;
  EXPECT_GT(most, 0) << what;
}

TEST(ReportBounds, NoRunHitsMore) {
  const Settings one_tier{"tiers.device.tokens=20032"}, two = one_tier + Settings{"tiers.host.tokens=30016"};
  const Settings disk = two + Settings{"tiers.disk.tokens=60032"};
  std::vector<Settings> machines{
      one_tier,
      two,
      two + Settings{"cache.write_policy=write_back"},
      two + Settings{"cache.evict_unit=node"},
      two + Settings{"scheduler.order=longest_prefix"},
      two + Settings{"scheduler.chunk_tokens=512"},
      two + Settings{"cache.output=false"},
      two + Settings{"parallel.tp=2", "parallel.rank_model=instances"},
      two + Settings{"cluster.engines=2"},
      disk,
      disk + Settings{"cache.prefetch_min_tokens=64", "cache.prefetch_policy=wait_complete"},
      disk + Settings{"cluster.engines=2", "cluster.route=prefix_affinity", "tiers.remote.tokens=40000"},
      disk + Settings{"tiers.remote.tokens=80000", "cache.prefetch_min_tokens=64", "hardware.set.disk_read_gbps=0.5"},
      disk + Settings{"cache.prefetch_min_tokens=64", "cache.path=direct"},
      disk + Settings{"cache.prefetch_min_tokens=64", "cache.path=auto"},
      two + Settings{"hardware.set.host_link_gbps=0.5"},
  };
  for (const std::string_view eviction : eviction_names()) {
    machines.push_back(two + Settings{"cache.eviction=" + std::string(eviction)});
  }
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Folder folder;
    const Settings trace = conversations({.requests = 250, .gap_ms = 60}, seed).save(folder);
    for (const Settings& machine : machines) {
      std::string what = "seed " + std::to_string(seed);
      for (const std::string& setting : machine) what += ", " + setting;
      expect_bounded(simulate(trace + machine + kBounds), what);
    }
  }
}

// Models with states: whatever the cache decides, its states bound its hits, and not more loosely than its pages.
TEST(ReportBounds, NoRunHitsMoreThanItsStatesAllow) {
  const Settings model{"model.name=qwen3-next-80b-a3b", "cache.page_tokens=64"};
  std::vector<Settings> machines;
  for (const char* size : {"tiers.device.gib=2", "tiers.device.gib=6"}) {
    for (const char* states : {"tiers.device.states=6", "tiers.device.states=10", "tiers.device.states=20"}) {
      const Settings machine = model + Settings{size, states};
      for (const char* setting : {"cache.pool_eviction=lru", "cache.pool_eviction=work_per_byte",
                                  "cache.state_points=overlap(states=6, apart=64)", "tiers.host.ratio=1",
                                  "cluster.engines=2", "cache.states_per_path=1", "scheduler.chunk_tokens=512"}) {
        machines.push_back(machine + Settings{setting});
      }
      machines.push_back(machine + Settings{"cache.pool_eviction=work_per_byte", "cache.state_points=overlap(apart=64)",
                                            "tiers.host.ratio=2"});
    }
  }
  std::uint64_t tighter = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Folder folder;
    const Settings trace = conversations({.requests = 250, .gap_ms = 60}, seed).save(folder);
    for (const Settings& machine : machines) {
      std::string what = "seed " + std::to_string(seed);
      for (const std::string& setting : machine) what += ", " + setting;
      const Simulated run = simulate(trace + machine + kBounds);
      expect_bounded(run, what);
      const std::uint64_t most = bound_of(run, "states_opt_hit_tokens");
      EXPECT_LE(hits_of(run), most) << what;
      EXPECT_LE(most, bound_of(run, "eviction_opt_hit_tokens")) << what;
      tighter += most < bound_of(run, "eviction_opt_hit_tokens");
    }
  }
  EXPECT_GT(tighter, 10U);
}

double of_prefetches(const Simulated& run, const char* key) {
  return run.report.at("bounds").at("prefetch").at(key).get<double>();
}

// Whatever rule ends a prefetch: a choice made with the knowledge of when its pages arrive is at least as good.
TEST(ReportBounds, NoStopIsBetterThanTheBest) {
  double waited = 0, could_have = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Folder folder;
    const Settings trace = conversations({.requests = 250, .gap_ms = 60}, seed).save(folder);
    for (const char* stop : {"best_effort", "wait_complete", "timeout", "cost_stop"}) {
      for (const char* rate : {"0.2", "2", "20"}) {
        const Simulated run =
            simulate(trace + kBounds +
                     Settings{"tiers.device.tokens=12032", "tiers.host.tokens=16000", "tiers.disk.tokens=200000",
                              "cache.prefetch_min_tokens=64", "hardware.set.disk_read_gbps=" + std::string(rate),
                              "cache.prefetch_policy=" + std::string(stop)});
        const std::string what = std::string(stop) + ", " + rate + " GB/s, seed " + std::to_string(seed);
        ASSERT_GT(of_prefetches(run, "requests"), 10) << what;
        EXPECT_LE(of_prefetches(run, "ttft_seconds_best_stop"), of_prefetches(run, "ttft_seconds")) << what;
        EXPECT_GE(of_prefetches(run, "ttft_seconds_best_stop"), 0) << what;
        EXPECT_GE(of_prefetches(run, "wait_seconds_best_stop"), 0) << what;
        if (std::string_view(stop) != "wait_complete") continue;
        waited += of_prefetches(run, "wait_seconds");
        could_have += of_prefetches(run, "wait_seconds_best_stop");
        EXPECT_LE(of_prefetches(run, "wait_seconds_best_stop"), of_prefetches(run, "wait_seconds")) << what;
      }
    }
  }
  EXPECT_LT(could_have, waited / 2) << "at 0.2 GB/s nobody should wait";
}

// Long outputs on a small device tier: requests are retracted and run a second time. The bound must hold all the same.
TEST(ReportBounds, RetractedRequestsAreNoExcuse) {
  std::uint64_t retractions = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Folder folder;
    const Settings trace = conversations({.requests = 150, .output = 800, .gap_ms = 20}, seed).save(folder);
    const Simulated run = simulate(trace + Settings{"tiers.device.tokens=12032", "tiers.host.tokens=16000"} + kBounds);
    retractions += run.requests("retractions");
    expect_bounded(run, "seed " + std::to_string(seed));
  }
  EXPECT_GT(retractions, 20U);
}

TEST(ReportBounds, WithRoomForAllEverythingIsHit) {
  const Folder folder;
  const Settings trace = conversations({.requests = 200, .least_gap_ms = 10'000}, 1).save(folder);
  const Simulated run = simulate(trace + Settings{"tiers.device.tokens=2000000"} + kBounds);
  EXPECT_EQ(hits_of(run), bound_of(run, "eviction_opt_hit_tokens"));
  EXPECT_EQ(hits_of(run), bound_of(run, "lru_hit_tokens"));
  expect_bounded(run, "room for all");
}

// Requests A, B, A, one after another, with space for one of them plus one page. The last page of a prompt is never hit
// completely, because the last token is always computed.
TEST(ReportBounds, ByHand) {
  const Folder folder;
  TraceText trace(64);
  trace.request(0, 1, ids(0, 10));
  trace.request(60'000, 1, ids(100, 10));
  trace.request(120'000, 1, ids(0, 10));
  const Simulated run = simulate(trace.save(folder) + Settings{"tiers.device.tokens=768"} + kBounds);
  EXPECT_EQ(bound_of(run, "eviction_opt_hit_tokens"), 9 * 64U);
  EXPECT_EQ(bound_of(run, "lru_hit_tokens"), 2 * 64U) << "12 pages: B's 10 and two of A's";
  expect_bounded(run, "by hand");
}

TEST(ReportBounds, OffUnlessAskedFor) {
  const Folder folder;
  const Settings trace = conversations({.requests = 30}, 1).save(folder);
  EXPECT_FALSE(simulate(trace).report.contains("bounds"));
}

}  // namespace
}  // namespace kvtwin::test
