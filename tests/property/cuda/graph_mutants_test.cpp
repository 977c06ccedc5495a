// Graphs that lack one class of waits are found out: by a wrong byte in some seed, by a race whichever way the threads
// ran. The same graphs with all their waits pass in tests/gpu.
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

// Seeds until the first that is wrong; 0 = none is.
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
  std::exit(0);  // ThreadSanitizer says 66 if it has seen a race
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
