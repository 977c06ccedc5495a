// `mpirun kvtwin run` with engines that only prefill or only decode, in tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>

#include "tests/engines_run.hpp"
#include "tests/remote/environment.hpp"

namespace kvtwin::test {

inline Settings with_roles(std::size_t prefill, std::size_t decode, std::size_t ranks = 1) {
  Settings settings = small_engines(1, ranks);
  settings.erase(settings.begin());  // cluster.engines
  return settings + Settings{"cluster.prefill=" + std::to_string(prefill), "cluster.decode=" + std::to_string(decode),
                             "tiers.device.tokens=1600", "cluster.hand_over=chunks"};
}

inline Settings with_library() { return {"real.nixl_library=" + remote_packages().string()}; }

inline void expect_right_pages(const Folder& folder, const Simulated& real, std::size_t engines,
                               std::size_t ranks = 1) {
  EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
  EXPECT_GT(real.report.at("hand_overs").at("bytes").get<std::uint64_t>(), 0U);
  expect_equal_journals(folder, real.report, engines, ranks);
  EXPECT_EQ(run({"replay", folder / "run"}).exit_code, 0) << "the folder";
}

// Serves one request after another, which both worlds decide alike. Returns the real run. `model`: settings of a model
// that is in the folder.
inline Simulated expect_simulated_decisions(const Folder& folder, const Settings& model, std::size_t engines,
                                            std::size_t ranks) {
  const Settings settings = one_after_another(folder, 5, 30) + with_roles(engines / 2, engines / 2, ranks) +
                            Settings{"cluster.hand_over_min_tokens=250"} + model;
  const Simulated expected = simulate(settings);
  const Outcome outcome = run_ranks(folder, settings + with_library(), engines * ranks);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  if (outcome.exit_code != 0) return expected;
  Simulated real = read_run(outcome, folder.path() / "run");
  const Table simulated(expected.requests_csv), got(real.requests_csv);
  EXPECT_EQ(simulated.size(), 30U);
  EXPECT_EQ(got.size(), 30U);
  for (std::size_t row = 0; row < simulated.size(); ++row) {
    const std::size_t at = got.row_of("request", simulated.integer(row, "request"));
    for (const char* count : {"engine", "prompt_tokens", "output_tokens", "hit_device", "hit_host", "miss"}) {
      EXPECT_EQ(simulated.text(row, count), got.text(at, count)) << count << " of row " << row;
    }
  }
  for (const char* figure : {"requests", "pages", "bytes", "fell_back", "sent_again"}) {
    EXPECT_EQ(real.report.at("hand_overs").at(figure), expected.report.at("hand_overs").at(figure)) << figure;
  }
  EXPECT_GT(real.report.at("hand_overs").at("requests").get<int>(), 10);
  EXPECT_LT(real.report.at("hand_overs").at("requests").get<int>(), 30) << "short prompts stay whole";
  expect_right_pages(folder, real, engines, ranks);
  return real;
}

// `more`: settings of a model in the folder, or none.
inline Outcome run_roles_and_kill(const Folder& folder, std::size_t prefill, std::size_t decode, std::size_t ranks,
                                  std::size_t killed, const std::function<Settings(const Folder&)>& more = {}) {
  Settings settings = busy_ranks(folder, 4, requests_around_a_kill(ranks)) + with_roles(prefill, decode, ranks) +
                      with_library() + Settings{"workload.time_scale=0.1"};
  if (more) settings = settings + more(folder);
  return run_and_kill(folder, settings, prefill + decode, ranks, killed);
}

// `killed`: a process. The other ranks of its engine end with it.
inline void expect_others_serve(std::size_t prefill, std::size_t decode, std::size_t ranks, std::size_t killed,
                                const std::function<Settings(const Folder&)>& more = {}) {
  const std::size_t dead = killed / ranks;
  const Folder folder;
  const Outcome outcome = run_roles_and_kill(folder, prefill, decode, ranks, killed, more);
  expect_served_by_others(folder, outcome, prefill + decode, ranks, dead);
  if (testing::Test::HasFatalFailure()) return;
  const Json report = Json::parse(text_of(folder / "run/report.json"));
  EXPECT_GT(report.at("hand_overs").at(dead < prefill ? "fell_back" : "sent_again").get<int>(), 0);
}

}  // namespace kvtwin::test
