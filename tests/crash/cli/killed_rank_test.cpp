// kill -9 of one process of a real run, a rank or an engine: the others must end soon, too, and no file may look like
// the result of a finished run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>

#include "tests/engines_run.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

bool ended(const Process& process) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process.id()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

// Traffic for minutes.
Settings long_traffic(const Folder& folder) {
  return busy_ranks(folder, 1, 20'000) + Settings{"workload.time_scale=10"};
}

// Runs two processes, and kills one of them in the middle.
void expect_end_after_kill(const Folder& folder, const Settings& settings, int killed) {
  Process process(run_arguments(folder, settings), started_by_mpirun(2));
  const std::string name = killed == 0 ? "run/journal.kvj" : "run/journal.1.kvj";
  const fs::path journal = fs::canonical(folder.path()) / name;
  std::error_code error;
  const auto grown = [&] {
    const std::uintmax_t bytes = fs::file_size(journal, error);
    return !error && bytes > 100'000;
  };
  while (!grown() && !ended(process)) std::this_thread::yield();
  const pid_t victim = process_with(journal);
  ASSERT_GT(victim, 0) << process.wait().err;
  ASSERT_EQ(kill(victim, SIGKILL), 0);

  const Outcome outcome = process.wait();
  EXPECT_NE(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.exit_code, kHung) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));
  EXPECT_EQ(process_with(fs::canonical(folder.path()) / "run/journal.kvj"), 0) << "process 0 is still there";
  EXPECT_EQ(process_with(fs::canonical(folder.path()) / "run/journal.1.kvj"), 0) << "process 1 is still there";
  for (const char* left : {"run/journal.kvj", "run/journal.1.kvj"}) {
    const Outcome told = run({"replay", folder / left});
    EXPECT_EQ(told.exit_code, 2) << told.err;
    EXPECT_NE(told.err.find("truncated: equal up to"), std::string::npos) << told.err;
  }
}

class KilledRank : public testing::TestWithParam<int> {};

TEST_P(KilledRank, EndsTheRun) {
  const Folder folder;
  expect_end_after_kill(folder, long_traffic(folder), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, KilledRank, testing::Values(0, 1));

class KilledEngine : public testing::TestWithParam<int> {};

TEST_P(KilledEngine, EndsTheRun) {
  const Folder folder;
  expect_end_after_kill(folder, long_traffic(folder) + small_engines(2), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Each, KilledEngine, testing::Values(0, 1));

}  // namespace
}  // namespace kvtwin::test
#endif
