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

TEST(Router, thresholds_of_prefix_affinity_are_its_setup) {
  const auto eager = make_router("prefix_affinity", {.engines = 2, .min_prefix_x1024 = 256});
  EXPECT_EQ(eager->route(asking(document({1, 2, 3, 4}))), 0U);
  EXPECT_EQ(eager->route(asking(document({9, 8, 7, 6}))), 1U);
  EXPECT_EQ(eager->route(asking(document({9, 1, 2, 3}))), 1U) << "a quarter is enough now";
  const auto even = make_router("prefix_affinity", {.engines = 2, .uneven_requests = 0, .uneven_factor_x1024 = 1024});
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

RouterSetup scored(std::uint32_t queue, std::uint32_t kv, std::uint32_t prefix) {
  return {.engines = 3,
          .device_pages = 10,
          .page_tokens = 4,
          .queue_weight_x1024 = queue,
          .kv_weight_x1024 = kv,
          .prefix_weight_x1024 = prefix};
}

TEST(Router, score_prefers_the_shorter_queue) {
  const auto router = make_router("score", scored(1024, 0, 0));
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
  const auto router = make_router("score", scored(0, 1024, 0));
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
  const auto router = make_router("score", scored(0, 0, 1024));
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

TEST(Router, score_weighs_a_prefix_against_a_queue) {
  const auto keys = document({1, 2});
  for (const std::uint32_t prefix : {1000U, 1050U}) {
    const auto router = make_router("score", scored(1024, 0, prefix));
    router->stored(0, Tier::device, keys);
    EXPECT_EQ(router->route(asking(keys)), 0U);
    EXPECT_EQ(router->route(asking(keys)), prefix > 1024 ? 0U : 1U) << prefix;
  }
}

}  // namespace
}  // namespace kvtwin
