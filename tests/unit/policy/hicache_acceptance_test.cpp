// HiCache's minimum acceptance checks that concern the policy. The test names have the numbers of the checks. Check 10
// moves bytes and is in tests/unit/kernels. Pages have four tokens, unless a test uses other pages.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <functional>
#include <map>
#include <memory>

#include "policy/cache.hpp"
#include "policy/index/page_pool.hpp"
#include "policy/termination.hpp"
#include "policy/write.hpp"
#include "stored_rig.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/timeout_text.hpp"

namespace kvtwin {
namespace {

// ---- 1 to 5: writes ------------------------------------------------------------------------------------------

// The page key of each host slot, according to the transfers.
struct HostBytes {
  void move(const ManualWorld::Transfer& transfer) {
    for (const PageMove& page : transfer.pages) {
      if (transfer.lane == Lane::d2h) {
        slots[page.target] = page.key;
      } else {
        EXPECT_EQ(slots.at(page.source), page.key) << "a page is loaded from where it was written to";
      }
    }
  }
  std::map<SlotId, PageKey> slots;
};

TEST(HiCache, check_01_write_through_demotes_and_loads_back_what_it_wrote) {
  EngineRig rig(small_config(6, 16));
  HostBytes host;
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_pass();
  host.move(rig.world.transfers.at(0));
  rig.drain();
  rig.arrive(1, chain(2, 5), 21, 1);
  rig.complete_pass();
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 4U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::lost), 0U);
  host.move(rig.world.transfers.at(0));
  rig.drain();
  rig.arrive(2, chain(1, 4), 17, 1);
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  ASSERT_EQ(rig.world.transfers[0].lane, Lane::h2d);
  ASSERT_EQ(rig.world.transfers[0].pages.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(rig.world.transfers[0].pages[i].key, chain(1, 4)[i]);
  host.move(rig.world.transfers[0]);
  rig.drain();
  EXPECT_EQ(last(rig).hit[Tier::device], 0U);
  EXPECT_EQ(last(rig).hit[Tier::host], 16U);
  EXPECT_TRUE(rig.engine.idle());
}

TEST(HiCache, check_02_selective_writes_after_the_second_insert) {
  EngineConfig config = small_config(16, 16);
  config.write_policy = "write_through_selective";
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.count(EventKind::backup_queued), 0U);
  rig.arrive(1, chain(1, 4), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 4U);
}

EngineConfig write_back_without_reserve(Pages device, Pages host) {
  EngineConfig config = small_config(device, host);
  config.write_policy = "write_back";
  config.clean_reserve = 0;
  return config;
}

TEST(HiCache, check_03_write_back_writes_nothing_until_pages_must_leave) {
  EngineRig rig(write_back_without_reserve(6, 16));
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.count(EventKind::backup_queued), 0U);
  rig.arrive(1, chain(2, 4), 17, 1);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::backup_done), 3U) << "no more than have to leave";
}

TEST(HiCache, check_03_write_back_counts_what_a_full_host_makes_it_drop) {
  EngineConfig config = write_back_without_reserve(6, 2);
  EngineRig rig(config);
  rig.arrive(0, chain(1, 5), 21, 1);
  rig.drain();
  rig.arrive(1, chain(2, 5), 21, 1);
  rig.drain();
  const Pages lost = rig.events.evicted_pages(Tier::device, Reason::host_pressure);
  EXPECT_GT(lost, 0U);
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted) + lost, 5U);
  EXPECT_TRUE(rig.engine.idle());
}

// Serves requests over documents that share prefixes, one at a time or several at once, with failures. After each
// input, all invariants are checked: closed prefixes, and leaf sets against a new computation.
void serve_at_random(const EngineConfig& config, std::uint64_t seed) {
  test::Splitmix random(seed);
  EngineRig rig(config);
  for (RequestId r = 0; r < 25; ++r) {
    const std::size_t pages = random.between(1, 9);
    rig.arrive(r, branch(random.below(3), random.below(pages + 1), 10 + random.below(3), pages), pages * kPage + 1,
               random.between(1, 6));
    if (random.chance(10)) rig.hint(HintKind::abort, random.below(r + 1));
    for (std::uint64_t n = random.below(6); n > 0; --n) {
      if (!rig.world.transfers.empty() && random.chance(50)) {
        // Loads do not fail here. A failed load also fails the pass behind it; faulty_test.cpp tests that.
        const bool fails = rig.world.transfers[0].lane == Lane::d2h && random.chance(20);
        rig.complete_transfer(fails ? Status::failed : Status::done);
      } else if (!rig.world.stored.empty() && random.chance(60)) {
        rig.complete_stored();
      } else if (!rig.world.passes.empty() && rig.world.transfers.empty() && rig.world.stored.empty()) {
        rig.complete_pass();
      }
    }
    if (random.chance(40)) rig.drain();
    if (testing::Test::HasFatalFailure()) return;
  }
  expect_rest(rig);
}

TEST(HiCache, check_04_prefixes_stay_closed_and_leaf_sets_right_whatever_happens) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    for (const std::string_view policy : {"write_through", "write_through_selective", "write_back"}) {
      EngineConfig config = stored_config(16, seed % 5 == 0 ? 0 : 8 + seed % 7);
      config.write_policy = policy;
      config.storage[0].pages = 12;
      config.storage_batch_pages = 1 + seed % 4;
      if (seed % 2 == 1) config.storage.push_back({Tier::remote, 1000, false});
      if (seed % 5 != 0 && seed % 3 == 1) config.path = CachePath::automatic;
      config.reclaim_shadowed = seed % 2 == 0;
      config.backup_retries = static_cast<std::uint32_t>(seed % 3);
      config.prefetch_policy = seed % 4 < 2 ? "wait_complete" : "best_effort";
      serve_at_random(config, seed);
    }
  }
}

TEST(HiCache, check_05_both_parts_of_a_node_that_splits_under_its_backup_are_stored) {
  EngineConfig config = stored_config(8, 8);
  config.storage_write_share = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  ASSERT_EQ(rig.world.transfers.size(), 1U);
  rig.arrive(1, branch(1, 2, 9, 3), 13, 1);
  while (in_flight(rig, kLookUp) > 0) rig.complete_stored(kLookUp, 0);
  rig.complete_transfer();
  expect_rest(rig);
  expect_stored(rig, chain(1, 4));
  expect_stored(rig, branch(1, 2, 9, 3));
  rig.arrive(2, chain(3, 7), 29, 1);
  rig.drain();
  rig.arrive(3, chain(4, 7), 29, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 0U) << "nothing stayed leased on either tier";
}

TEST(HiCache, check_05_both_parts_of_a_node_that_splits_under_its_storage_write_are_stored) {
  EngineConfig config = stored_config(8, 8);
  config.storage_write_share = 1024;
  EngineRig rig(config);
  rig.arrive(0, chain(1, 4), 17, 1);
  rig.complete_stored(kLookUp, 0);
  rig.complete_pass();
  rig.complete_transfer();
  ASSERT_EQ(in_flight(rig, kSet), 1U);
  rig.arrive(1, branch(1, 2, 9, 3), 13, 1);
  rig.complete_stored(kSet, 4);
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::store_done), 5U);
  rig.arrive(2, chain(3, 7), 29, 1);
  rig.drain();
  rig.arrive(3, chain(4, 7), 29, 1);
  expect_rest(rig);
  EXPECT_EQ(rig.events.page_count(EventKind::backup_dropped), 0U) << "nothing stayed leased on either tier";
}

// ---- 6: prefetches -------------------------------------------------------------------------------------------

TEST(HiCache, check_06_a_hit_of_255_tokens_is_revoked_and_one_of_256_fetched) {
  for (const Pages hit : {255U, 256U}) {
    EngineConfig config = stored_config(1000, 1000);
    config.shape.page_tokens = 1;
    config.prefetch_min_tokens = EngineConfig{}.prefetch_min_tokens;
    EngineRig rig(config);
    rig.arrive_knowing_output(0, chain(1, 300), 301, 1);
    rig.complete_stored(kLookUp, hit);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_revoked), hit == 255 ? 1U : 0U);
    EXPECT_EQ(in_flight(rig, kGet), hit == 255 ? 0U : 2U);
    while (in_flight(rig, kGet) > 0) rig.complete_stored(kGet, EngineRig::kAll);
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::disk], hit == 255 ? 0U : 256U);
  }
}

TEST(HiCache, check_06_a_page_missing_in_the_second_batch_commits_the_pages_before_it) {
  for (const Pages k : {128U, 129U, 200U, 255U}) {
    EngineRig rig(stored_config(400, 400));  // batches of 128 pages
    rig.arrive(0, chain(1, 300), 1201, 1);
    rig.complete_stored(kLookUp, 300);
    ASSERT_EQ(in_flight(rig, kGet), 3U);
    rig.complete_stored(kGet, 128);
    rig.complete_stored(kGet, k - 128);
    rig.complete_stored(kGet, 0);
    EXPECT_EQ(rig.events.page_count(EventKind::prefetch_done), k);
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::disk], k * kPage);
    EXPECT_EQ(last(rig).miss, 1201 - k * kPage);
  }
}

// Expects that no reservation is left: a prefetch that needs the whole host tier is accepted, which a reservation of a
// single page would prevent.
void expect_no_reservation(EngineRig& rig) {
  expect_rest(rig);
  const std::uint64_t declined = rig.events.count(EventKind::prefetch_declined);
  put(rig, chain(7, 64));
  rig.arrive(90, chain(7, 64), 257, 1);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), declined);
  rig.complete_stored();
  Pages asked = 0;
  for (const auto& operation : rig.world.stored) asked += operation.work.verb == kGet ? operation.pages.size() : 0;
  EXPECT_EQ(asked, 64U) << "and it gets every slot";
  expect_rest(rig);
  EXPECT_EQ(last(rig).hit[Tier::disk], 256U);
}

TEST(HiCache, check_06_an_abort_in_any_state_leaks_neither_slots_nor_reservation) {
  const std::vector<std::function<void(EngineRig&)>> states = {
      [](EngineRig&) {},                              // looking up
      [](EngineRig& rig) { rig.complete_stored(); },  // fetching
      [](EngineRig& rig) {                            // one batch has completed
        rig.complete_stored();
        rig.complete_stored(kGet, 2);
      },
      [](EngineRig& rig) {  // a batch fell short, the others are cancelled
        rig.complete_stored();
        rig.complete_stored(kGet, 2);
        rig.complete_stored(kGet, 1);
      },
      [](EngineRig& rig) { rig.complete_stored(kLookUp, 0); },  // revoked
      [](EngineRig& rig) {                                      // landed, and running
        while (!rig.world.stored.empty()) rig.complete_stored();
      },
      [](EngineRig& rig) {  // stopped while it looked up
        rig.fire(2 * kNsPerSecond);
      },
      [](EngineRig& rig) {  // stopped while it fetched
        rig.complete_stored();
        rig.complete_stored(kGet, 2);
        rig.fire(2 * kNsPerSecond);
      },
  };
  for (std::size_t state = 0; state < states.size(); ++state) {
    SCOPED_TRACE(state);
    // In the states "revoked" and "landed" the request runs, and copies of its pages may stay in L2; L2 can evict them.
    EngineConfig config = stored_config(80, 64, state < 6 ? "wait_complete" : "timeout");
    config.prefetch_host_share = 16;  // 16 / 1024 of 64 pages: one page
    config.reclaim_shadowed = true;
    config.storage_batch_pages = 2;
    EngineRig rig(config);
    put(rig, chain(1, 8));
    rig.arrive(0, chain(1, 8), 33, 1);
    states[state](rig);
    rig.hint(HintKind::abort, 0);
    rig.world.time += 1;
    expect_no_reservation(rig);
  }
}

// ---- 7: how long a request waits -----------------------------------------------------------------------------

TEST(HiCache, check_07_timeout_is_base_plus_slope_times_the_tokens_asked_for_up_to_the_cap) {
  for (const TimeNs cap : {TimeNs{0}, 2 * kNsPerSecond, kNsPerSecond / 2}) {
    for (const Pages asked : {2U, 100U, 256U, 1024U, 2000U}) {
      SCOPED_TRACE(asked);
      EngineConfig config = stored_config(2100, 2100, test::timeout_text(kNsPerSecond, kNsPerSecond / 4, cap));
      EngineRig rig(config);
      rig.world.time = 77;
      rig.arrive(0, chain(1, asked), asked * kPage + 1, 1);
      rig.complete_stored(kLookUp, std::max<Pages>(2, asked / 2));
      const auto tokens = static_cast<TimeNs>(asked * kPage);
      TimeNs limit = kNsPerSecond + tokens * (kNsPerSecond / 4) / 1024;
      if (cap != 0) limit = std::min(limit, cap);
      rig.fire(77 + limit);
      EXPECT_TRUE(rig.world.passes.empty()) << "as long as that is not longer than that";
      rig.fire(77 + limit + 1);
      EXPECT_EQ(rig.world.passes.size(), 1U);
      EXPECT_EQ(rig.events.count(EventKind::prefetch_stopped), 1U);
      while (!rig.world.stored.empty()) rig.complete_stored(rig.world.stored[0].work.verb, 0);
      expect_rest(rig);
    }
  }
}

TEST(HiCache, check_07_best_effort_never_delays_an_admission) {
  for (int answered = 0; answered < 2; ++answered) {
    EngineConfig config = stored_config(64, 64, "best_effort");
    config.max_running = 1;
    EngineRig rig(config);
    put(rig, chain(2, 4));
    rig.arrive(0, chain(1, 4), 17, 1);
    rig.arrive(1, chain(2, 4), 17, 1);
    while (answered > 0 && in_flight(rig, kLookUp) > 0) rig.complete_stored();
    rig.complete_pass();
    EXPECT_EQ(rig.world.passes.size(), 1U) << "it runs as soon as there is room for it";
    expect_rest(rig);
    EXPECT_EQ(last(rig).prefetch_wait_ns, 0);
  }
}

TEST(HiCache, check_07_wait_complete_yields_the_whole_hit_unless_a_page_is_missing) {
  for (const bool missing : {false, true}) {
    EngineConfig config = stored_config(64, 64);
    config.storage_batch_pages = 4;
    EngineRig rig(config);
    rig.arrive(0, chain(1, 12), 49, 1);
    rig.complete_stored(kLookUp, 12);
    rig.world.time = 1000 * kNsPerSecond;
    rig.complete_stored(kGet, 4);
    EXPECT_TRUE(rig.world.passes.empty()) << "however long it takes";
    rig.complete_stored(kGet, missing ? 3 : 4);
    EXPECT_TRUE(rig.world.passes.empty());
    rig.complete_stored(kGet, missing ? 0 : 4);
    EXPECT_EQ(rig.world.passes.size(), 1U);
    expect_rest(rig);
    EXPECT_EQ(last(rig).hit[Tier::disk], (missing ? 7U : 12U) * kPage);
  }
}

// ---- 8: ranks ------------------------------------------------------------------------------------------------

// Two engines with one world each. A reduction completes when both engines have entered it.
class TwoRanks {
 public:
  TwoRanks(const EngineConfig& config, std::uint64_t seed) : random_(seed) {
    for (Rank& rank : ranks_) rank.engine = std::make_unique<Engine>(config, rank.world, rank.decisions, nullptr);
  }

  void arrive(RequestId request, const std::vector<PageKey>& keys) {
    arrivals_.push_back({request, keys});
    // The ranks receive the arrival at different times.
    for (Rank& rank : ranks_) {
      if (random_.chance(70)) catch_up(rank);
    }
    meet();
  }
  // Completes some operations, on random ranks.
  void work(std::uint64_t steps) {
    while (steps-- > 0) {
      advance(ranks_[random_.below(2)]);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  void finish() {
    for (Rank& rank : ranks_) catch_up(rank);
    meet();
    for (int bound = 0; bound < 20000 && !testing::Test::HasFatalFailure() && under_way(); ++bound) {
      advance(ranks_[random_.below(2)]);
    }
    for (const Rank& rank : ranks_) EXPECT_TRUE(rank.engine->idle()) << rank.engine->state_summary();
    EXPECT_TRUE(ranks_[0].world.reductions.empty() && ranks_[1].world.reductions.empty());
  }
  std::set<PageKey>& store(std::size_t rank) { return ranks_[rank].store; }
  std::uint64_t rounds() const { return rounds_; }

 private:
  struct Rank {
    ManualWorld world;
    DecisionLog decisions;
    std::unique_ptr<Engine> engine;
    std::set<PageKey> store;
    std::size_t arrived = 0;
    std::uint64_t reductions = 0;
    std::set<OperationId> failed;  // loads
    std::uint64_t passes_done = 0;
  };

  template <typename What>
  void give(Rank& rank, const What& what) {
    rank.world.time += static_cast<TimeNs>(random_.below(1000));
    rank.engine->handle({rank.world.time, what});
    rank.engine->check_invariants();
  }

  void catch_up(Rank& rank) {
    for (; rank.arrived < arrivals_.size(); ++rank.arrived) {
      const auto& [request, keys] = arrivals_[rank.arrived];
      Arrival arrival;
      arrival.request = request;
      arrival.prompt_tokens = keys.size() * kPage + 1;
      arrival.output_tokens = 2;
      arrival.keys = keys;
      give(rank, arrival);
    }
  }

  // If both ranks have entered a reduction, answers with the elementwise minimum. One reduction per call, because a
  // reduction takes time.
  void meet() {
    if (ranks_[0].world.reductions.empty() || ranks_[1].world.reductions.empty()) return;
    ReduceVector least = ranks_[0].world.reductions.front().values;
    for (std::size_t i = 0; i < least.size(); ++i) {
      least[i] = std::min(least[i], ranks_[1].world.reductions.front().values[i]);
    }
    for (Rank& rank : ranks_) {
      const Reduction reduction{rank.world.reductions.front().id, least};
      rank.world.reductions.pop_front();
      ++rank.reductions;
      rank.engine->handle({rank.world.time, reduction});
      rank.engine->check_invariants();
    }
    ++rounds_;
    ASSERT_EQ(ranks_[0].decisions.count(), ranks_[1].decisions.count());
    ASSERT_EQ(ranks_[0].decisions.digest(), ranks_[1].decisions.digest()) << "round " << rounds_;
    ASSERT_EQ(ranks_[0].reductions, ranks_[1].reductions);
  }

  bool under_way() const {
    return std::ranges::any_of(ranks_, [](const Rank& rank) {
      return !rank.world.stored.empty() || !rank.world.transfers.empty() || !rank.world.passes.empty() ||
             !rank.world.timers.empty() || !rank.world.reductions.empty();
    });
  }

  // Completes one random operation that may complete.
  void advance(Rank& rank) {
    catch_up(rank);
    meet();
    if (!complete_stored(rank) && !complete_transfer(rank) && !complete_pass(rank)) fire(rank);
    meet();
  }

  bool complete_stored(Rank& rank) {
    if (rank.world.stored.empty() || random_.chance(30)) return false;
    // Operations of one tier, memory and verb complete in order, except for look-ups.
    const std::size_t drawn = random_.below(rank.world.stored.size());
    auto at = rank.world.stored.begin() + static_cast<std::ptrdiff_t>(drawn);
    const auto queue = [](const ManualWorld::Stored& o) {
      return std::tuple(o.work.tier, o.work.memory, o.work.verb == kRemove ? kSet : o.work.verb);
    };
    if (at->work.verb != kLookUp) at = std::ranges::find(rank.world.stored, queue(*at), queue);
    const ManualWorld::Stored operation = *at;
    rank.world.stored.erase(at);
    const bool writes = operation.work.verb == kSet || operation.work.verb == kRemove;
    Completion completion{.id = operation.id};
    for (const StoragePage& page : operation.pages) {
      if (operation.work.verb == kSet) rank.store.insert(page.key);
      if (operation.work.verb == kRemove) rank.store.erase(page.key);
      if (!writes && !rank.store.contains(page.key)) break;
      ++completion.pages;
    }
    const bool all = completion.pages == operation.pages.size() || operation.work.verb == kLookUp;
    completion.status = all ? Status::done : Status::failed;
    if (!all) rank.failed.insert(operation.id);
    give(rank, completion);
    return true;
  }

  bool complete_transfer(Rank& rank) {
    if (rank.world.transfers.empty()) return false;
    const OperationId id = rank.world.transfers.front().id;
    rank.world.transfers.pop_front();
    give(rank, Completion{.id = id});
    return true;
  }

  bool answered(const Rank& rank, OperationId id) const {
    return std::ranges::find(rank.world.stored, id, &ManualWorld::Stored::id) == rank.world.stored.end() &&
           std::ranges::find(rank.world.transfers, id, &ManualWorld::Transfer::id) == rank.world.transfers.end();
  }

  // A pass completes after its gates on this rank. A failed gate makes the pass fail on this rank; a reduction tells
  // the other rank.
  bool complete_pass(Rank& rank) {
    if (rank.world.passes.empty()) return false;
    const ManualWorld::Forward pass = rank.world.passes.front();
    bool failed = false;
    for (const OperationId gate : pass.gates) {
      if (!answered(rank, gate)) return false;
      failed |= rank.failed.contains(gate);
    }
    rank.world.passes.pop_front();
    Completion completion{.id = pass.id, .steps = failed ? 0 : pass.steps};
    completion.status = failed ? Status::gate_failed : Status::done;
    give(rank, completion);
    return true;
  }

  void fire(Rank& rank) {
    if (rank.world.timers.empty()) return;
    const auto [id, time] = rank.world.timers.front();
    rank.world.timers.pop_front();
    rank.world.time = std::max(rank.world.time, time);
    give(rank, TimerFired{id});
  }

  test::Splitmix random_;
  std::array<Rank, 2> ranks_;
  std::vector<std::pair<RequestId, std::vector<PageKey>>> arrivals_;
  std::uint64_t rounds_ = 0;
};

TEST(HiCache, check_08_ranks_that_find_different_hits_at_different_speeds_decide_alike) {
  for (std::uint64_t seed = 0; seed < 300 && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    test::Splitmix random(seed);
    EngineConfig config = stored_config(24, seed % 5 == 0 ? 0 : 20, termination_names()[random.below(3)]);
    if (seed % 5 != 0 && seed % 3 == 0) config.path = CachePath::automatic;
    config.write_policy = write_policy_names()[random.below(3)];
    config.storage_batch_pages = random.between(1, 4);
    config.storage[0].pages = random.between(6, 40);
    config.burst_steps = 1;
    TwoRanks ranks(config, seed);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::uint64_t document = 0; document < 4; ++document) {
        for (const PageKey& key : chain(document, random.below(9))) ranks.store(rank).insert(key);
      }
    }
    for (RequestId r = 0; r < 12; ++r) {
      const std::size_t pages = random.between(1, 8);
      ranks.arrive(r, branch(random.below(4), random.below(pages + 1), 10 + random.below(2), pages));
      ranks.work(random.below(20));
    }
    ranks.finish();
    EXPECT_GT(ranks.rounds(), 12U);
  }
}

TEST(HiCache, check_08_the_smallest_hit_and_the_smallest_batch_count_on_every_rank) {
  TwoRanks ranks(stored_config(64, 64), 1);
  for (const PageKey& key : chain(1, 8)) ranks.store(0).insert(key);
  for (const PageKey& key : chain(1, 5)) ranks.store(1).insert(key);
  ranks.arrive(0, chain(1, 8));
  ranks.finish();
  EXPECT_EQ(ranks.store(1).size(), 8U) << "the second rank lacked three, which both computed and wrote";
}

// ---- 9: loads and the passes that use them -------------------------------------------------------------------

// HiCache rotates over three sets of events: the loads of a batch may overlap with the two passes before it, and the
// fourth batch waits until the first set is free. Here a step happens only when no pass is in flight. So only one set
// is in use at a time, and the reuse that HiCache must check for cannot happen.
TEST(HiCache, check_09_a_batchs_loads_are_submitted_after_the_pass_that_used_the_last_ones) {
  EngineRig rig(small_config(24, 64));
  for (RequestId r = 0; r < 4; ++r) {
    rig.arrive(r, chain(r, 4), 17, 1);
    rig.drain();
  }
  rig.arrive(4, chain(9, 20), 81, 1);  // evicts the pages of the four requests from L1
  rig.drain();
  for (RequestId r = 0; r < 4; ++r) {
    rig.arrive(10 + r, chain(r, 4), 17, 1);
    ASSERT_EQ(rig.world.passes.size(), 1U);
    std::set<OperationId> loads;
    for (const auto& transfer : rig.world.transfers) {
      if (transfer.lane == Lane::h2d) loads.insert(transfer.id);
    }
    if (r == 0) {
      ASSERT_EQ(loads.size(), 1U);
      continue;
    }
    EXPECT_EQ(loads.size(), 1U) << "of the pass in flight, and no other";
    EXPECT_EQ(rig.world.passes[0].gates, (std::vector<OperationId>{*loads.begin()}));
    if (r < 3) continue;
    while (!rig.world.transfers.empty()) rig.complete_transfer();
    EXPECT_TRUE(rig.world.transfers.empty()) << "their arrival alone frees nothing";
    rig.complete_pass();
    ASSERT_EQ(rig.world.passes.size(), 1U);
    const auto next = std::ranges::find(rig.world.transfers, Lane::h2d, &ManualWorld::Transfer::lane);
    ASSERT_NE(next, rig.world.transfers.end());
    EXPECT_EQ(next->pages.size(), 12U) << "those of the three that waited, as one";
    EXPECT_EQ(rig.world.passes[0].gates, (std::vector<OperationId>{next->id}));
  }
  rig.drain();
  EXPECT_TRUE(rig.engine.idle());
}

// ---- 11: names of pages --------------------------------------------------------------------------------------

using ByteString = std::vector<unsigned char>;

ByteString independent_sha256(const ByteString& bytes) {
  ByteString digest(32);
  unsigned int length = 0;
  EXPECT_EQ(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr), 1);
  return digest;
}

PageKey key_of(const ByteString& digest) {
  PageKey key;
  for (std::size_t i = 0; i < 32; ++i) key.words[i / 8] |= std::uint64_t{digest[i]} << (8 * (i % 8));
  return key;
}

using TokenList = std::vector<std::uint32_t>;

// HiCache's key chain: a hash of the previous page's digest and of the tokens (four bytes each, little-endian).
std::vector<PageKey> independent_chain(const TokenList& tokens) {
  std::vector<PageKey> keys;
  ByteString digest;
  for (std::size_t first = 0; first + kPage <= tokens.size(); first += kPage) {
    ByteString bytes = digest;
    for (std::size_t i = first; i < first + kPage; ++i) {
      for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<unsigned char>(tokens[i] >> shift));
    }
    digest = independent_sha256(bytes);
    keys.push_back(key_of(digest));
  }
  return keys;
}

std::vector<PageKey> our_chain(const TokenList& tokens) {
  std::vector<PageKey> keys;
  for (std::size_t first = 0; first + kPage <= tokens.size(); first += kPage) {
    keys.push_back(token_page_key(keys.empty() ? nullptr : &keys.back(), std::span(tokens).subspan(first, kPage)));
  }
  return keys;
}

TokenList text(std::uint32_t seed, std::size_t tokens) {
  TokenList list;
  for (std::size_t i = 0; i < tokens; ++i) list.push_back(seed * 2654435761U + static_cast<std::uint32_t>(i * i));
  return list;
}

TEST(HiCache, check_11_keys_are_sha256_over_digest_and_tokens) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(our_chain(text(seed, 64)), independent_chain(text(seed, 64)));
  }
}

TEST(HiCache, check_11_the_chain_goes_on_across_a_split_a_restart_and_the_output) {
  TokenList other = text(1, 8);  // shares two pages with text 1
  for (const std::uint32_t token : text(2, 8)) other.push_back(token);
  const std::vector<PageKey> expected = independent_chain(text(1, 24)), branched = independent_chain(other);
  std::set<PageKey> disk;
  {
    EngineRig rig(stored_config(32, 32));
    rig.arrive_knowing_output(0, our_chain(text(1, 24)), 17, 8);  // four pages of prompt, then two of output
    rig.drain();
    rig.arrive(1, our_chain(other), 17, 1);
    expect_rest(rig);
    EXPECT_EQ(record_of(rig, 1).hit[Tier::device], 8U);
    disk = store_of(rig);
  }
  for (const PageKey& key : expected) EXPECT_TRUE(disk.contains(key));
  for (const PageKey& key : branched) EXPECT_TRUE(disk.contains(key));
  EngineRig restarted(stored_config(32, 32));
  store_of(restarted) = disk;
  restarted.arrive(0, expected, 25, 1);
  expect_rest(restarted);
  EXPECT_EQ(last(restarted).hit[Tier::disk], 24U);
  restarted.arrive(1, branched, 17, 1);
  expect_rest(restarted);
  EXPECT_EQ(last(restarted).hit[Tier::device], 8U)
      << "its other half is below the minimum of a prefetch's length or more";
}

StorageIdentity identity() {
  StorageIdentity identity;
  identity.model = "model";
  identity.revision = "revision";
  identity.kv_dtype = "bf16";
  identity.page_tokens = 16;
  identity.layout = "page_first";
  identity.tp = 4;
  identity.pp = 2;
  identity.rank = 3;
  identity.draft = "draft";
  identity.name_space = "mine";
  return identity;
}

template <typename Change>
PageKey space_after(Change change) {
  StorageIdentity changed = identity();
  change(changed);
  return storage_space(changed);
}

TEST(HiCache, check_11_a_difference_in_any_field_is_another_space) {
  const PageKey space = storage_space(identity());
  EXPECT_EQ(space_after([](StorageIdentity&) {}), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.model = "Model"; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.revision = "other"; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.kv_dtype = "fp8"; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.page_tokens = 32; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.layout = "layer_first"; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.tp = 8; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.pp = 1; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.rank = 0; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.draft = ""; }), space);
  EXPECT_NE(space_after([](StorageIdentity& i) { i.name_space = "yours"; }), space);
}

TEST(HiCache, check_11_fields_dont_run_into_each_other) {
  const auto texts = [](std::string_view model, std::string_view revision, std::string_view dtype) {
    return space_after([&](StorageIdentity& i) {
      i.model = model;
      i.revision = revision;
      i.kv_dtype = dtype;
    });
  };
  EXPECT_NE(texts("ab", "c", ""), texts("a", "bc", ""));
  EXPECT_NE(texts("ab", "c", ""), texts("ab", "", "c"));
  EXPECT_NE(texts("a", "", ""), texts("", "a", ""));
  const auto numbers = [](std::uint32_t tp, std::uint32_t pp, std::uint32_t rank) {
    return space_after([&](StorageIdentity& i) {
      i.tp = tp;
      i.pp = pp;
      i.rank = rank;
    });
  };
  EXPECT_NE(numbers(1, 2, 0), numbers(2, 1, 0));
  EXPECT_NE(numbers(1, 2, 0), numbers(1, 0, 2));
  const auto last_texts = [](std::string_view draft, std::string_view name_space) {
    return space_after([&](StorageIdentity& i) {
      i.draft = draft;
      i.name_space = name_space;
    });
  };
  EXPECT_NE(last_texts("ab", "c"), last_texts("a", "bc"));
}

TEST(HiCache, check_11_a_stored_pages_name_depends_on_space_and_key) {
  const PageKey space = storage_space(identity());
  const PageKey other_space = space_after([](StorageIdentity& i) { i.name_space = "yours"; });
  const std::vector<PageKey> keys = our_chain(text(1, 8));
  EXPECT_EQ(storage_page_key(space, keys[0]), storage_page_key(space, keys[0]));
  EXPECT_NE(storage_page_key(space, keys[0]), storage_page_key(space, keys[1]));
  EXPECT_NE(storage_page_key(space, keys[0]), storage_page_key(other_space, keys[0]));
  EXPECT_NE(storage_page_key(space, keys[0]), storage_page_key(keys[0], space)) << "the two aren't alike";
  EXPECT_NE(storage_page_key(space, keys[0]), keys[0]);
}

// ---- 12: slots -----------------------------------------------------------------------------------------------

TEST(HiCache, check_12_a_slot_freed_twice_is_found) {
  const test::ThrowingChecks checks;
  PagePool pool(8);
  std::vector<SlotId> slots;
  ASSERT_TRUE(pool.allocate(4, slots));
  pool.release(slots);
  EXPECT_THROW(pool.release(slots), test::BrokenPromise);
  EXPECT_THROW(pool.release(std::vector<SlotId>{7}), test::BrokenPromise) << "nor one that was never given out";
}

TEST(HiCache, check_12_a_slot_that_nobody_owns_is_found) {
  const test::ThrowingChecks checks;
  const EngineConfig config = stored_config(8, 8);
  ManualWorld world;
  DecisionLog decisions;
  const EventSink sink(world, decisions, nullptr);
  Storage storage(config, world, sink);
  Cache cache(config, world, storage, sink);
  std::vector<SlotId> device, host;
  ASSERT_TRUE(cache.allocate(3, device));
  cache.allocate_host(2, host);
  cache.check_invariants(3, 2, {});
  EXPECT_THROW(cache.check_invariants(2, 2, {}), test::BrokenPromise) << "one of L1 has leaked";
  EXPECT_THROW(cache.check_invariants(3, 0, {}), test::BrokenPromise) << "two of L2 have";
  cache.free(device);
  cache.free_host(host);
  cache.check_invariants(0, 0, {});
}

}  // namespace
}  // namespace kvtwin
