// Runs engines on several ranks of the real world, as threads, with storage tiers in memory: a disk for each rank, and
// one server for all ranks. Some ranks are slow, sometimes late, or held until no request waits for them. On one rank,
// back ends fail, lose pages and damage pages. All ranks must make equal decisions, keep the contract of the seam, and
// read no wrong byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "impl/world.hpp"
#include "policy/engine.hpp"
#include "policy/index/page_key.hpp"
#include "policy/seam/decorators.hpp"
#include "policy/termination.hpp"
#include "tests/conformance/impl/memory_backend.hpp"
#include "tests/device_under_test.hpp"
#include "tests/engine_traffic.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"
#include "tests/thread_ranks.hpp"

namespace kvtwin::test {
namespace {

enum StoreFault : std::size_t { unreachable, lost, spoilt, full, forgotten, late, kStoreFaults };
constexpr std::array<const char*, kStoreFaults> kFaultNames = {"unreachable", "lost",      "spoilt",
                                                               "full",        "forgotten", "late"};
// The share of each fault, in 1/1000 of the pages. `unreachable` also counts in 1/1000 of the look-ups.
using StoreFaults = std::array<std::uint32_t, kStoreFaults>;

// Holds gets until the rank has stopped a prefetch.
class Hold {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// A MemoryBackend with random faults, which `done` counts, and with an optional hold.
class FlakyBackend final : public StorageBackend {
 public:
  using Counts = std::array<std::atomic<std::uint64_t>, kStoreFaults>;

  FlakyBackend(PageMap& map, const PageForm& form, Pages capacity, const StoreFaults& faults, std::uint64_t seed,
               Counts& done, Hold* hold)
      : map_(map), whole_(map, form, capacity), faults_(faults), done_(done), hold_(hold) {
    for (Splitmix* chance : {&look_ups_, &reads_, &writes_}) *chance = Splitmix(mix(++seed));
  }

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override {
    LookedUp found = whole_.look_up(space, keys);
    if (strikes(look_ups_, unreachable))
      found = {look_ups_.below(std::min(found.pages + 1, keys.size())), Cause::unreachable};
    return found;
  }
  void read(PageWork& work) override {
    Struck struck(*this, work, reads_);
    whole_.read(struck);
  }
  void write(PageWork& work) override {
    Struck struck(*this, work, writes_);
    whole_.write(struck);
  }
  void finish() override { whole_.finish(); }
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override { return whole_.counters(); }

 private:
  // Passes on the pages without a fault, and the pages whose fault is only in the map.
  class Struck final : public PageWork {
   public:
    Struck(FlakyBackend& owner, PageWork& work, Splitmix& chance)
        : PageWork(work.form(), work.seal()), owner_(owner), work_(work), chance_(chance) {}
    bool next(PageTask& task) override {
      while (work_.next(task)) {
        const bool ended = task.verb == StorageVerb::get   ? owner_.ends_get(chance_, task, work_)
                           : task.verb == StorageVerb::set ? owner_.ends_set(chance_, task, work_)
                                                           : false;
        if (!ended) return true;
      }
      return false;
    }
    void take_bare(const PageTask& task, std::span<std::byte> payload) override { work_.take_bare(task, payload); }
    Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
      return work_.give_bare(task, payload);
    }
    void end(const PageTask& task, Cause cause) override { work_.end(task, cause); }

   private:
    FlakyBackend& owner_;
    PageWork& work_;
    Splitmix& chance_;
  };

  bool strikes(Splitmix& chance, StoreFault fault) {
    if (chance.below(1000) >= faults_[fault]) return false;
    ++done_[fault];
    return true;
  }
  bool ends_get(Splitmix& chance, const PageTask& task, PageWork& work) {
    if (hold_ != nullptr) hold_->wait();
    if (strikes(chance, late)) {
      // Waits 5 ms, so that other ranks get ahead. Uses the clock, because a yield may take any time on a busy machine.
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }
    if (strikes(chance, unreachable)) {
      work.end(task, Cause::unreachable);
      return true;
    }
    const std::lock_guard lock(map_.mutex);
    const auto page = map_.pages.find(storage_page_key(task.space, task.key));
    if (page == map_.pages.end()) return false;
    if (strikes(chance, spoilt)) page->second[chance.below(page->second.size())] ^= std::byte{1};
    if (strikes(chance, lost)) map_.pages.erase(page);
    return false;
  }
  bool ends_set(Splitmix& chance, const PageTask& task, PageWork& work) {
    for (const auto& [fault, cause] : {std::pair{unreachable, Cause::unreachable}, std::pair{full, Cause::full},
                                       std::pair{forgotten, Cause::none}}) {
      if (!strikes(chance, fault)) continue;
      work.end(task, cause);
      return true;
    }
    return false;
  }

  PageMap& map_;
  MemoryBackend whole_;
  const StoreFaults faults_;
  Counts& done_;
  Hold* const hold_;
  Splitmix look_ups_{0}, reads_{0}, writes_{0};  // one per thread
};

struct RankTerms {
  EngineConfig engine;
  HostDeviceConfig device;
  StoreFaults faults{};
  double slow_tiers = 1;
  std::uint64_t seed = 0, requests = 0;
  Pages longest = 0;
  PageMap* disk = nullptr;
  PageMap* remote = nullptr;
  bool held = false;
};

struct RankResult final : DecisionSink {
  void decided(const Decision& decision) override {
    ++decisions[static_cast<std::size_t>(decision.kind)];
    if (decision.kind == DecisionKind::stop) hold.open();
  }
  std::array<std::uint64_t, 64> decisions{};
  FlakyBackend::Counts faults{};
  std::uint64_t digest = 0, wrong_reads = 0, pages_read = 0;
  bool idle = false;
  Hold hold;
  std::string trouble, left;
};

std::vector<std::unique_ptr<TierQueues>> open_tiers(const RankTerms& terms, PageMemory& memory, RankResult& result) {
  std::vector<std::unique_ptr<TierQueues>> tiers;
  for (const StorageTierConfig& tier : terms.engine.storage) {
    const bool own = tier.tier == Tier::disk;
    const std::size_t rank = terms.device.ranks->rank();
    auto backend = std::make_unique<FlakyBackend>(
        own ? *terms.disk : *terms.remote, memory.form(), own ? tier.pages : ~Pages{0}, terms.faults,
        mix(terms.seed + 10 * rank + (own ? 0 : 5)), result.faults, terms.held ? &result.hold : nullptr);
    const bool stores = own || rank == 0 || terms.engine.storage_writers == terms.engine.ranks;
    tiers.push_back(std::make_unique<TierQueues>(tier.tier, std::move(backend), memory, stores, terms.slow_tiers));
  }
  return tiers;
}

// Runs one rank to its end.
void serve(const RankTerms& terms, RankResult& result) {
  std::unique_ptr<Device> device = make_test_device(terms.device);
  std::vector<std::unique_ptr<TierQueues>> tiers = open_tiers(terms, device->memory(), result);
  const std::unique_ptr<RealWorld> world = make_real_world(std::move(device), std::move(tiers), terms.device.ranks);
  Checking checking(world->substrate(), {.page_tokens = terms.engine.shape.page_tokens, .bursts_end_early = true});
  DecisionLog decisions(&result);
  Engine engine(terms.engine, checking, decisions, nullptr);
  checking.connect(engine);
  EngineTraffic source(terms.seed, terms.engine.shape.page_tokens, terms.longest, terms.requests);
  world->run(source, checking);
  checking.finish();
  engine.check_invariants();
  result.idle = engine.idle();
  result.left = engine.state_summary();
  result.digest = decisions.digest();
  result.wrong_reads = world->verification().wrong_reads;
  result.pages_read = world->verification().pages_read;
}

RankTerms random_terms(Splitmix& rng, std::uint64_t seed, std::size_t ranks) {
  RankTerms terms;
  EngineConfig& config = terms.engine;
  config = random_real_engine(rng, ranks);
  while (config.storage.empty()) draw_storage(rng, config);
  config.storage_writers = config.shape.planes == 1 ? 1 : config.ranks;
  // Mostly through L2, where prefetches of a slow rank are stopped.
  if (config.host_pages != 0 && rng.chance(60)) config.path = CachePath::via_host;
  config.prefetch_policy = rng.chance(50) ? "timeout" : termination_names()[rng.below(3)];
  terms.device.shape = config.shape;
  terms.device.host_layout = config.host_layout;
  terms.device.device_pages = config.device_pages;
  terms.device.host_pages = config.host_pages;
  terms.seed = seed;
  terms.longest = rng.between(2, config.device_pages / 2);
  terms.requests = rng.between(60, 200);
  return terms;
}

// Sums over all seeds.
struct Happened {
  std::array<std::uint64_t, 64> decisions{};
  std::array<std::uint64_t, kStoreFaults> faults{};
  std::uint64_t pages_read = 0, latents = 0;
};

void note(const RankResult& result, const RankResult& first, Happened& happened) {
  EXPECT_EQ(result.trouble, "");
  EXPECT_TRUE(result.idle) << result.left;
  EXPECT_EQ(result.digest, first.digest);
  EXPECT_EQ(result.wrong_reads, 0U);
  happened.pages_read += result.pages_read;
  for (std::size_t i = 0; i < kStoreFaults; ++i) happened.faults[i] += result.faults[i];
}

// The stored pages of a group of ranks.
struct Stores {
  explicit Stores(std::size_t ranks) : disks(ranks) {}
  std::vector<PageMap> disks;
  PageMap remote;
};

// Runs a group of ranks once, with one thread per rank.
void live(std::vector<RankTerms>& terms, Stores& stores, Happened& happened) {
  ThreadRanks group(terms.size());
  std::vector<RankResult> results(terms.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < terms.size(); ++rank) {
    terms[rank].device.ranks = &group.of(rank);
    terms[rank].disk = &stores.disks[rank];
    terms[rank].remote = &stores.remote;
    const bool first_writes = terms[rank].engine.storage_writers == 1;
    const auto stored_by = static_cast<std::uint32_t>(first_writes ? 0 : rank);
    terms[rank].engine.storage_space = storage_space({.model = "real", .rank = stored_by});
    threads.emplace_back([&, rank] {
      try {
        serve(terms[rank], results[rank]);
      } catch (const std::exception& error) {
        results[rank].trouble = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < terms.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    note(results[rank], results[0], happened);
  }
  happened.latents += terms[0].engine.storage_writers == 1 ? 1 : 0;
  for (std::size_t i = 0; i < happened.decisions.size(); ++i) happened.decisions[i] += results[0].decisions[i];
}

// Runs the group twice. The second run finds the stored pages of the first run.
void serve_on_ranks(std::uint64_t seed, bool faults, Happened& happened) {
  Splitmix rng(mix(seed));
  const std::size_t ranks = rng.between(2, 3);
  std::vector<RankTerms> terms(ranks, random_terms(rng, seed, ranks));
  const std::size_t struck = rng.below(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rng.chance(40)) terms[rank].device.slow_factor = static_cast<double>(rng.between(2, 40));
    if (rng.chance(40)) terms[rank].slow_tiers = static_cast<double>(rng.between(2, 40));
    if (faults && rank == struck) {
      for (std::uint32_t& share : terms[rank].faults)
        share = static_cast<std::uint32_t>(rng.chance(60) ? rng.below(200) : 0);
      if (terms[rank].slow_tiers > 1) terms[rank].faults[late] = 0;  // a slow rank that is also late would take seconds
    }
    if (terms[rank].slow_tiers == 1 && rng.chance(50))
      terms[rank].faults[late] = static_cast<std::uint32_t>(rng.below(150));
  }
  Stores stores(ranks);
  for (int life = 0; life < 2; ++life) live(terms, stores, happened);
}

void expect_happened(const Happened& happened, std::initializer_list<DecisionKind> kinds) {
  for (const DecisionKind kind : kinds) {
    EXPECT_GT(happened.decisions[static_cast<std::size_t>(kind)], 0U) << name_of(kind) << " never happened";
  }
}

Happened serve_all(bool faults) {
  const ThrowingChecks checks;
  Happened happened;
  for (std::uint64_t seed = 1; seed <= seeds_for(30, 16) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    serve_on_ranks(seed, faults, happened);
  }
  if (!shows_all()) return happened;
  expect_happened(happened, {DecisionKind::load_back, DecisionKind::backup, DecisionKind::evict_device,
                             DecisionKind::evict_host, DecisionKind::retract, DecisionKind::finish, DecisionKind::store,
                             DecisionKind::evict_storage, DecisionKind::prefetch, DecisionKind::commit});
  EXPECT_GT(happened.pages_read, 0U);
  EXPECT_GT(happened.latents, 0U);
  return happened;
}

TEST(StoredRanks, DecideAlikeThoughSomeAreSlower) { serve_all(false); }

TEST(StoredRanks, DecideAlikeThoughOnesBackEndsFail) {
  const Happened happened = serve_all(true);
  if (!shows_all()) return;
  for (std::size_t i = 0; i < kStoreFaults; ++i) EXPECT_GT(happened.faults[i], 0U) << kFaultNames[i];
}

// The gets of one rank continue only after the group has stopped a prefetch. So every seed has a stop, on any machine.
TEST(StoredRanks, StopAlikeWhatOneOfThemIsHeldWith) {
  const ThrowingChecks checks;
  for (std::uint64_t seed = 1; seed <= seeds_for(12, 4) && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Splitmix rng(mix(seed));
    const std::size_t ranks = rng.between(2, 3);
    RankTerms common = random_terms(rng, seed, ranks);
    EngineConfig& config = common.engine;
    // The first run stores all pages. The second run needs the stored pages, through L2, which has room for them.
    config.write_policy = "write_through";
    config.tiering = Tiering::inclusive;
    config.write_threshold = 1;
    config.storage = {{Tier::disk, 2000, true}};
    config.storage_write_share = 1 << 20;
    config.path = CachePath::via_host;
    config.host_pages = common.device.host_pages = 200;
    common.longest = config.device_pages / 2;
    config.max_waiting = 0;
    config.prefetch_policy = rng.chance(50) ? "best_effort" : "timeout";
    config.prefetch_min_tokens = 1;
    config.prefetch_host_share = 1024;
    std::vector<RankTerms> terms(ranks, common);
    Stores stores(ranks);
    Happened first, second;
    live(terms, stores, first);
    terms[rng.below(ranks)].held = true;
    live(terms, stores, second);
    expect_happened(second, {DecisionKind::prefetch, DecisionKind::stop});
  }
}

}  // namespace
}  // namespace kvtwin::test
