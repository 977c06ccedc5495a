// kill -9 of one process of a real run, a rank or an engine: the others must end soon, too, and no file may look like
// the result of a finished run.
#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>

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

// Without --enable-recovery, mpirun itself ends all processes.
void expect_one_sentence(const Folder& folder, const Outcome& outcome, const std::string& words) {
  EXPECT_EQ(outcome.exit_code, 1) << "signal " << outcome.signal << ", " << outcome.err;
  const std::size_t first = outcome.err.find(words);
  EXPECT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(words, first + 1), std::string::npos) << "once: " << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));
}

Surroundings recovering(std::size_t processes) {
  Surroundings around = started_by_mpirun(processes);
  around.wrapper.emplace_back("--enable-recovery");
  return around;
}

class KilledRankOfOneEngine : public testing::TestWithParam<std::size_t> {};

TEST_P(KilledRankOfOneEngine, EndsTheRunWithOneSentence) {
  const Folder folder;
  const std::size_t killed = GetParam();
  Process process(run_arguments(folder, long_traffic(folder)), recovering(2));
  ASSERT_TRUE(kill_in_the_middle(process, fs::canonical(folder.path()) / journal_of(killed), 100'000));
  expect_one_sentence(folder, process.wait(),
                      "rank " + std::to_string(killed) + " has died, and the run cannot go on without it");
}

INSTANTIATE_TEST_SUITE_P(Each, KilledRankOfOneEngine, testing::Values(0U, 1U));

// Before the processes know each other. Which process sees the death is open, and so is whether it has seen the other
// one before.
class KilledAtItsStart : public testing::TestWithParam<std::size_t> {};

TEST_P(KilledAtItsStart, EndsTheRunWithOneSentence) {
  const Folder folder;
  Process process(run_arguments(folder, long_traffic(folder)), recovering(2));
  pid_t victim = 0;
  while ((victim = process_of_rank(folder.path(), GetParam())) == 0 && !has_ended(process)) std::this_thread::yield();
  ASSERT_EQ(kill(victim, SIGSTOP), 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const Outcome outcome = process.wait();
  expect_one_sentence(folder, outcome, " died");
}

INSTANTIATE_TEST_SUITE_P(Each, KilledAtItsStart, testing::Values(0U, 1U));

// The death of an engine is no loss to the others before the run has begun.
TEST(StoppedEngine, EndsTheRunWhenItIsKilledAtTheStart) {
  const Folder folder;
  Process process(run_arguments(folder, busy_ranks(folder, 1, 1500) + small_engines(3)), recovering(3));
  while (!fs::exists(folder / "run/experiment.resolved.toml") && !has_ended(process)) std::this_thread::yield();
  const pid_t victim = process_of_rank(folder.path(), 2);
  ASSERT_EQ(kill(victim, SIGSTOP), 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const Outcome outcome = process.wait();
  if (outcome.exit_code == 0) return;  // the run had begun
  expect_one_sentence(folder, outcome, "engine 2 has died, and the run cannot go on without it");
}

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
