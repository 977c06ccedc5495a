// Hints that the cache obeys (policy/cache/holds.hpp), under every eviction policy.
#include "policy/cache/holds.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "policy/eviction.hpp"
#include "session_rig.hpp"

namespace kvtwin {
namespace {

EngineConfig obeying(Pages device, Pages host) {
  EngineConfig config = small_config(device, host);
  config.hints = HintRule::obey;
  config.hint_share = 512;
  return config;
}

using Rig = SessionRig;

TEST(Holds, a_pin_keeps_the_pages_that_a_session_used_last_under_every_policy) {
  for (const std::string_view name : eviction_names()) {
    for (const Pages host : {Pages{0}, Pages{12}}) {
      EngineConfig config = obeying(12, host);
      config.eviction = name;
      Rig rig(config);
      rig.ask(1, 100);
      rig.hint(HintKind::pin, 1);
      for (std::uint64_t i = 2; i < 12; ++i) {
        rig.ask(i, 100 * i);
        rig.ask(i, 100 * i);
      }
      EXPECT_EQ(rig.ask(1, 100), kWhole) << name << ", host " << host;
      EXPECT_EQ(rig.events.count(EventKind::held, Reason::none), 1U) << name;
    }
  }
}

TEST(Holds, without_obey_a_pin_changes_nothing) {
  for (const HintRule rule : {HintRule::policy, HintRule::ignore}) {
    EngineConfig config = obeying(12, 0);
    config.hints = rule;
    Rig rig(config);
    rig.ask(1, 100);
    rig.hint(HintKind::pin, 1);
    for (std::uint64_t i = 2; i < 6; ++i) rig.ask(i, 100 * i);
    EXPECT_EQ(rig.ask(1, 100), 0U);
    EXPECT_EQ(rig.events.count(EventKind::held), 0U);
  }
}

TEST(Holds, a_hold_ends_with_its_time_with_unpin_and_with_the_session) {
  for (const auto& [end, reason] :
       {std::pair(HintKind::tool_call_pending, Reason::expired), std::pair(HintKind::unpin, Reason::none),
        std::pair(HintKind::session_end, Reason::none)}) {
    Rig rig(obeying(12, 0));
    rig.ask(1, 100);
    rig.hint(HintKind::pin, 1, 4);
    rig.ask(2, 200);
    rig.hint(end, 1);
    for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
    EXPECT_EQ(rig.events.count(EventKind::unheld, reason), 1U);
    EXPECT_EQ(rig.ask(1, 100), 0U);
  }
}

TEST(Holds, a_pin_above_the_share_of_a_tier_is_refused) {
  EngineConfig config = obeying(12, 12);
  config.hint_share = 300;  // three pages
  Rig rig(config);
  rig.ask(1, 100);
  rig.hint(HintKind::pin, 1);
  EXPECT_EQ(rig.events.count(EventKind::held, Reason::quota), 1U);
  EXPECT_EQ(rig.events.count(EventKind::held, Reason::none), 0U);
}

TEST(Holds, copies_that_fill_the_share_of_the_host_end_the_oldest_hold) {
  EngineConfig config = obeying(24, 12);
  config.hint_share = 512;  // 12 and 6 pages
  Rig rig(config);
  rig.session = 1;
  rig.arrive(100, four_pages(100), 17, 1);
  rig.complete_pass();
  rig.hint(HintKind::pin, 1);  // before the copies are on the host
  rig.session = 2;
  rig.arrive(101, four_pages(200), 17, 1);
  rig.complete_pass();
  rig.hint(HintKind::pin, 2);
  rig.drain();
  rig.ask(3, 300);
  EXPECT_EQ(rig.events.count(EventKind::held, Reason::quota) + rig.events.count(EventKind::unheld, Reason::quota), 1U);
}

TEST(Holds, no_request_waits_for_a_hold_and_the_oldest_one_is_dropped) {
  for (const char* write : {"write_through", "write_back"}) {
    EngineConfig config = obeying(12, 40);
    config.hint_share = 1024;
    config.write_policy = write;
    Rig rig(config);
    rig.ask(1, 100);
    rig.hint(HintKind::pin, 1);
    rig.ask(2, 200);
    rig.hint(HintKind::pin, 2);
    rig.ask(3, document({31, 32, 33, 34, 35, 36, 37}));
    EXPECT_EQ(rig.events.count(EventKind::unheld, Reason::capacity), 1U) << write;
    EXPECT_TRUE(rig.engine.idle());
    EXPECT_EQ(rig.ask(2, 200), kWhole) << write << ": the newer hold stays";
  }
}

TEST(Holds, a_hold_follows_its_session_and_waits_for_its_first_pages) {
  Rig rig(obeying(16, 0));
  rig.hint(HintKind::pin, 1);
  rig.ask(1, document({1, 2, 3}));
  rig.ask(1, document({1, 2, 3, 4, 5}));
  for (std::uint64_t i = 2; i < 9; ++i) rig.ask(i, 100 * i);
  EXPECT_EQ(rig.ask(1, document({1, 2, 3, 4, 5})), 20U);
  EXPECT_EQ(rig.events.count(EventKind::held, Reason::none), 2U);
}

// Together with the old path, the new one would be above the share.
TEST(Holds, a_hold_leaves_its_old_path_for_one_that_fits_alone) {
  Rig rig(obeying(12, 0));  // six pages may be held
  rig.ask(1, 100);
  rig.hint(HintKind::pin, 1);
  rig.ask(1, 200);
  for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
  EXPECT_EQ(rig.events.count(EventKind::held, Reason::quota), 0U);
  EXPECT_EQ(rig.ask(1, 200), kWhole);
  EXPECT_EQ(rig.ask(2, 100), 0U);
}

TEST(Holds, what_only_an_ended_session_uses_is_evicted_first) {
  for (const std::string_view name : eviction_names()) {
    EngineConfig config = obeying(18, 0);
    config.eviction = name;
    Rig rig(config);
    const std::vector<PageKey> shared = document({1, 2, 3, 4}), other = document({1, 2, 13, 14});
    rig.ask(1, 100);
    rig.ask(2, shared);
    rig.ask(3, other);
    rig.hint(HintKind::session_end, 3);
    rig.ask(4, 400);  // needs three pages more than are free
    EXPECT_EQ(rig.ask(2, shared), kWhole) << name;
    EXPECT_EQ(rig.ask(1, 100), kWhole) << name;
  }
}

TEST(Holds, a_request_that_runs_at_the_end_of_its_session_leaves_its_pages_first) {
  Rig rig(obeying(14, 0));
  rig.ask(1, 100);
  rig.session = 2;
  rig.arrive(100, four_pages(200), 17, 1);
  rig.hint(HintKind::session_end, 2);
  rig.drain();
  rig.ask(3, 300);
  EXPECT_EQ(rig.ask(1, 100), kWhole);
}

TEST(Holds, a_session_ends_with_its_request_that_waits) {
  EngineConfig config = obeying(14, 0);
  config.max_running = 1;
  Rig rig(config);
  rig.ask(1, 100);
  rig.ask(2, 200);
  rig.session = 9;
  rig.arrive(100, four_pages(900), 17, 12);  // takes seven pages before its end
  rig.session = 2;
  rig.arrive(101, four_pages(200), 17, 1);
  rig.hint(HintKind::session_end, 2);
  rig.drain();
  EXPECT_EQ(rig.events.records.back().hit[Tier::device], kWhole);
  rig.ask(3, document({31, 32, 33, 34, 35, 36}));
  EXPECT_EQ(rig.ask(9, document({900, 901, 902, 903})), kWhole) << "session 2 has ended";
}

TEST(Holds, an_ended_session_that_comes_back_is_a_session_again) {
  Rig rig(obeying(14, 0));
  rig.ask(2, 200);
  rig.hint(HintKind::session_end, 2);
  rig.ask(1, 100);
  EXPECT_EQ(rig.ask(2, 200), kWhole);
  rig.ask(3, 300);
  EXPECT_EQ(rig.ask(2, 200), kWhole) << "session 1 was used less recently";
}

TEST(Holds, shared_pages_stay_until_the_last_session_that_uses_them_ends) {
  for (const HintKind kind : {HintKind::share, HintKind::pin}) {
    Rig rig(obeying(16, 0));
    const std::vector<PageKey> prefix = document({1, 2, 3}), more = document({1, 2, 3, 4});
    rig.ask(1, prefix);
    rig.hint(kind, 1);
    rig.ask(2, more);
    rig.hint(HintKind::session_end, 1);
    for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
    const Tokens kept = kind == HintKind::share ? 12 : 0;
    EXPECT_EQ(rig.ask(2, more), kept) << name_of(kind);
    rig.hint(HintKind::session_end, 2);
    for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
    EXPECT_EQ(rig.ask(9, prefix), 0U) << name_of(kind);
  }
}

TEST(Holds, shared_pages_do_not_follow_the_session) {
  Rig rig(obeying(16, 0));  // eight pages may be held
  rig.ask(1, document({1, 2, 3}));
  rig.hint(HintKind::share, 1);
  rig.ask(1, document({1, 2, 3, 4, 5}));
  for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
  EXPECT_EQ(rig.ask(1, document({1, 2, 3, 4, 5})), 12U);
}

TEST(Holds, a_share_waits_for_the_end_of_its_request) {
  Rig rig(obeying(16, 0));
  rig.session = 1;
  rig.arrive(100, document({1, 2, 3}), 13, 3);
  rig.hint(HintKind::share, 1);
  rig.drain();
  rig.ask(1, document({1, 2, 3, 4, 5}));
  for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
  EXPECT_EQ(rig.ask(1, document({1, 2, 3, 4, 5})), 12U);
}

TEST(Holds, a_share_ends_with_its_time_with_unpin_and_alone_with_its_session) {
  for (const auto& [end, reason] :
       {std::pair(HintKind::tool_call_pending, Reason::expired), std::pair(HintKind::unpin, Reason::none),
        std::pair(HintKind::session_end, Reason::none)}) {
    Rig rig(obeying(12, 0));
    rig.ask(1, 100);
    rig.hint(HintKind::share, 1, 4);
    rig.hint(end, 1);
    for (std::uint64_t i = 3; i < 12; ++i) rig.ask(i, 100 * i);
    EXPECT_EQ(rig.events.count(EventKind::unheld, reason), 1U);
    EXPECT_EQ(rig.ask(1, 100), 0U);
  }
}

TEST(Holds, a_session_that_has_ended_and_comes_back_keeps_what_it_shared) {
  Rig rig(obeying(16, 0));
  rig.ask(1, document({1, 2}));
  rig.hint(HintKind::share, 1);
  rig.ask(2, document({1, 2, 3}));
  rig.hint(HintKind::session_end, 1);
  rig.ask(1, document({1, 2}));
  rig.hint(HintKind::session_end, 2);
  for (std::uint64_t i = 3; i < 9; ++i) rig.ask(i, 100 * i);
  EXPECT_EQ(rig.ask(3, document({1, 2})), 8U);
  rig.hint(HintKind::session_end, 1);
  EXPECT_EQ(rig.events.count(EventKind::unheld, Reason::none), 0U) << "session 3 uses the pages";
  rig.hint(HintKind::session_end, 3);
  rig.ask(4, 400);
  EXPECT_EQ(rig.events.count(EventKind::unheld, Reason::none), 1U);
}

TEST(Holds, a_share_above_the_share_of_a_tier_is_refused) {
  EngineConfig config = obeying(12, 12);
  config.hint_share = 300;  // three pages
  Rig rig(config);
  rig.ask(1, 100);
  rig.hint(HintKind::share, 1);
  EXPECT_EQ(rig.events.count(EventKind::held, Reason::quota), 1U);
}

// Pages that the write policy would leave on L1 go to the host.
TEST(Holds, shared_pages_are_written_at_once) {
  for (const bool shares : {false, true}) {
    EngineConfig config = obeying(16, 16);
    config.write_policy = "write_through_selective";
    Rig rig(config);
    rig.ask(1, 100);
    if (shares) rig.hint(HintKind::share, 1);
    rig.drain();
    EXPECT_EQ(rig.events.page_count(EventKind::backup_queued), shares ? 4U : 0U);
  }
}

TEST(Holds, demote_moves_a_session_to_the_host_when_its_copies_are_there) {
  for (const char* write : {"write_through", "write_back"}) {
    EngineConfig config = obeying(16, 16);
    config.write_policy = write;
    config.clean_reserve = 1024;  // write_back: copies ahead of need
    Rig rig(config);
    rig.session = 1;
    rig.arrive(100, four_pages(100), 17, 1);
    rig.hint(HintKind::demote, 1);
    rig.drain();
    rig.hint(HintKind::demote, 1);
    rig.ask(2, document({9}));
    EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 4U) << write;
    rig.ask(1, 100);
    EXPECT_EQ(rig.events.records.back().hit[Tier::host], kWhole) << write;
  }
}

TEST(Holds, demote_leaves_what_another_session_uses) {
  Rig rig(obeying(16, 16));
  rig.ask(1, document({1, 2, 3, 4}));
  rig.ask(2, document({1, 2, 13, 14}));
  rig.hint(HintKind::demote, 1);
  rig.ask(3, document({9}));
  EXPECT_EQ(rig.events.evicted_pages(Tier::device, Reason::demoted), 2U);
}

TEST(Holds, prefetch_brings_a_session_from_storage_to_the_host) {
  EngineConfig config = obeying(5, 8);
  config.storage.push_back({Tier::disk, 100, true});
  config.prefetch_min_tokens = 1;
  config.prefetch_host_share = 1024;
  config.storage_write_share = 8192;
  Rig rig(config);
  rig.ask(1, 100);
  rig.ask(2, 200);
  rig.ask(3, 300);
  rig.hint(HintKind::prefetch, 1);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::prefetch_done), 4U);
  EXPECT_TRUE(rig.engine.idle());
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), 4U) << "three requests had nothing on L1 and L2";
  const std::uint64_t before = rig.events.count(EventKind::prefetch_issued);
  rig.ask(1, 100);
  EXPECT_EQ(rig.events.records.back().hit[Tier::host], kWhole);
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), before) << "nothing is left to prefetch";
}

// To read takes longer than to compute, unless a second request would wait for the computing.
TEST(Holds, a_prefetch_of_a_hint_is_no_request_that_waits) {
  for (const bool hinted : {false, true}) {
    EngineConfig config = obeying(5, 12);
    config.storage.push_back({.tier = Tier::disk, .pages = 100, .owned = true, .read_token_ps = 1'500'000});
    config.cost_token_ps = 1'000'000;
    config.prefetch_admission = "cost";
    config.prefetch_min_tokens = 1;
    config.prefetch_host_share = 1024;
    config.storage_write_share = 8192;
    Rig rig(config);
    for (std::uint64_t i = 1; i < 6; ++i) rig.ask(i, 100 * i);
    const std::uint64_t declined = rig.events.count(EventKind::prefetch_declined);
    if (hinted) {
      rig.hint(HintKind::prefetch, 1);
      rig.complete_stored();  // the look-up
    }
    const std::uint64_t issued = rig.events.count(EventKind::prefetch_issued);
    rig.session = 9;
    rig.arrive(100, four_pages(200), 17, 1);
    EXPECT_EQ(rig.events.count(EventKind::prefetch_declined), declined + 1) << hinted;
    EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), issued) << hinted;
    rig.drain();
  }
}

TEST(Holds, shared_pages_go_to_storage_for_other_engines) {
  for (const Pages host : {Pages{0}, Pages{16}}) {
    for (const bool shares : {false, true}) {
      EngineConfig config = obeying(16, host);
      config.storage.push_back({Tier::disk, 100, true});
      if (host == 0) config.path = CachePath::direct;
      config.write_threshold = 5;
      config.storage_write_share = 8192;
      Rig rig(config);
      rig.ask(1, 100);
      if (shares) rig.hint(HintKind::share, 1);
      rig.drain();
      EXPECT_EQ(rig.events.page_count(EventKind::store_queued), shares ? 4U : 0U) << host;
    }
  }
}

EngineConfig sharing(Pages host, std::uint32_t threshold) {
  EngineConfig config = obeying(16, host);
  config.storage.push_back({Tier::disk, 100, true});
  config.write_threshold = threshold;
  config.storage_write_share = 8192;
  return config;
}

TEST(Holds, shared_pages_do_not_wait_for_the_reserve_of_the_host) {
  EngineConfig config = sharing(16, 1);
  config.host_clean_reserve = 1;
  {
    Rig rig(config);
    rig.ask(1, 100);
    EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 0U);
    rig.hint(HintKind::share, 1);
    rig.drain();
    EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 4U) << "they wait on the host";
  }
  Rig rig(config);
  rig.session = 1;
  rig.arrive(100, four_pages(100), 17, 1);
  rig.complete_pass();
  ASSERT_FALSE(rig.world.transfers.empty());
  rig.hint(HintKind::share, 1);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 4U) << "they arrive on the host";
  config.write_threshold = 5;
  Rig unwritten(config);
  unwritten.ask(1, 100);
  unwritten.hint(HintKind::share, 1);
  unwritten.drain();
  EXPECT_EQ(unwritten.events.page_count(EventKind::store_queued), 4U) << "the device alone has them";
  EXPECT_TRUE(unwritten.engine.idle());
}

TEST(Holds, a_host_that_passes_pages_on_does_so_with_shared_pages_at_once) {
  for (const HostMode mode : {HostMode::until_stored, HostMode::buffer}) {
    EngineConfig config = sharing(16, 5);
    config.host_mode = mode;
    Rig rig(config);
    rig.ask(1, 100);
    EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 0U);
    rig.hint(HintKind::share, 1);
    rig.drain();
    EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 4U) << name_of(mode);
    EXPECT_TRUE(rig.engine.idle());
  }
}

// Write-back copies the end of the path first.
TEST(Holds, shared_pages_are_written_from_the_beginning_of_the_prefix_on) {
  EngineConfig config = sharing(16, 0);
  config.write_policy = "write_back";
  config.clean_reserve = 700;
  Rig rig(config);
  rig.ask(1, document({1, 2, 3, 4}));
  rig.ask(2, document({1, 2, 3, 4, 5, 6, 7, 8}));
  const Pages before = rig.events.page_count(EventKind::store_queued);
  ASSERT_GT(before, 0U);
  ASSERT_LT(before, 8U);
  rig.hint(HintKind::share, 2);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 8U);
}

TEST(Holds, shared_pages_are_written_before_their_session_ends) {
  for (const Pages host : {Pages{0}, Pages{16}}) {
    for (const bool runs : {false, true}) {
      EngineConfig config = sharing(host, 5);
      if (host == 0) config.path = CachePath::direct;
      Rig rig(config);
      rig.session = 1;
      rig.arrive(100, four_pages(100), 17, 3);
      if (!runs) rig.drain();
      rig.hint(HintKind::share, 1);
      rig.hint(HintKind::session_end, 1);
      rig.drain();
      rig.ask(2, 200);
      EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 4U) << host << runs;
      EXPECT_EQ(rig.events.count(EventKind::unheld, Reason::none), 1U) << "the session has ended";
    }
  }
}

TEST(Holds, a_share_ahead_of_the_first_request_writes_its_pages) {
  Rig rig(sharing(16, 5));
  rig.hint(HintKind::share, 1);
  rig.ask(2, 200);
  rig.ask(1, 100);
  rig.drain();
  EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 4U);
}

TEST(Holds, a_share_writes_again_what_storage_has_dropped) {
  for (const Pages host : {Pages{0}, Pages{16}}) {
    EngineConfig config = sharing(host, 1);
    if (host == 0) config.path = CachePath::direct;
    config.storage_backlog = StorageBacklog::drop;
    config.storage_batch_pages = 2;
    config.storage_write_share = 128;  // two pages
    Rig rig(config);
    rig.ask(1, 100);
    ASSERT_EQ(rig.events.page_count(EventKind::store_queued), 2U) << host;
    rig.hint(HintKind::share, 1);
    rig.drain();
    EXPECT_EQ(rig.events.page_count(EventKind::store_queued), 4U) << host;
  }
}

// Its host keeps nothing for a request that has not come. Slots leaked here once.
TEST(Holds, prefetch_brings_nothing_to_a_buffer) {
  EngineConfig config = obeying(5, 8);
  config.storage.push_back({Tier::disk, 100, true});
  config.host_mode = HostMode::buffer;
  config.prefetch_min_tokens = 1;
  config.storage_write_share = 8192;
  Rig rig(config);
  rig.ask(1, 100);
  rig.ask(2, 200);
  rig.ask(3, 300);
  const std::uint64_t before = rig.events.count(EventKind::prefetch_issued);
  rig.hint(HintKind::prefetch, 1);
  rig.drain();
  EXPECT_EQ(rig.events.count(EventKind::prefetch_issued), before);
  EXPECT_TRUE(rig.engine.idle());
  rig.ask(1, 100);
  EXPECT_GT(rig.events.records.back().hit[Tier::disk], 0U);
}

TEST(Holds, equal_inputs_decide_equally_and_hints_are_decisions) {
  const auto digest = [](std::int64_t ms) {
    Rig rig(obeying(12, 12));
    rig.ask(1, 100);
    rig.hint(HintKind::pin, 1, ms);
    for (std::uint64_t i = 2; i < 9; ++i) rig.ask(i, 100 * i);
    rig.ask(1, 100);
    return rig.decisions.digest();
  };
  EXPECT_EQ(digest(0), digest(0));
  EXPECT_NE(digest(0), digest(1));
}

// ---- windows and states --------------------------------------------------------------------------------

// Pools of a model with a window of two pages, or with states that are left at the end of each page.
EngineConfig obeying_pools(Closure closure, Pages slots, Pages host_slots) {
  EngineConfig config = obeying(200, host_slots == 0 ? 0 : 200);
  config.evict_unit = EvictUnit::node;
  config.window_release_tokens = 1;
  config.max_running = 1;
  config.hint_share = 1024;
  if (closure == Closure::point) config.state_points = "extra_buffer(chunk=4, interval=4)";
  PoolConfig pool{closure, closure == Closure::tail ? Tokens{8} : 0, slots, host_slots, config.shape};
  if (closure == Closure::tail) pool.device_slots += config.least_slots(pool);
  config.pools.push_back(pool);
  return config;
}

TEST(Holds, a_pin_keeps_the_window_or_the_state_at_the_end_of_the_path) {
  for (const Closure closure : {Closure::tail, Closure::point}) {
    for (const bool pins : {true, false}) {
      Rig rig(obeying_pools(closure, 10, 0));
      rig.ask(1, 100);
      if (pins) rig.hint(HintKind::pin, 1);
      for (std::uint64_t i = 2; i < 12; ++i) rig.ask(i, 100 * i);
      EXPECT_EQ(rig.ask(1, 100), pins ? kWhole : 0U);
    }
  }
}

TEST(Holds, windows_and_states_of_ended_sessions_are_evicted_first) {
  for (const Closure closure : {Closure::tail, Closure::point}) {
    Rig rig(obeying_pools(closure, 10, 0));
    rig.ask(1, 100);
    rig.ask(2, 200);
    rig.hint(HintKind::session_end, 2);
    const auto lost = [&] { return rig.events.evicted_pages(Tier::device, Reason::lost); };
    for (std::uint64_t i = 3; lost() == 0; ++i) {
      ASSERT_LT(i, 50U);
      rig.ask(i, 100 * i);
    }
    EXPECT_EQ(rig.ask(1, 100), kWhole);
    EXPECT_LT(rig.ask(2, 200), kWhole);
  }
}

TEST(Holds, the_oldest_hold_is_dropped_if_all_windows_or_states_are_held) {
  for (const Closure closure : {Closure::tail, Closure::point}) {
    Rig rig(obeying_pools(closure, 10, 0));
    for (std::uint64_t i = 1; i < 20; ++i) {
      rig.ask(i, 100 * i);
      rig.hint(HintKind::pin, i);
    }
    EXPECT_GT(rig.events.count(EventKind::unheld, Reason::capacity), 0U);
    EXPECT_EQ(rig.ask(1, 100), 0U);
    EXPECT_EQ(rig.ask(19, 1900), kWhole);
  }
}

TEST(Holds, a_pin_above_the_share_of_a_pool_is_refused) {
  for (const Closure closure : {Closure::tail, Closure::point}) {
    EngineConfig config = obeying_pools(closure, 10, 0);
    config.hint_share = 60;  // eleven pages, and no slot
    Rig rig(config);
    rig.ask(1, 100);
    rig.hint(HintKind::pin, 1);
    EXPECT_EQ(rig.events.count(EventKind::held, Reason::quota), 1U);
    EXPECT_EQ(rig.events.count(EventKind::held, Reason::none), 0U);
  }
}

TEST(Holds, a_demoted_session_is_hit_on_the_host_with_its_window_and_state) {
  for (const Closure closure : {Closure::tail, Closure::point}) {
    Rig rig(obeying_pools(closure, 30, 60));
    rig.ask(1, 100);
    rig.hint(HintKind::demote, 1);
    rig.ask(2, 200);
    EXPECT_EQ(rig.ask(1, 100), kWhole);
    EXPECT_EQ(rig.events.records.back().hit[Tier::host], kWhole);
  }
}

}  // namespace
}  // namespace kvtwin
