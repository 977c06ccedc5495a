// `mpirun kvtwin run` with engines that only prefill or only decode: pages go from process to process by NIXL. The
// decisions are compared with those of the simulated cluster.
#include <gtest/gtest.h>

#include <string>

#include "tests/random_deaths.hpp"
#include "tests/remote/roles_run.hpp"

#if KVTWIN_HAVE_MPI
namespace kvtwin::test {
namespace {

// Requests far apart are decided as in the simulation.
void expect_simulated_decisions(std::size_t engines, std::size_t ranks) {
  for (const char* unit : {"chunks", "whole"}) {
    SCOPED_TRACE(unit);
    const Folder folder;
    expect_simulated_decisions(folder, model_of_ranks(folder) + Settings{"cluster.hand_over=" + std::string(unit)},
                               engines, ranks);
  }
}

TEST(RealRoles, DecideAsInTheSimulation) { expect_simulated_decisions(4, 1); }

// Each rank has its own heads, and writes them to the rank of its number.
TEST(RealRoles, DecideAsInTheSimulationOnTwoRanksEach) { expect_simulated_decisions(2, 2); }

// Several requests at once: pages are evicted, and engines wait for room.
void expect_busy_stream_served(std::size_t decode, std::size_t ranks) {
  const Folder folder;
  const Outcome outcome = run_ranks(
      folder,
      busy_ranks(folder, 4, 100) + with_roles(1, decode, ranks) + Settings{"tiers.device.tokens=900"} + with_library(),
      (1 + decode) * ranks);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 100U);
  EXPECT_GT(real.report.at("hand_overs").at("requests").get<int>(), 50);
  double sum = 0;
  for (const auto& [part, mean] : real.report.at("ttft_parts_seconds").items()) sum += mean.get<double>();
  EXPECT_NEAR(sum, real.report.at("ttft_seconds").at("mean").get<double>(), 1e-6);
  const std::uint64_t bytes = real.report.at("hand_overs").at("bytes");
  std::uint64_t page_bytes = 0;
  for (const auto& lane : real.report.at("lanes")) {
    if (lane.at("name").get<std::string>().ends_with(".peer")) page_bytes += lane.at("bytes").get<std::uint64_t>();
  }
  EXPECT_EQ(bytes, page_bytes) << "each byte once, of all ranks";
  expect_right_pages(folder, real, 1 + decode, ranks);
}

TEST(RealRoles, ServeABusyStream) { expect_busy_stream_served(2, 1); }
TEST(RealRoles, ServeABusyStreamOnTwoRanksEach) { expect_busy_stream_served(1, 2); }
TEST(RealRoles, ServeABusyStreamOnSeveralDecodeEnginesOfTwoRanks) { expect_busy_stream_served(2, 2); }

// All ranks have the whole latent, and each writes its own copy. It counts once, as in a simulation.
TEST(RealRoles, HandLatentsOverOnTwoRanksEach) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 4, 60) + with_roles(1, 1, 2);
  write_text(folder / "config.json",
             R"({"model_type": "deepseek_v3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "kv_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
                 "intermediate_size": 32, "vocab_size": 32, "torch_dtype": "bfloat16"})");
  const Outcome outcome = run_ranks(folder, settings + with_library(), 4);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 60U);
  expect_right_pages(folder, real, 2, 2);
  const auto page_bytes = [](const Json& report) {
    const Json& hand_overs = report.at("hand_overs");
    return hand_overs.at("bytes").get<double>() / hand_overs.at("pages").get<double>();
  };
  EXPECT_EQ(page_bytes(real.report), page_bytes(simulate(settings).report));
}

// A prefill engine refuses what its queue has no place for, while the decode engine's ranks agree on their lease.
TEST(RealRoles, LeasesOfRefusedRequestsEndOnAllRanks) {
  const Folder folder;
  const Outcome outcome = run_ranks(folder,
                                    busy_ranks(folder, 4, 150) + with_roles(1, 1, 2) + with_library() +
                                        Settings{"scheduler.max_waiting=2", "workload.time_scale=0.2"},
                                    4);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  EXPECT_GT(real.requests("rejected"), 0U);
  EXPECT_EQ(real.requests("completed") + real.requests("rejected"), 150U);
  expect_right_pages(folder, real, 2, 2);
}

// A real run has no layers: the resolved experiment says so, and the journals replay.
TEST(RealRoles, WriteByChunksInsteadOfLayers) {
  const Folder folder;
  const Outcome outcome = run_ranks(
      folder, busy_ranks(folder, 4, 30) + with_roles(1, 1, 2) + Settings{"cluster.hand_over=layers"} + with_library(),
      4);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Simulated real = read_run(outcome, folder.path() / "run");
  EXPECT_NE(text_of(folder / "run/experiment.resolved.toml").find("cluster.hand_over = 'chunks'  # kvtwin run"),
            std::string::npos);
  EXPECT_NE(real.report.at("notes").dump().find("so this is chunks"), std::string::npos);
  expect_right_pages(folder, real, 2, 2);
}

TEST(RealRoles, TheOthersServeTheRequestsOfAPrefillEngineThatDies) { expect_others_serve(2, 2, 1, 1); }
TEST(RealRoles, TheOthersServeTheRequestsOfADecodeEngineThatDies) { expect_others_serve(2, 2, 1, 3); }
TEST(RealRoles, APrefillEngineDiesWhenOneOfItsRanksDies) { expect_others_serve(2, 1, 2, 2); }
TEST(RealRoles, ADecodeEngineDiesWhenOneOfItsRanksDies) { expect_others_serve(1, 2, 2, 5); }

TEST(RealRoles, EndWithOneSentenceIfNobodyElseCanServe) {
  for (const std::size_t ranks : {1U, 2U}) {
    for (const std::size_t dead : {0U, 1U}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, engine " + std::to_string(dead));
      const Folder folder;
      const Outcome outcome = run_roles_and_kill(folder, 1, 1, ranks, dead * ranks + ranks - 1);
      EXPECT_NE(outcome.exit_code, kHung) << outcome.err;
      EXPECT_EQ(outcome.signal, 0) << "a run that hangs in spite of SIGTERM";
      EXPECT_NE(outcome.err.find(dead == 0 ? "has died, and the run cannot go on without it"
                                           : "engine 1 has died, and no other engine can serve its requests"),
                std::string::npos)
          << outcome.out << outcome.err;
      EXPECT_EQ(outcome.exit_code, 1) << "signal " << outcome.signal << ", " << outcome.out << outcome.err;
      EXPECT_FALSE(fs::exists(folder / "run/report.json"));
    }
  }
}

// KVTWIN_DEEP=1: 200 seeds.
TEST(RealRoles, EndAfterDeathsAtRandomMoments) {
  expect_ends_after_random_deaths(3, [](Splitmix& random) -> RandomRun {
    const std::size_t ranks = random.chance(30) ? 2 : 1;
    const std::size_t prefill = random.between(1, 2), decode = random.between(1, ranks == 1 ? 2 : 1);
    return {with_roles(prefill, decode, ranks) + with_library(), (prefill + decode) * ranks};
  });
}

TEST(RealRoles, AreRefusedInOneSentence) {
  const Folder folder;
  const Settings settings = busy_ranks(folder, 4, 10) + with_roles(1, 1);
  const auto expect_refused = [&](const Settings& more, std::size_t processes, const std::string& words) {
    const Outcome outcome = run_ranks(folder, settings + more, processes);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << words << " isn't in: " << outcome.err;
    const std::size_t first = outcome.err.find("kvtwin: ");
    EXPECT_EQ(outcome.err.find("kvtwin: ", first + 1), std::string::npos) << outcome.err;
  };
  expect_refused({"real.nixl_library=/nowhere"}, 2, "real.nixl_library (--set): NIXL can't be loaded (/nowhere");
  expect_refused(with_library(), 3, "cluster.decode (--set) is 1, and 3 processes were started");
  expect_refused({"cluster.decode_set=parallel.tp=2"}, 2, "each rank writes to the rank of its number");
  expect_refused(
      {"cluster.decode_set=model.draft.kind=side_pool, model.draft.config=tiny, model.draft.accept_length=2.5, "
       "model.draft.tokens=2"},
      2, "gives only decode engines a draft model");
  expect_refused({"cluster.hand_over_staged=true"}, 2, "from device pool to device pool");
}

}  // namespace
}  // namespace kvtwin::test
#endif
