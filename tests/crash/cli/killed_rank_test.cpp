// kill -9 of one process of a real run, a rank or an engine: the others must end soon, too, and no file may look like
// the result of a finished run.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "tests/engines_run.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

// Traffic for minutes.
Settings long_traffic(const Folder& folder) {
  return busy_ranks(folder, 1, 20'000) + Settings{"workload.time_scale=10"};
}

// Runs two processes, and kills one of them in the middle.
void expect_end_after_kill(const Folder& folder, const Settings& settings, std::size_t killed) {
  Process process(run_arguments(folder, settings), started_by_mpirun(2));
  ASSERT_TRUE(kill_in_the_middle(process, fs::canonical(folder.path()) / journal_of(killed), 100'000))
      << process.wait().err;
  const Outcome outcome = process.wait();
  EXPECT_NE(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.exit_code, kHung) << outcome.err;
  EXPECT_EQ(outcome.signal, 0) << "a run that hangs in spite of SIGTERM";
  EXPECT_EQ(outcome.out, "");
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));
  for (const std::size_t number : {0U, 1U}) {
    SCOPED_TRACE(journal_of(number));
    EXPECT_EQ(process_with(fs::canonical(folder.path()) / journal_of(number)), 0) << "the process is still there";
    const Outcome told = run({"replay", folder / journal_of(number)});
    EXPECT_EQ(told.exit_code, 2) << told.err;
    EXPECT_NE(told.err.find("truncated: equal up to"), std::string::npos) << told.err;
  }
}

class KilledRank : public testing::TestWithParam<std::size_t> {};

TEST_P(KilledRank, EndsTheRun) {
  const Folder folder;
  expect_end_after_kill(folder, long_traffic(folder), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, KilledRank, testing::Values(0U, 1U));

class KilledEngine : public testing::TestWithParam<std::size_t> {};

TEST_P(KilledEngine, EndsTheRun) {
  const Folder folder;
  expect_end_after_kill(folder, long_traffic(folder) + small_engines(2), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, KilledEngine, testing::Values(0U, 1U));

// Of engine 1, the last rank is killed.
void expect_requests_left_to_others(std::size_t engines, std::size_t ranks) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 1, requests_around_a_kill(ranks)) + small_engines(engines, ranks);
  const Outcome outcome = run_and_kill(folder, settings, engines, ranks, 2 * ranks - 1);
  expect_served_by_others(folder, outcome, engines, ranks, 1);
  if (testing::Test::HasFatalFailure()) return;
  const Table rows(text_of(folder / "run/requests.csv"));
  EXPECT_NE(rows.text(rows.size() - 1, "engine"), "1");
}

TEST(KilledEngineOfThree, LeavesItsRequestsToTheOthers) { expect_requests_left_to_others(3, 1); }
TEST(KilledEngineOfTwoRanks, LeavesItsRequestsToTheOther) { expect_requests_left_to_others(2, 2); }

}  // namespace
}  // namespace kvtwin::test
#endif
