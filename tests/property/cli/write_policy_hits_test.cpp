// Tests that `hitrate --write-policy` finds the hits of `simulate` with requests far apart, request by request.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/simulate.hpp"
#include "sim/bounds/instant_engine.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kBlock = 16;

using Hits = std::vector<std::pair<Tokens, Tokens>>;  // by request: on the device and on the host

class HitObserver final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind != EventKind::finished && event.kind != EventKind::rejected) return;
    ASSERT_EQ(event.record->request, hits.size());
    hits.emplace_back(event.record->hit[Tier::device], event.record->hit[Tier::host]);
    rejected += event.kind == EventKind::rejected ? 1 : 0;
  }
  Hits hits;
  std::uint64_t rejected = 0;
};

struct Case {
  std::string write_policy, eviction, evict_unit;
  std::uint64_t device_blocks = 0, host_blocks = 0;
  bool exclusive = false, sglang = false;
};

Experiment experiment_of(const Case& c, const std::string& trace) {
  Experiment experiment = Experiment::from_text("engine = \"none\"", "test");
  const std::string block = std::to_string(kBlock);
  for (const std::string& assignment :
       {"workload.trace=" + trace, "workload.block_tokens=" + block, "cache.page_tokens=" + block,
        "tiers.device.tokens=" + std::to_string(c.device_blocks * kBlock),
        "tiers.host.tokens=" + std::to_string(c.host_blocks * kBlock), "cache.write_policy=" + c.write_policy,
        "cache.eviction=" + c.eviction, "cache.evict_unit=" + c.evict_unit, std::string("sim.world=events"),
        std::string("scheduler.chunk_tokens=1000000000"),
        std::string("cache.tiering=") + (c.exclusive ? "exclusive" : "inclusive")}) {
    experiment.set(assignment);
  }
  if (c.sglang) apply_sglang_cache_rules(experiment, "test");
  return experiment;
}

Hits instant_hits(const Experiment& experiment) {
  InstantEngine engine(make_setup(experiment).engine);
  const std::unique_ptr<TraceSource> trace = open_workload(experiment);
  TraceInputSource source(*trace, input_options(experiment));
  Hits hits;
  for (Input input; source.next(input);) {
    if (const auto* const hint = std::get_if<Hint>(&input.what)) {
      engine.hint(*hint, input.now);
      continue;
    }
    const RequestRecord& record = engine.serve(std::get<Arrival>(input.what), input.now);
    hits.emplace_back(record.hit[Tier::device], record.hit[Tier::host]);
  }
  return hits;
}

// Compares the three ways. Returns the tokens that hit on the host.
Tokens compare(const Case& c, const std::string& trace) {
  const Experiment experiment = experiment_of(c, trace);
  HitObserver simulated;
  Observers observers;
  observers.events = &simulated;
  kvtwin::simulate(experiment, observers);
  EXPECT_EQ(instant_hits(experiment), simulated.hits);

  std::vector<std::string> words{"hitrate",
                                 "--trace",
                                 trace,
                                 "--trace-block-tokens",
                                 "16",
                                 "--capacity",
                                 std::to_string(c.device_blocks),
                                 "--host-capacity",
                                 std::to_string(c.host_blocks),
                                 "--eviction",
                                 c.eviction,
                                 "--write-policy",
                                 c.write_policy,
                                 "--evict-unit",
                                 c.evict_unit,
                                 "--json"};
  if (c.exclusive) words.emplace_back("--exclusive");
  if (c.sglang) words.emplace_back("--sglang-rules");
  const Json row = run(words).json();
  Tokens device = 0, host = 0;
  for (const auto& [on_device, on_host] : simulated.hits) {
    device += on_device;
    host += on_host;
  }
  EXPECT_EQ(row.at("requests"), simulated.hits.size());
  EXPECT_EQ(row.at("rejected"), simulated.rejected);
  EXPECT_EQ(row.at("device_hit_blocks").get<std::uint64_t>() * kBlock, device);
  EXPECT_EQ(row.at("host_hit_blocks").get<std::uint64_t>() * kBlock, host);
  EXPECT_EQ(row.at("write_policy"), c.write_policy);
  return host;
}

TEST(WritePolicyHits, EqualThoseOfASimulationWithRequestsFarApart) {
  std::map<std::string, Tokens> host_hits;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const Folder folder;
    conversations({.requests = 150, .block_tokens = kBlock, .least_gap_ms = 600'000}, seed).save(folder);
    Splitmix random(seed);
    for (const char* write_policy : {"write_through", "write_through_selective", "write_back"}) {
      for (const char* eviction : {"lru", "lfu", "slru", "fifo", "priority", "s3fifo"}) {
        Case c{write_policy, eviction, random.chance(2) ? "page" : "node"};
        c.device_blocks = random.between(80, 300);  // some requests do not fit into the smallest
        c.host_blocks = random.between(80, 900);
        c.exclusive = std::string(write_policy) == "write_back" && random.chance(3);
        c.sglang = random.chance(2);
        SCOPED_TRACE(c.write_policy + " " + c.eviction + " " + c.evict_unit + " seed " + std::to_string(seed) + " " +
                     std::to_string(c.device_blocks) + "+" + std::to_string(c.host_blocks) +
                     (c.exclusive ? " exclusive" : "") + (c.sglang ? " sglang" : ""));
        host_hits[write_policy] += compare(c, folder / "trace.jsonl");
        if (HasFailure()) return;
      }
    }
  }
  for (const auto& [write_policy, tokens] : host_hits) EXPECT_GT(tokens, 0U) << write_policy;
}

}  // namespace
}  // namespace kvtwin::test
