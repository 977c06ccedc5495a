// Real runs with engines that only prefill or only decode, of models with windows or with states: each kind of KV goes
// from process to process, and the passes of the decode engines check it.
#include <gtest/gtest.h>

#include <string>

#include "tests/hybrid_run.hpp"
#include "tests/remote/roles_run.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

Settings hybrid(const Folder& folder, const HybridKind& kind) {
  write_text(folder / "config.json", kind.config);
  return {"engine=sglang", "serving.engine=none", "model.config=" + (folder / "config.json")};
}

void expect_checked(const Simulated& real, const HybridKind& kind) {
  const Json& part = real.report.at("real").at("verified").at(kind.verified);
  EXPECT_GT(part.at("read"), 0);
  EXPECT_EQ(part.at("bytes_checked"), part.at("bytes_read"));
}

// A decode engine reads the windows before the prompt's end, or the state at its end, in its first pass.
TEST(RealRolesOfHybrids, DecideAsInTheSimulation) {
  for (const HybridKind& kind : kRankHybridKinds) {
    for (const std::size_t ranks : {1U, 2U}) {
      for (const char* unit : {"chunks", "whole"}) {
        SCOPED_TRACE(std::string(kind.verified) + ", " + unit + ", ranks " + std::to_string(ranks));
        const Folder folder;
        const Settings model =
            hybrid(folder, kind) + Settings{kind.device_setting, "cluster.hand_over=" + std::string(unit)};
        expect_checked(expect_simulated_decisions(folder, model, 2, ranks), kind);
      }
    }
  }
}

// Several requests at once: pools evict, engines wait for room, and decode engines cache what they have received. The
// engines of both roles share a folder.
TEST(RealRolesOfHybrids, ServeABusyStream) {
  for (const HybridKind& kind : kRankHybridKinds) {
    for (const std::size_t ranks : {1U, 2U}) {
      SCOPED_TRACE(std::string(kind.verified) + ", ranks " + std::to_string(ranks));
      const Folder folder;
      const std::size_t decode = ranks == 1 ? 2 : 1;
      const Settings work = busy_ranks(folder, 4, 100);
      const Outcome outcome = run_ranks(
          folder,
          work + hybrid(folder, kind) + with_roles(1, decode, ranks) + with_library() + Settings{kind.device_setting},
          (1 + decode) * ranks);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      const Simulated real = read_run(outcome, folder / "run");
      EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 100U);
      EXPECT_GT(real.report.at("hand_overs").at("requests").get<int>(), 50);
      expect_right_pages(folder, real, 1 + decode, ranks);
      expect_checked(real, kind);
    }
  }
}

// A prefill engine refuses what its queue has no place for, while the decode engine has leased slots of every kind.
TEST(RealRolesOfHybrids, LeasesOfRefusedRequestsEnd) {
  for (const HybridKind& kind : kRankHybridKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    const Settings work = busy_ranks(folder, 4, 150);
    const Outcome outcome =
        run_ranks(folder,
                  work + hybrid(folder, kind) + with_roles(1, 1) + with_library() +
                      Settings{kind.device_setting, "scheduler.max_waiting=2", "workload.time_scale=0.2"},
                  2);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder / "run");
    EXPECT_GT(real.requests("rejected"), 0U);
    EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 150U);
    expect_right_pages(folder, real, 2);
  }
}

TEST(RealRolesOfHybrids, TheOthersServeTheRequestsOfAnEngineThatDies) {
  std::size_t dead = 1;  // a prefill engine, then a decode engine
  for (const HybridKind& kind : kHybridKinds) {
    SCOPED_TRACE(std::string(kind.verified) + ", engine " + std::to_string(dead));
    expect_others_serve(2, 2, 1, dead,
                        [&](const Folder& folder) { return hybrid(folder, kind) + Settings{kind.device_setting}; });
    dead += 2;
  }
}

}  // namespace
}  // namespace kvtwin::test
#endif
