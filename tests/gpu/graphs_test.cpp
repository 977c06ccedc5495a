#include "tests/gpu/gpu_memory.hpp"
#include "tests/gpu/graph.hpp"

namespace kvtwin::test {
namespace {

TEST(Graphs, LeaveWhatTheirOperationsLeaveOneAfterAnother) {
  std::uint64_t waits = 0;
  for (std::uint64_t i = 0; i < scale().graphs; ++i) {
    const std::uint64_t seed = scale().first_seed + i;
    const GraphRun run = run_graph(seed);
    ASSERT_EQ(run.wrong, "") << "seed " << seed;
    ASSERT_EQ(run.left_out, 0u);
    waits += run.waits;
  }
  EXPECT_GT(waits, scale().graphs);  // the graphs have dependencies between streams
}

}  // namespace
}  // namespace kvtwin::test
