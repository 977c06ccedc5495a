// Runs `mpirun -np N*R kvtwin run` with several engines in tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "tests/mpi_run.hpp"

namespace kvtwin::test {

// A trace of which only one request at a time is in the system: one session in a closed loop. The next request comes
// `gap_ms` on average after an answer, so pages have moved by then. Decisions do not depend on the speed of a machine.
inline Settings one_after_another(const Folder& folder, std::uint64_t seed, std::uint64_t requests,
                                  std::uint64_t gap_ms = 10) {
  const Conversations c{.requests = requests,
                        .block_tokens = 16,
                        .first_blocks = 6,
                        .growth_blocks = 2,
                        .live = 6,
                        .output = 6,
                        .least_gap_ms = gap_ms / 2,
                        .gap_ms = gap_ms / 2};
  std::istringstream lines(conversations(c, seed).text());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    Json request = Json::parse(line);
    request["session"] = 1;
    text += request.dump() + "\n";
  }
  write_text(folder / "trace.jsonl", text);
  return {"workload.trace=" + (folder / "trace.jsonl"), "workload.block_tokens=16", "workload.loop=closed"};
}

// Engines with small tiers, so that both evict pages and load pages again.
inline Settings small_engines(std::size_t engines, std::size_t ranks = 1) {
  return {"cluster.engines=" + std::to_string(engines),
          "parallel.tp=" + std::to_string(ranks),
          "cache.page_tokens=4",
          "tiers.device.tokens=800",
          "tiers.host.tokens=2400",
          "scheduler.chunk_tokens=96",
          "cache.load_back_min_tokens=4"};
}

// Each process has a journal that replays to the same decisions; all ranks of an engine have decided alike.
inline void expect_equal_journals(const Folder& folder, const Json& report, std::size_t engines, std::size_t ranks) {
  ASSERT_EQ(report.at("engines").size(), engines);
  std::uint64_t decisions = 0;
  for (std::size_t engine = 0; engine < engines; ++engine) {
    const Json& one = report.at("engines")[engine];
    decisions += one.at("decisions").at("count").get<std::uint64_t>();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE("engine " + std::to_string(engine) + ", rank " + std::to_string(rank));
      if (ranks > 1) {
        EXPECT_EQ(one.at("ranks")[rank].at("digest"), one.at("decisions").at("digest"));
      }
      const Json again = run({"replay", folder / journal_of(engine * ranks + rank), "--json"}).json();
      EXPECT_EQ(again.at("verdict"), "equal");
      EXPECT_EQ(again.at("decisions"), one.at("decisions"));
    }
  }
  EXPECT_EQ(report.at("decisions").at("count"), decisions);
}

// How many requests a run serves of which a process is killed. With more processes than cores it is slow, because the
// ranks of an engine wait for each other in each step.
inline std::uint64_t requests_around_a_kill(std::size_t ranks) { return ranks == 1 ? 1500 : 300; }

// Kills one of the processes in the middle of the run, under mpirun's --enable-recovery.
inline Outcome run_and_kill(const Folder& folder, const Settings& settings, std::size_t engines, std::size_t ranks,
                            std::size_t killed) {
  Surroundings around = started_by_mpirun(engines * ranks);
  around.wrapper.emplace_back("--enable-recovery");
  Process process(run_arguments(folder, settings), around);
  const std::filesystem::path journal = std::filesystem::canonical(folder.path()) / journal_of(killed);
  EXPECT_TRUE(kill_in_the_middle(process, journal, ranks == 1 ? 40'000 : 15'000));
  return process.wait();
}

// Engine `dead` has died, and the others have served all requests.
inline void expect_served_by_others(const Folder& folder, const Outcome& outcome, std::size_t engines,
                                    std::size_t ranks, std::size_t dead) {
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::uint64_t sent = requests_around_a_kill(ranks);
  const Json report = Json::parse(text_of(folder / "run/report.json"));
  const auto count = [&](const char* what) { return report.at("requests").at(what).get<std::uint64_t>(); };
  EXPECT_EQ(count("completed") + count("rejected"), sent);
  EXPECT_EQ(count("failed"), 0U);
  EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_NE(report.at("notes").dump().find("engine " + std::to_string(dead) + " has died"), std::string::npos)
      << report.at("notes");
  const Table rows(text_of(folder / "run/requests.csv"));
  ASSERT_EQ(rows.size(), sent);
  std::set<std::uint64_t> requests;
  for (std::size_t row = 0; row < rows.size(); ++row) requests.insert(rows.integer(row, "request"));
  EXPECT_EQ(requests.size(), sent) << "each request has one end";
  for (std::size_t process = 0; process < engines * ranks; ++process) {
    SCOPED_TRACE(journal_of(process));
    const Outcome again = run({"replay", folder / journal_of(process)});
    const bool whole = process / ranks != dead;
    EXPECT_EQ(again.exit_code, whole ? 0 : 2) << again.out << again.err;
    EXPECT_EQ(again.err.find("truncated: equal up to") == std::string::npos, whole) << again.err;
  }
}

}  // namespace kvtwin::test
