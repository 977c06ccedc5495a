// Tests the value of hits: if a tier is faster than computing, a longer cached prefix never makes the TTFT longer. And
// a slower machine never makes the TTFT shorter.
//
// For one request alone on the machine, this is exact. Under load it does not hold for every request: batches form
// differently, and a hit may delay another request to the next pass (Graham's scheduling anomalies). So under load, the
// tests check the mean of a few runs.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/hardware_file.hpp"
#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kBlock = 512, kBlocks = 16;

// The first request fills the cache. The second one evicts it from the device (if there is room for one only). The
// third request runs alone, and shares `shared` blocks with the first.
TraceText last_shares(std::uint64_t shared) {
  TraceText trace(kBlock);
  trace.request(0, 1, ids(0, kBlocks));
  trace.request(100'000, 1, ids(1000, kBlocks));
  std::vector<std::uint64_t> last = ids(0, shared);
  const std::vector<std::uint64_t> rest = ids(2000, kBlocks - shared);
  last.insert(last.end(), rest.begin(), rest.end());
  trace.request(200'000, 1, last);
  return trace;
}

const Settings kRoomForOne{"tiers.device.tokens=8256"};  // one request and one page
const Settings kHost{"tiers.host.tokens=1000000"};

double last_ttft(const Simulated& run) {
  const Table requests(run.requests_csv);
  return requests.number(requests.row_of("request", 2), "ttft_s");
}

TEST(Hits, LongerPrefixOnTheDeviceIsNeverSlower) {
  double before = 1e9;
  for (std::uint64_t shared = 0; shared < kBlocks; ++shared) {
    const Folder folder;
    const Simulated run = simulate(last_shares(shared).save(folder));
    ASSERT_EQ(run.tokens("hit_device"), shared * kBlock);
    const double ttft = last_ttft(run);
    EXPECT_LT(ttft, before) << shared << " blocks";
    before = ttft;
  }
}

TEST(Hits, LongerPrefixOnTheHostIsNeverSlower) {
  double before = 1e9;
  for (std::uint64_t shared = 0; shared < kBlocks; ++shared) {
    const Folder folder;
    const Simulated run = simulate(last_shares(shared).save(folder) + kRoomForOne + kHost);
    ASSERT_EQ(run.tokens("hit_device") + run.tokens("hit_host"), shared * kBlock);
    ASSERT_GE(run.tokens("hit_host") + 64, shared * kBlock);
    const double ttft = last_ttft(run);
    EXPECT_LT(ttft, before) << shared << " blocks";
    before = ttft;
  }
}

// A host tier never makes a request that hits it slower than no host tier.
TEST(Hits, HostTierIsNeverSlowerThanNone) {
  for (const char* layout : {"layer_first", "page_first", "page_first_direct", "page_head"}) {
    for (const char* io : {"auto", "kernel"}) {  // not `direct`: loading single rows is slower than computing them
      const Folder folder;
      const Settings settings = last_shares(12).save(folder) + kRoomForOne +
                                Settings{std::string("cache.layout=") + layout, std::string("cache.io=") + io};
      EXPECT_LT(last_ttft(simulate(settings + kHost)), last_ttft(simulate(settings))) << layout << " " << io;
    }
  }
}

TEST(Hits, SlowerLinkNeverLowersTheTimeToFirstToken) {
  for (const char* layout : {"layer_first", "page_first", "page_first_direct", "page_head"}) {
    for (const char* io : {"auto", "kernel", "direct"}) {
      double before = 0;
      for (const double speed : {1.0, 0.7, 0.5, 0.25, 0.1, 0.02}) {
        const Folder folder;
        const std::string machine =
            hardware_setting(folder, "h100-sxm", "machine.json", [&](const std::string& key, const std::string&) {
              return key == "host_to_device" || key == "device_to_host" ? speed : 1.0;
            });
        const double ttft = last_ttft(
            simulate(last_shares(12).save(folder) + kRoomForOne + kHost +
                     Settings{machine, std::string("cache.layout=") + layout, std::string("cache.io=") + io}));
        EXPECT_GE(ttft, before) << layout << " " << io << " at " << speed;
        before = ttft;
      }
    }
  }
}

// If a speed of the machine gets smaller, or a time gets longer, the TTFT never gets shorter.
TEST(Hits, NoFigureOfTheMachineHelpsByGettingWorse) {
  const Folder folder;
  const Settings base = last_shares(12).save(folder) + kRoomForOne + kHost + Settings{"model.name=llama-3.1-8b"};
  const auto ttft_with = [&](const std::string& io, const std::function<double(const std::string&)>& factor) {
    const std::string file = hardware_setting(folder, "h100-sxm", "machine.json",
                                              [&](const std::string& key, const std::string&) { return factor(key); });
    return last_ttft(simulate(base + Settings{file, "cache.io=" + io}));
  };
  const Json machine = Json::parse(text_of(in_source("models/presets/hardware/h100-sxm.json")));
  for (const char* io : {"auto", "kernel", "direct"}) {
    const double plain = ttft_with(io, [](const std::string&) { return 1.0; });
    for (const auto& [key, number] : machine.at("numbers").items()) {
      const std::string name = key, unit = number.at("unit").get<std::string>();
      const bool speed = unit.ends_with("/s") || unit == "fraction", time = unit == "us";
      if (!speed && !time) continue;
      double before = plain;
      for (const double worse : {1.5, 3.0}) {
        const double ttft = ttft_with(io, [&](const std::string& figure) {
          return figure != name ? 1.0 : speed ? 1 / worse : worse;
        });
        EXPECT_GE(ttft, before) << name << " " << worse << " times worse, " << io;
        before = ttft;
      }
    }
  }
}

// Requests queue, and the host tier grows. Only host tiers larger than the device are tested: a backup holds its pages
// on the device until it completes, so a smaller host tier may lose more hits than it gains. The test compares the mean
// over all seeds, because hits also change the order of the requests, which may raise the mean of one seed.
TEST(Hits, MoreHitsUnderLoadDontRaiseTheMean) {
  constexpr std::array kHosts = {"0", "40000", "80000", "160000"};
  for (const char* order : {"fcfs", "longest_prefix"}) {
    std::map<std::string, double> ttft;  // by size of the host tier; sum over all seeds
    for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
      const Folder folder;
      const Settings base = conversations({.requests = 500, .gap_ms = 150}, seed).save(folder) +
                            Settings{std::string("scheduler.order=") + order, "tiers.device.tokens=20032"};
      std::uint64_t hits_before = 0;
      for (const char* host : kHosts) {
        const Simulated run = simulate(base + Settings{std::string("tiers.host.tokens=") + host});
        const std::uint64_t hits = run.tokens("hit_device") + run.tokens("hit_host");
        if (hits_before != 0) {
          EXPECT_GT(hits, hits_before) << host;
        }
        hits_before = hits;
        ttft[host] += run.mean_ttft();
      }
    }
    for (std::size_t i = 1; i < kHosts.size(); ++i) {
      EXPECT_LT(ttft[kHosts[i]], ttft[kHosts[i - 1]]) << order << " host " << kHosts[i];
    }
  }
}

TEST(Hits, SlowerLinkUnderLoadDoesNotLowerTheMean) {
  for (const std::uint64_t seed : {1U, 2U}) {
    const Folder folder;
    const Settings base = conversations({.requests = 500, .gap_ms = 150}, seed).save(folder) +
                          Settings{"tiers.device.tokens=20032", "tiers.host.tokens=262144"};
    double before = 0;
    for (const double speed : {1.0, 0.5, 0.25, 0.1, 0.03}) {
      const std::string machine =
          hardware_setting(folder, "h100-sxm", "machine.json", [&](const std::string& key, const std::string&) {
            return key == "host_to_device" || key == "device_to_host" || key == "dram_bandwidth" ? speed : 1.0;
          });
      const double ttft = simulate(base + Settings{machine}).mean_ttft();
      EXPECT_GT(ttft, 0.99 * before) << speed;
      before = ttft;
    }
  }
}

// If the machine is twice as fast everywhere, and arrivals are twice as fast, the same run takes half the time. This is
// not exact: every duration is rounded up to whole nanoseconds, and a pass that ends a nanosecond later may come after
// another input. With one request at a time there is no other input, so the decisions are equal, and the times are
// equal except for rounding.
double half_times(const std::string&, const std::string& unit) {
  if (unit.ends_with("/s")) return 2.0;
  return unit == "us" || unit == "ns" || unit == "ms" || unit == "s" ? 0.5 : 1.0;
}

TEST(Scaling, TwiceTheSpeedHalvesATimeAlone) {
  const Folder folder;
  const Settings base = conversations({.requests = 120, .least_gap_ms = 60'000}, 3).save(folder) +
                        Settings{"tiers.device.tokens=20032", "tiers.host.tokens=100032"};
  const Simulated plain = simulate(base);
  const Simulated fast = simulate(
      base + Settings{hardware_setting(folder, "h100-sxm", "fast.json", half_times), "workload.time_scale=0.5"});
  ASSERT_GT(plain.tokens("hit_host"), 0U);
  EXPECT_EQ(fast.digest(), plain.digest());
  EXPECT_EQ(fast.report.at("tokens"), plain.report.at("tokens"));
  EXPECT_EQ(fast.report.at("tiers"), plain.report.at("tiers"));
  const Table slow_requests(plain.requests_csv), fast_requests(fast.requests_csv);
  for (std::size_t row = 0; row < slow_requests.size(); ++row) {
    for (const char* column : {"ttft_s", "e2e_s", "queue_s", "load_wait_s", "compute_s"}) {
      // At most one pass per token, and each pass is rounded by less than a nanosecond in both runs.
      const double roundings = 2e-9 * (10.0 + slow_requests.number(row, "output_tokens"));
      ASSERT_NEAR(2 * fast_requests.number(row, column), slow_requests.number(row, column), roundings) << column;
    }
  }
}

TEST(Scaling, TwiceTheSpeedHalvesTheMeanUnderLoad) {
  const Folder folder;
  const Settings base = conversations({.requests = 500, .gap_ms = 150}, 4).save(folder) +
                        Settings{"tiers.device.tokens=20032", "tiers.host.tokens=100032"};
  const Simulated plain = simulate(base);
  const Simulated fast = simulate(
      base + Settings{hardware_setting(folder, "h100-sxm", "fast.json", half_times), "workload.time_scale=0.5"});
  EXPECT_NEAR(2 * fast.mean_ttft(), plain.mean_ttft(), 0.01 * plain.mean_ttft());
  const auto hits = [](const Simulated& run) {
    return static_cast<double>(run.tokens("hit_device") + run.tokens("hit_host"));
  };
  EXPECT_NEAR(hits(fast), hits(plain), 0.01 * hits(plain));
}

}  // namespace
}  // namespace kvtwin::test
