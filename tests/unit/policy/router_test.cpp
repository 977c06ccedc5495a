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
  const auto router = make_router("round_robin", 3);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(router->route(asking({})), i % 3);
}

TEST(Router, prefix_affinity_follows_the_longest_prefix_that_is_half_of_the_prompt) {
  const auto router = make_router("prefix_affinity", 2);
  EXPECT_EQ(router->route(asking(document({1, 2, 3, 4}))), 0U);
  EXPECT_EQ(router->route(asking(document({9, 8, 7, 6}))), 1U) << "the least loaded";
  EXPECT_EQ(router->route(asking(document({9, 8, 7, 6, 5}))), 1U);
  EXPECT_EQ(router->route(asking(document({9, 8, 1, 2}))), 1U) << "half is enough";
  EXPECT_EQ(router->route(asking(document({9, 1, 2, 3}))), 0U) << "a quarter isn't";
}

TEST(Router, prefix_affinity_evens_out_loads_and_goes_back_when_they_are_even) {
  const auto router = make_router("prefix_affinity", 2);
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

}  // namespace
}  // namespace kvtwin
