// Graphs in which one class of waits is missing must be found: by a wrong byte with some seed, and by a race whatever
// the schedule of the threads. tests/gpu tests the same graphs with all their waits.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/graph.hpp"

namespace kvtwin::test {
namespace {

using twin::CudaTwin;
using twin::Streams;

constexpr Missing kMissing[] = {Missing::read_after_write, Missing::write_after_read, Missing::write_after_write};

// Returns the first seed with a wrong byte, or 0 if there is none up to `most`.
std::uint64_t seeds_until_wrong(Missing missing, std::uint64_t most) {
  for (std::uint64_t seed = 1; seed <= most; ++seed) {
    const CudaTwin twin({.streams = Streams::seeded, .seed = seed});
    if (!run_graph(seed, missing).wrong.empty()) return seed;
  }
  return 0;
}

TEST(GraphMutants, AWrongByteIsSeenWithinFewSeeds) {
  for (const Missing missing : kMissing) {
    const std::uint64_t seeds = seeds_until_wrong(missing, 100);
    EXPECT_GT(seeds, 0u) << "class " << static_cast<int>(missing);
  }
  EXPECT_EQ(seeds_until_wrong(Missing::none, 100), 0u);
}

#if defined(__SANITIZE_THREAD__)
void run_threads(Missing missing) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const CudaTwin twin({.streams = Streams::threads});
    run_graph(seed, missing);
  }
  std::exit(0);  // ThreadSanitizer makes this 66 if it has found a race
}

TEST(GraphMutantsDeathTest, AMissingWaitIsARace) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(run_threads(Missing::none), testing::ExitedWithCode(0), "");
  for (const Missing missing : kMissing) {
    EXPECT_EXIT(run_threads(missing), testing::ExitedWithCode(66), "data race");
  }
}
#endif

}  // namespace
}  // namespace kvtwin::test
