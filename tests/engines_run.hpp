// Runs `mpirun -np N*R kvtwin run` with several engines in tests.
#pragma once

#include <cstdint>
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
      const std::size_t process = engine * ranks + rank;
      const std::string journal = process == 0 ? "run/journal.kvj" : "run/journal." + std::to_string(process) + ".kvj";
      const Json again = run({"replay", folder / journal, "--json"}).json();
      EXPECT_EQ(again.at("verdict"), "equal");
      EXPECT_EQ(again.at("decisions"), one.at("decisions"));
    }
  }
  EXPECT_EQ(report.at("decisions").at("count"), decisions);
}

}  // namespace kvtwin::test
