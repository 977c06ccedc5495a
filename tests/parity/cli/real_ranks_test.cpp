// `mpirun -np N kvtwin run`: one process per rank, each with its own policy instance. All must decide the same.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/mpi_run.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

// All requests are served except for conversations that became too long for the device tier.
void expect_all_served(const Json& report, std::uint64_t requests) {
  const Json& are = report.at("requests");
  EXPECT_EQ(are.at("total"), requests);
  EXPECT_EQ(are.at("completed").get<std::uint64_t>() + are.at("rejected_reasons").value("too_long", 0U), requests);
  EXPECT_GT(are.at("completed"), requests * 3 / 4);
}

TEST(MpiRanks, DecideAlikeAndRankZeroTellsIt) {
  const Folder folder;
  const Outcome outcome = run_ranks(folder, busy_ranks(folder, 1));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  expect_equal_ranks(folder, real.report, 2);
  EXPECT_EQ(real.report.at("world"), "real");
  expect_all_served(real.report, 80);
  EXPECT_EQ(Table(real.requests_csv).size(), 80U);
  EXPECT_GT(real.tokens("hit_device"), 0U);
  EXPECT_GT(real.tokens("hit_host"), 0U);
  EXPECT_GT(real.tier("device").at("evicted_pages").get<std::uint64_t>(), 0U);
  EXPECT_GT(real.tier("host").at("evicted_pages").get<std::uint64_t>(), 0U);
  EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
  // The report has the bytes and the checks of both ranks: each rank has read and checked the same number of pages.
  EXPECT_EQ(real.lane_bytes("gpu1.h2d"), real.lane_bytes("gpu0.h2d"));
  EXPECT_EQ(real.lane_bytes("gpu1.d2h"), real.lane_bytes("gpu0.d2h"));
  EXPECT_GT(real.lane_bytes("gpu1.h2d"), 0U);
  EXPECT_EQ(real.report.at("real").at("verified").at("pages_read").get<std::uint64_t>() % 2, 0U);
  EXPECT_EQ(outcome.err, "run folder: " + (folder / "run") + "\n") << "said once";
  EXPECT_EQ(Json::parse(text_of(folder / "run/report.json")), real.report);
}

TEST(MpiRanks, DecideAlikeThoughOneIsSlower) {
  for (const char* rank : {"0", "1"}) {
    SCOPED_TRACE(std::string("slow rank ") + rank);
    const Folder folder;
    const Settings slow{"real.slow_factor=50", std::string("real.slow_rank=") + rank, "parallel.rank_model=lockstep"};
    const Json report = run_ranks(folder, busy_ranks(folder, 2) + slow).json();
    expect_equal_ranks(folder, report, 2);
    expect_all_served(report, 80);
    EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  }
}

TEST(MpiRanks, MayBeMoreThanTwo) {
  const Folder folder;
  const Json report = run_ranks(folder, busy_ranks(folder, 3, 40) + Settings{"parallel.tp=4"}, 4).json();
  expect_equal_ranks(folder, report, 4);
}

TEST(MpiRanks, NeedNoFolder) {
  const Folder folder;
  const Outcome outcome = run_ranks(folder, busy_ranks(folder, 1, 20), 2, "");
  EXPECT_EQ(outcome.json().at("ranks").size(), 2U);
  EXPECT_EQ(outcome.err, "");
}

struct Refusal {
  Settings settings;
  std::size_t processes;
  std::vector<std::string> says;
};

// The program prints one error sentence, whatever the number of processes.
TEST(MpiRanks, RefuseOnceWhatTheyCantServe) {
  const Folder folder;
  const Settings good = busy_ranks(folder, 1);
  const std::vector<Refusal> refusals{
      {{}, 3, {"parallel.tp", "is 2", "3 processes", "mpirun -np 2"}},
      {{}, 1, {"parallel.tp", "is 2", "one process", "mpirun -np 2", "--allow-run-as-root", "--oversubscribe"}},
      {{"real.slow_factor=2", "real.slow_rank=2"}, 2, {"faults (--set): rank(index=2, factor=2)", "0 to 1"}},
      {{"faults=link(name=nic, share=0.5)", "tiers.remote.gib=1"},
       2,
       {"faults (--set): link(name=nic, share=0.5)", "slows a link of a simulation"}},
      {{"cache.eviction=luck"}, 2, {"luck"}},
      {{"cache.page_tokens=64", "tiers.host.gib=20000"}, 2, {"2 ranks", "smaller"}},
      {{"workload.trace=/nowhere"}, 2, {"/nowhere"}},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.says.front());
    expect_refused(folder, run_ranks(folder, good + refusal.settings, refusal.processes), refusal.says);
  }
}

// A wrong byte on any rank fails the run and is in the report, together with the rank.
TEST(MpiRanks, FindAFlippedBit) {
  const Folder folder;
  const Outcome outcome = run_ranks(folder, busy_ranks(folder, 1) + Settings{"real.flip=device"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("wrong bytes"), std::string::npos) << outcome.err;
  const Json wrong = Json::parse(text_of(folder / "run/report.json")).at("real").at("verified").at("wrong");
  EXPECT_NE(wrong.dump().find("on rank 0"), std::string::npos) << wrong;
  EXPECT_NE(wrong.dump().find("on rank 1"), std::string::npos) << wrong;
}

// The trace has an error in the middle. All ranks end, with the exit code that a single process would have.
TEST(MpiRanks, EndTogetherWhenTheTraceTurnsBad) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 1);
  write_text(folder / "trace.jsonl", text_of(folder / "trace.jsonl") + "{\"timestamp\": 99999, \"input_length\": \n");
  const Outcome outcome = run_ranks(folder, settings);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("trace.jsonl"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));
}

// Returns the position of the library in the list of shared libraries. The dynamic linker searches them in this order,
// and SimGrid also has MPI functions, which are simulated.
std::size_t place_among_libraries(const std::string& text, const std::string& library) {
  return text.find("Shared library: [" + library);
}

TEST(MpiRanks, TheRealMpiComesBeforeTheSimulatedOne) {
  for (const std::string& program : {program(), fs::read_symlink("/proc/self/exe").string()}) {
    const Folder folder;
    const std::string command = "readelf -d '" + program + "' > '" + (folder / "libraries") + "'";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const std::string libraries = text_of(folder / "libraries");
    const std::size_t mpi = place_among_libraries(libraries, "libmpi.");
    ASSERT_NE(mpi, std::string::npos) << libraries;
    EXPECT_LT(mpi, place_among_libraries(libraries, "libsimgrid")) << libraries;
  }
}

}  // namespace
}  // namespace kvtwin::test
#endif
