// kvtwin compare calls two runs equal if and only if their digests are equal, whatever was changed between them.
#include <gtest/gtest.h>

#include <string>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

TEST(CompareProperty, IsEqualExactlyIfTheDigestsAre) {
  static constexpr const char* kChanges[] = {"seed=1",
                                             "cache.eviction=fifo",
                                             "cache.evict_unit=node",
                                             "scheduler.burst_steps=7",
                                             "scheduler.order_window=500",
                                             "scheduler.chunk_tokens=1000",
                                             "cache.layout=layer_first",
                                             "model.kv_dtype=fp8",
                                             "tiers.host.tokens=0",
                                             "cache.write_threshold=2"};
  std::uint64_t equal = 0, different = 0;
  for (std::uint64_t seed = 0; seed < std::size(kChanges); ++seed) {
    SCOPED_TRACE(kChanges[seed]);
    const Folder folder;
    const Settings settings = conversations({.requests = 70, .gap_ms = 40}, seed).save(folder) + tight();
    const Json a = simulate_to(folder, "a", settings, seed % 2 == 0);
    const Json b = simulate_to(folder, "b", settings + Settings{kChanges[seed]}, seed % 3 == 0);
    const Outcome outcome = run({"compare", folder / "a", folder / "b", "--json"});
    const bool same = a.at("decisions") == b.at("decisions");
    (same ? equal : different) += 1;
    ASSERT_EQ(outcome.exit_code, same ? 0 : 3) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json.at("equal").get<bool>(), same);
    EXPECT_EQ(json.at("a").at("decisions"), a.at("decisions").at("count"));
    EXPECT_EQ(json.at("b").at("decisions"), b.at("decisions").at("count"));
  }
  EXPECT_GT(equal, 1U);
  EXPECT_GT(different, 3U);
}

}  // namespace
}  // namespace kvtwin::test
