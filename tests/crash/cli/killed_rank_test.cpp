// kill -9 of one process of a real run, a rank or an engine: the others must end soon, too, and no file may look like
// the result of a finished run.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
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
void expect_end_after_kill(const Folder& folder, const Settings& settings, int killed) {
  Process process(run_arguments(folder, settings), started_by_mpirun(2));
  const std::string name = killed == 0 ? "run/journal.kvj" : "run/journal.1.kvj";
  ASSERT_TRUE(kill_in_the_middle(process, fs::canonical(folder.path()) / name, 100'000)) << process.wait().err;
  const Outcome outcome = process.wait();
  EXPECT_NE(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.exit_code, kHung) << outcome.err;
  EXPECT_EQ(outcome.signal, 0) << "a run that hangs in spite of SIGTERM";
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

// Under mpirun's --enable-recovery, the other engines serve the requests of an engine of which a rank is killed.
void expect_requests_left_to_others(std::size_t engines, std::size_t ranks, std::uint64_t sent) {
  const Folder folder;
  Surroundings around = started_by_mpirun(engines * ranks);
  around.wrapper.emplace_back("--enable-recovery");
  Process process(run_arguments(folder, busy_ranks(folder, 1, sent) + small_engines(engines, ranks)), around);
  const auto journal_of = [](std::size_t number) {
    return number == 0 ? std::string("run/journal.kvj") : "run/journal." + std::to_string(number) + ".kvj";
  };
  const std::string killed = journal_of(2 * ranks - 1);  // the last rank of engine 1
  ASSERT_TRUE(kill_in_the_middle(process, fs::canonical(folder.path()) / killed, ranks == 1 ? 40'000 : 15'000))
      << process.wait().err;
  const Outcome outcome = process.wait();
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;

  const Json report = Json::parse(text_of(folder / "run/report.json"));
  EXPECT_EQ(report.at("requests").at("completed").get<std::uint64_t>() +
                report.at("requests").at("rejected").get<std::uint64_t>(),
            sent);
  EXPECT_EQ(report.at("requests").at("failed"), 0);
  EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_NE(report.at("notes").dump().find("engine 1 has died"), std::string::npos) << report.at("notes");
  const Table rows(text_of(folder / "run/requests.csv"));
  ASSERT_EQ(rows.size(), sent);
  std::set<std::uint64_t> requests;
  for (std::size_t row = 0; row < rows.size(); ++row) requests.insert(rows.integer(row, "request"));
  EXPECT_EQ(requests.size(), sent) << "each request has one end";
  EXPECT_NE(rows.text(rows.size() - 1, "engine"), "1");
  for (std::size_t number = 0; number < engines * ranks; ++number) {
    SCOPED_TRACE(journal_of(number));
    const Outcome told = run({"replay", folder / journal_of(number)});
    if (number / ranks != 1) {
      EXPECT_EQ(told.exit_code, 0) << told.out << told.err;
    } else {
      EXPECT_EQ(told.exit_code, 2) << told.err;
      EXPECT_NE(told.err.find("truncated: equal up to"), std::string::npos) << told.err;
    }
  }
}

TEST(KilledEngineOfThree, LeavesItsRequestsToTheOthers) { expect_requests_left_to_others(3, 1, 1500); }
TEST(KilledEngineOfTwoRanks, LeavesItsRequestsToTheOther) { expect_requests_left_to_others(2, 2, 300); }

}  // namespace
}  // namespace kvtwin::test
#endif
