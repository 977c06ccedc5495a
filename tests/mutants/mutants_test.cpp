// Plants each bug of policy/base/mutant.hpp. The swarm test must find every bug within a limit of seeds, and must find
// nothing if there is no bug.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/paths.hpp"

namespace kvtwin {
namespace {

constexpr int kMutants = 15;

// The limit of seeds. 2,000 seeds have always been enough; the long form (KVTWIN_DEEP) allows 10,000.
std::uint64_t seeds() { return std::getenv("KVTWIN_DEEP") != nullptr ? 10'000 : 2'000; }

// Runs groups of seeds. Returns the number of seeds up to the end of the first group that fails; 0 if none fails.
std::uint64_t seeds_to_find(int mutant, std::uint64_t max_seeds) {
  constexpr std::uint64_t kSeedsPerRun = 20;
  // The seeds of tests/swarm that test hints.
  const std::uint64_t base = mutant == 13 || mutant == 14 ? 3'000'000 : 0;
  for (std::uint64_t first = 0; first < max_seeds; first += kSeedsPerRun) {
    // A part of this program (GTEST_SHARD_INDEX) runs the whole swarm.
    const std::string command =
        "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX KVTWIN_MUTANT=" + std::to_string(mutant) +
        " KVTWIN_SWARM_SEED=" + std::to_string(base + first) + ":" + std::to_string(kSeedsPerRun) + " " +
        built("mutants/swarm_of_mutants") + " --gtest_filter='*/0' > /dev/null 2>&1";
    if (std::system(command.c_str()) != 0) return first + kSeedsPerRun;
  }
  return 0;
}

TEST(Mutants, none_planted_none_found) { EXPECT_EQ(seeds_to_find(0, 100), 0U); }

class Mutant : public testing::TestWithParam<int> {};

TEST_P(Mutant, is_found_by_the_swarm) {
  const std::uint64_t needed = seeds_to_find(GetParam(), seeds());
  EXPECT_GT(needed, 0U) << "mutant " << GetParam() << " lives";
  std::printf("mutant %d: found within %llu seeds\n", GetParam(), static_cast<unsigned long long>(needed));
}

INSTANTIATE_TEST_SUITE_P(Bugs, Mutant, testing::Range(1, kMutants + 1));

}  // namespace
}  // namespace kvtwin
