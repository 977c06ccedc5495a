// Deaths at random moments of real runs, under mpirun's --enable-recovery: no run hangs or is aborted.
//
//   KVTWIN_STORM_SEED=12 build/tests/crash_cli --gtest_filter='RandomDeaths*'  runs one seed
//   KVTWIN_DEEP=1 build/tests/crash_cli --gtest_filter='RandomDeaths*'         runs 200 seeds
#include "tests/random_deaths.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

TEST(RandomDeaths, EndEveryRun) {
  expect_ends_after_random_deaths(4, [](Splitmix& random) -> RandomRun {
    switch (random.below(4)) {
      case 0: return {{"parallel.tp=2"}, 2};
      case 1: return {small_engines(2), 2};
      case 2: return {small_engines(2, 2), 4};
      default: return {small_engines(3), 3};
    }
  });
}

}  // namespace
}  // namespace kvtwin::test
#endif
