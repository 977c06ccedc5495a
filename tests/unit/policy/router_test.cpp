// Which engine a request goes to.
#include "policy/route.hpp"

#include <gtest/gtest.h>

#include <array>

#include "manual_world.hpp"

namespace kvtwin {
namespace {

Arrival asking(const std::vector<PageKey>& keys) {
  Arrival arrival;
  arrival.prompt_tokens = arrival.output_tokens = 1;
  arrival.keys = keys;
  return arrival;
}

TEST(Router, round_robin_goes_round) {
  const auto router = make_router("round_robin", {.engines = 3});
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(router->route(asking({})), i % 3);
}

// Two engines of three groups each: the engine by its open requests, the group in turn.
TEST(Router, groups_have_a_router_of_their_own) {
  const auto router = make_router("least_loaded", {.engines = 6, .groups = 3});
  std::array<std::size_t, 6> chosen{};
  for (std::size_t& engine : chosen) engine = router->route(asking({}));
  EXPECT_EQ(chosen, (std::array<std::size_t, 6>{0, 3, 1, 4, 2, 5}));
  router->ended(4);
  EXPECT_EQ(router->route(asking({})), 3U) << "the engine with the fewest, and there in turn";
  EXPECT_EQ(make_router("round_robin", {.engines = 4, .groups = 2, .group_policy = "nobody"}), nullptr);
}

TEST(Router, an_engine_of_groups_is_gone_with_its_last_group) {
  const auto router = make_router("least_loaded", {.engines = 4, .groups = 2});
  router->gone(0);
  EXPECT_LT(router->route(asking({})), 2U) << "the engine still has a group";
  router->gone(1);
  for (int i = 0; i < 4; ++i) EXPECT_GE(router->route(asking({})), 2U);
}

TEST(Router, prefix_affinity_follows_the_longest_prefix_that_is_half_of_the_prompt) {
  const auto router = make_router("prefix_affinity", {.engines = 2});
  EXPECT_EQ(router->route(asking(document({1, 2, 3, 4}))), 0U);
  EXPECT_EQ(router->route(asking(document({9, 8, 7, 6}))), 1U) << "the least loaded";
  EXPECT_EQ(router->route(asking(document({9, 8, 7, 6, 5}))), 1U);
  EXPECT_EQ(router->route(asking(document({9, 8, 1, 2}))), 1U) << "half is enough";
  EXPECT_EQ(router->route(asking(document({9, 1, 2, 3}))), 0U) << "a quarter isn't";
}

TEST(Router, prefix_affinity_evens_out_loads_and_goes_back_when_they_are_even) {
  const auto router = make_router("prefix_affinity", {.engines = 2});
  const auto keys = document({1, 2, 3});
  std::array<int, 2> sent{};
  for (int i = 0; i < 200; ++i) ++sent[router->route(asking(keys))];
  EXPECT_GT(sent[1], 50) << "one engine alone would drown";
  EXPECT_EQ(sent[0] + sent[1], 200);
  for (std::size_t engine = 0; engine < 2; ++engine) {
    for (int i = 0; i < sent[engine]; ++i) router->ended(engine);
  }
  const std::size_t home = router->route(asking(keys));
  EXPECT_EQ(router->route(asking(keys)), home);
}

TEST(Router, thresholds_of_prefix_affinity_are_its_parameters) {
  const auto eager = make_router("prefix_affinity(min_prefix=0.25)", {.engines = 2});
  EXPECT_EQ(eager->route(asking(document({1, 2, 3, 4}))), 0U);
  EXPECT_EQ(eager->route(asking(document({9, 8, 7, 6}))), 1U);
  EXPECT_EQ(eager->route(asking(document({9, 1, 2, 3}))), 1U) << "a quarter is enough now";
  const auto even = make_router("prefix_affinity(uneven_requests=0, uneven_factor=1)", {.engines = 2});
  EXPECT_EQ(even->route(asking(document({1, 2}))), 0U);
  EXPECT_EQ(even->route(asking(document({1, 2}))), 1U) << "one request more is uneven";
}

TEST(Router, least_loaded_counts_open_requests) {
  const auto router = make_router("least_loaded", {.engines = 3});
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(router->route(asking({})), i % 3);
  router->ended(1);
  router->ended(2);
  router->ended(2);
  EXPECT_EQ(router->route(asking({})), 2U);
  EXPECT_EQ(router->route(asking({})), 1U);
}

Arrival of_session(std::uint64_t session) {
  Arrival arrival = asking({});
  arrival.session = session;
  return arrival;
}

TEST(Router, session_affinity_keeps_a_session_at_its_engine) {
  const auto router = make_router("session_affinity", {.engines = 3});
  EXPECT_EQ(router->route(of_session(7)), 0U);
  EXPECT_EQ(router->route(of_session(8)), 1U);
  EXPECT_EQ(router->route(of_session(7)), 0U);
  EXPECT_EQ(router->route(of_session(0)), 2U) << "no session: the least loaded";
  EXPECT_EQ(router->route(of_session(0)), 1U) << "requests without a session are not one session";
  EXPECT_EQ(router->route(of_session(8)), 1U);
}

TEST(Router, session_affinity_moves_a_session_if_the_loads_are_uneven) {
  const auto router = make_router("session_affinity(uneven_requests=2, uneven_factor=1)", {.engines = 2});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(router->route(of_session(7)), 0U);
  EXPECT_EQ(router->route(of_session(7)), 1U) << "3 open requests against none";
  for (int i = 0; i < 3; ++i) router->ended(0);
  EXPECT_EQ(router->route(of_session(7)), 1U) << "the session has moved";
}

TEST(Router, power_of_two_takes_the_less_loaded_of_two_draws) {
  const auto router = make_router("power_of_two", {.engines = 8, .seed = 3});
  std::array<int, 8> open{};
  for (int i = 0; i < 800; ++i) ++open[router->route(asking({}))];
  for (const int requests : open) EXPECT_NEAR(requests, 100, 5) << "one draw would differ by about 10 times as much";
}

TEST(Router, power_of_two_is_drawn_from_the_seed) {
  const auto sent = [](std::uint64_t seed) {
    const auto router = make_router("power_of_two", {.engines = 5, .seed = seed});
    std::vector<std::size_t> engines;
    for (int i = 0; i < 50; ++i) engines.push_back(router->route(asking({})));
    return engines;
  };
  EXPECT_EQ(sent(1), sent(1));
  EXPECT_NE(sent(1), sent(2));
  const auto alone = make_router("power_of_two", {.engines = 1});
  EXPECT_EQ(alone->route(asking({})), 0U);
  const auto two = make_router("power_of_two", {.engines = 2});
  for (int i = 0; i < 10; ++i)
    EXPECT_NE(two->route(asking({})), two->route(asking({}))) << "two engines are both drawn";
}

const RouterSetup kThree{.engines = 3, .device_pages = 10, .page_tokens = 4};

std::string scored(int queue, int kv, int prefix, const std::string& more = "") {
  return "score(queue=" + std::to_string(queue) + ", kv=" + std::to_string(kv) + ", prefix=" + std::to_string(prefix) +
         more + ")";
}

TEST(Router, score_prefers_the_shorter_queue) {
  const auto router = make_router(scored(1, 0, 0), kThree);
  EXPECT_EQ(router->route(asking({})), 0U);
  EXPECT_EQ(router->route(asking({})), 1U);
  EXPECT_EQ(router->route(asking({})), 2U);
  router->admitted(1, 4);
  EXPECT_EQ(router->route(asking({})), 1U) << "its queue is empty";
  router->admitted(0, 4);
  router->left(0, 4);  // a retraction: the request waits again
  router->admitted(2, 4);
  EXPECT_EQ(router->route(asking({})), 2U);
}

TEST(Router, score_prefers_the_smaller_kv_use) {
  const auto router = make_router(scored(0, 1, 0), kThree);
  for (std::size_t engine = 0; engine < 3; ++engine) {
    ASSERT_EQ(router->route(asking({})), engine);
    router->admitted(engine, engine == 1 ? 5 : 9);  // 2 pages, or 3
  }
  EXPECT_EQ(router->route(asking({})), 1U);
  router->left(2, 9);
  router->ended(2);
  EXPECT_EQ(router->route(asking({})), 2U);
}

TEST(Router, score_prefers_the_longer_prefix_and_the_faster_tier) {
  const auto router = make_router(scored(0, 0, 1), kThree);
  EXPECT_TRUE(router->follows_pages());
  const auto keys = document({1, 2, 3, 4});
  router->stored(1, Tier::host, keys);
  EXPECT_EQ(router->route(asking(keys)), 1U);
  router->stored(2, Tier::device, std::span(keys).first(3));
  EXPECT_EQ(router->route(asking(keys)), 1U) << "4 * 0.8 > 3";
  router->stored(2, Tier::device, std::span(keys).subspan(3));
  EXPECT_EQ(router->route(asking(keys)), 2U);
  router->removed(2, Tier::device, std::span(keys).first(1));
  EXPECT_EQ(router->route(asking(keys)), 1U) << "without its first page, no page of a prefix counts";
  router->stored(1, Tier::device, keys);
  router->removed(1, Tier::host, keys);
  EXPECT_EQ(router->route(asking(keys)), 1U);
  router->removed(1, Tier::device, keys);
  EXPECT_EQ(router->route(asking(keys)), 0U) << "a tie goes to the fewest open requests";
}

// A page is on an engine as long as one of its groups has it.
TEST(Router, score_follows_the_pages_of_all_groups_of_an_engine) {
  RouterSetup setup = kThree;
  setup.engines = 4;
  setup.groups = 2;
  const auto router = make_router(scored(0, 0, 1), setup);
  const auto keys = document({1, 2, 3, 4});
  router->stored(2, Tier::device, keys);
  router->stored(3, Tier::device, keys);
  router->removed(2, Tier::device, keys);
  EXPECT_GE(router->route(asking(keys)), 2U);
  router->removed(3, Tier::device, keys);
  EXPECT_LT(router->route(asking(keys)), 2U);
}

TEST(Router, score_counts_pages_in_shared_storage_behind_the_prefix) {
  const auto keys = document({1, 2, 3, 4});
  for (const std::string share : {"0", "0.5", "1"}) {
    RouterSetup setup = kThree;
    setup.shared_pages = 100;
    const auto router = make_router(scored(0, 0, 1, ", storage_share=" + share), setup);
    router->stored(1, Tier::device, std::span(keys).first(1));
    router->stored(2, Tier::host, std::span(keys).first(2));
    router->stored_for_all(keys);
    // 4 share on engine 0, 1 + 3 share on engine 1, 2 * 0.8 + 2 share on engine 2.
    EXPECT_EQ(router->route(asking(keys)), share == "1" ? 0U : 2U) << share;
  }
}

TEST(Router, score_counts_no_shared_page_behind_a_gap) {
  const auto keys = document({1, 2, 3, 4});
  RouterSetup setup = kThree;
  setup.shared_pages = 100;
  const auto router = make_router(scored(0, 0, 1, ", storage_share=1"), setup);
  router->stored(1, Tier::device, std::span(keys).first(1));
  router->stored(2, Tier::host, std::span(keys).first(2));
  router->stored_for_all(std::span(keys).subspan(2));
  EXPECT_EQ(router->route(asking(keys)), 2U) << "2 * 0.8 + 2 against 1";
}

TEST(Router, score_by_prompts_remembers_as_many_pages_as_the_tiers_hold) {
  RouterSetup setup = kThree;
  setup.device_pages = 4;
  setup.host_pages = 2;
  const auto router = make_router(scored(0, 0, 1, ", prefix_from=prompts"), setup);
  EXPECT_FALSE(router->follows_pages());
  const auto first = document({1, 2, 3, 4}), second = document({5, 6, 7, 8});
  EXPECT_EQ(router->route(asking(first)), 0U);
  EXPECT_EQ(router->route(asking(second)), 1U) << "a tie goes to the fewest open requests";
  EXPECT_EQ(router->route(asking(first)), 0U);
  router->stored(2, Tier::device, first);
  EXPECT_EQ(router->route(asking(first)), 0U) << "KV events are not read";
  EXPECT_EQ(router->route(asking(document({1, 2, 9, 10}))), 0U);
  // Engine 0: 1, 2, 9, 10 on the device; 3 and 4 on the host. The next prompt moves 9 and 10 to the host.
  EXPECT_EQ(router->route(asking(first)), 0U);
  EXPECT_EQ(router->route(asking(document({1, 2, 9, 10}))), 0U);
  EXPECT_EQ(router->route(asking(document({11, 12}))), 2U);
}

TEST(Router, score_weighs_a_prefix_against_a_queue) {
  const auto keys = document({1, 2});
  for (const int prefix : {490, 510}) {
    const auto router = make_router(scored(500, 0, prefix), kThree);
    router->stored(0, Tier::device, keys);
    EXPECT_EQ(router->route(asking(keys)), 0U);
    EXPECT_EQ(router->route(asking(keys)), prefix > 500 ? 0U : 1U) << prefix;
  }
}

}  // namespace
}  // namespace kvtwin
