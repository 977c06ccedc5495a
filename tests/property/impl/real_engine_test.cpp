// Runs engines in the real world, with random traffic, tiers so small that every event occurs, storage tiers in a map
// or in segments of a folder, and injected failures. The contract of the seam must hold at every call and input, the
// invariants of the engine after every input, and no pass may read a wrong byte.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "impl/disk/segment_store.hpp"
#include "impl/world.hpp"
#include "policy/engine.hpp"
#include "policy/index/page_key.hpp"
#include "policy/seam/decorators.hpp"
#include "tests/conformance/impl/memory_backend.hpp"
#include "tests/device_under_test.hpp"
#include "tests/engine_traffic.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/program.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSeeds = 100,
                        kLeastSeeds = 25;  // a seed has two runs: the second finds the stored pages of the first

// Counts of all decisions and events, over all seeds.
struct Happened final : DecisionSink, Observer {
  void decided(const Decision& decision) override { ++decisions[static_cast<std::size_t>(decision.kind)]; }
  void on_event(const Event& event) override { ++events[static_cast<std::size_t>(event.kind)]; }
  std::uint64_t count(DecisionKind kind) const { return decisions[static_cast<std::size_t>(kind)]; }
  std::uint64_t count(EventKind kind) const { return events[static_cast<std::size_t>(kind)]; }
  std::array<std::uint64_t, 64> decisions{}, events{};
  std::uint64_t pages_read = 0, pages_audited = 0, stores = 0;
  std::array<std::uint64_t, 12> faults{};  // count of each kind of fault
};

// Checks the invariants of the engine after every input.
class Inspecting final : public InputHandler {
 public:
  explicit Inspecting(Engine& engine) : engine_(engine) {}
  void handle(const Input& input) override {
    engine_.handle(input);
    engine_.check_invariants();
  }

 private:
  Engine& engine_;
};

enum class Faults : std::uint8_t { none, some };

// The media of the storage tiers of one seed.
struct Stores {
  PageMap disk, remote;
  std::unique_ptr<Folder> folder;
};

std::vector<std::unique_ptr<TierQueues>> open_storage(const EngineConfig& config, Stores& stores, Splitmix& rng,
                                                      PageMemory& memory) {
  std::vector<std::unique_ptr<TierQueues>> tiers;
  for (const StorageTierConfig& tier : config.storage) {
    const PageForm form = memory.form();
    std::unique_ptr<StorageBackend> backend;
    if (tier.tier == Tier::disk && stores.folder) {
      SegmentStoreConfig segments;
      segments.folder = *stores.folder / "disk";
      segments.capacity_pages = tier.pages;
      segments.form = form;
      segments.direct = memory.direct();
      segments.depth = static_cast<std::uint32_t>(rng.between(1, 8));
      backend = std::make_unique<SegmentStore>(segments);
    } else {
      backend =
          std::make_unique<MemoryBackend>(tier.tier == Tier::disk ? stores.disk : stores.remote, form, tier.pages);
    }
    tiers.push_back(std::make_unique<TierQueues>(tier.tier, std::move(backend), memory));
  }
  return tiers;
}

// Returns the count of each kind of fault, so that the suite can check that each kind occurred.
std::array<std::uint64_t, 12> counts_of(const FaultCounts& c) {
  return {c.failed_transfers, c.failed_gates, c.cut_bursts,  c.read_errors, c.short_reads, c.corrupt_pages,
          c.write_errors,     c.full,         c.lost_writes, c.link_down,   c.late,        c.cancels};
}

void serve(std::uint64_t seed, Faults faults, Stores& stores, Happened& happened) {
  Splitmix rng(mix(seed));
  EngineConfig config = random_real_engine(rng, 1);
  draw_storage(rng, config);
  config.storage_space = storage_space({.model = "real"});

  HostDeviceConfig device;
  device.shape = config.shape;
  device.host_layout = config.host_layout;
  device.device_pages = config.device_pages;
  device.host_pages = config.host_pages;
  if (rng.chance(30)) {
    device.hidden = static_cast<std::uint32_t>(rng.between(1, 40));
    device.width = static_cast<std::uint32_t>(rng.between(1, 80));
    device.pair_work = static_cast<std::uint32_t>(rng.below(20));
  }
  std::unique_ptr<Device> host = make_test_device(device);
  std::vector<std::unique_ptr<TierQueues>> tiers = open_storage(config, stores, rng, host->memory());
  happened.stores += tiers.size();
  const std::unique_ptr<RealWorld> world = make_real_world(std::move(host), std::move(tiers));

  FaultShares shares;
  if (faults == Faults::some) {
    shares.failed_transfers = static_cast<std::uint32_t>(rng.below(300));
    shares.cut_bursts = static_cast<std::uint32_t>(rng.below(600));
    for (std::uint32_t* share : {&shares.read_errors, &shares.short_reads, &shares.corrupt_pages, &shares.write_errors,
                                 &shares.full, &shares.lost_writes, &shares.link_down, &shares.late, &shares.cancels}) {
      *share = rng.chance(30) ? static_cast<std::uint32_t>(rng.below(200)) : 0;
    }
  }
  Faulty faulty(world->substrate(), shares, seed);
  const bool unasked = faults == Faults::some;
  Checking checking(
      faulty, {.page_tokens = config.shape.page_tokens, .bursts_end_early = unasked, .cancels_unrequested = unasked});
  DecisionLog decisions(&happened);
  Engine engine(config, checking, decisions, &happened);
  Inspecting inspecting(engine);
  checking.connect(inspecting);
  faulty.connect(checking);

  EngineTraffic source(seed, config.shape.page_tokens, rng.between(1, config.device_pages),
                       rng.between(5, config.storage.empty() ? 60 : 200));
  world->run(source, faulty);
  checking.finish();
  EXPECT_TRUE(engine.idle()) << engine.state_summary();

  const Verification& seen = world->verification();
  EXPECT_EQ(seen.wrong_reads, 0U) << (seen.wrong.empty() ? "" : seen.wrong.front().found);
  happened.pages_read += seen.pages_read;
  happened.pages_audited += seen.pages_audited;
  const std::array<std::uint64_t, 12> counts = counts_of(faulty.counts());
  for (std::size_t kind = 0; kind < counts.size(); ++kind) happened.faults[kind] += counts[kind];
}

Happened serve_all(Faults faults) {
  const ThrowingChecks checks;
  Happened happened;
  for (std::uint64_t seed = 1; seed <= seeds_for(kSeeds, kLeastSeeds) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Stores stores;
    if (seed % 3 == 0) stores.folder = std::make_unique<Folder>();
    try {
      for (int life = 0; life < 2; ++life) serve(seed, faults, stores, happened);
    } catch (const BrokenPromise& broken) {
      ADD_FAILURE() << broken.what();
    }
  }
  if (!shows_all()) return happened;
  for (const DecisionKind kind :
       {DecisionKind::admit, DecisionKind::reject, DecisionKind::prefill, DecisionKind::load_back, DecisionKind::backup,
        DecisionKind::evict_device, DecisionKind::evict_host, DecisionKind::retract, DecisionKind::finish,
        DecisionKind::store, DecisionKind::store_next, DecisionKind::evict_storage, DecisionKind::prefetch,
        DecisionKind::commit}) {
    EXPECT_GT(happened.count(kind), 0U) << name_of(kind) << " never happened";
  }
  EXPECT_GT(happened.stores, 0U);
  EXPECT_GT(happened.count(EventKind::load_done), 0U);
  EXPECT_GT(happened.pages_read, 0U);
  EXPECT_GT(happened.pages_audited, 0U);
  return happened;
}

TEST(RealEngine, KeepsTheContractAndReadsNoWrongByte) { serve_all(Faults::none); }

// A transfer that is reported as failed may still move its bytes, perhaps late. So an engine that then uses the slot,
// as the old page or as the new page, reads wrong bytes, and the check finds them.
TEST(RealEngine, ReadsNoWrongByteWhenTransfersFailAndBurstsAreCut) {
  const Happened happened = serve_all(Faults::some);
  if (!shows_all()) return;
  for (std::size_t kind = 0; kind < happened.faults.size(); ++kind) {
    EXPECT_GT(happened.faults[kind], 0U) << "fault " << kind << " of counts_of()";
  }
  EXPECT_GT(happened.count(EventKind::load_failed), 0U);
}

}  // namespace
}  // namespace kvtwin::test
