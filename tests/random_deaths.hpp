// Kills a process of a real run at a random moment, from its start to its last answer. A seed determines the run, the
// process and the moment; what the process does at that moment depends on the machine.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <thread>

#include "tests/engines_run.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

struct RandomRun {
  Settings settings;  // beside the trace and the storage
  std::size_t processes = 1;
};

inline constexpr std::uint64_t kRequestsOfRandomRun = 300;

inline Settings random_storage(const Folder& folder, Splitmix& random) {
  const auto pick = [&](std::initializer_list<const char*> values) {
    return std::string(*(values.begin() + random.below(values.size())));
  };
  Settings settings{"cache.prefetch_policy=" + pick({"best_effort", "wait_complete", "timeout", "cost_stop"}),
                    "cache.prefetch_min_tokens=4"};
  if (random.chance(60)) {
    settings.push_back("tiers.shared_fs.path=" + (folder / "shared"));
    settings.push_back("tiers.shared_fs.tokens=8192");
  }
  if (random.chance(40)) {
    settings.push_back("tiers.disk.path=" + (folder / "disk"));
    settings.push_back("tiers.disk.tokens=8192");
  }
  return settings;
}

// Waits for a random moment. Returns the process that is to be killed, or 0 if the run has ended before.
inline pid_t victim_at_random(const Process& process, const Folder& folder, std::size_t number, Splitmix& random) {
  const fs::path journal = fs::canonical(folder.path()) / journal_of(number);
  const std::uint64_t moment = random.below(8), bytes = random.below(120'000);
  const auto has_come = [&] {
    if (moment == 0) return true;
    if (moment == 1) return fs::exists(folder / "run/experiment.resolved.toml");
    std::error_code error;
    const std::uintmax_t size = fs::file_size(journal, error);
    return !error && size > bytes;
  };
  for (; !has_ended(process); std::this_thread::yield()) {
    if (!has_come()) continue;
    if (const pid_t victim = process_of_rank(folder.path(), number); victim != 0) return victim;
  }
  return 0;
}

// The run ends in one of these ways: the others have served all requests, or a sentence says who has died.
inline void expect_an_end(const Folder& folder, const Outcome& outcome, std::map<std::string, int>& ends) {
  EXPECT_NE(outcome.exit_code, kHung) << outcome.err;
  EXPECT_EQ(outcome.signal, 0) << "a run that hangs in spite of SIGTERM: " << outcome.err;
  EXPECT_EQ(outcome.err.find("broken promise"), std::string::npos) << outcome.err;
  const fs::path path = folder / "run/report.json";
  if (outcome.exit_code != 0) {
    ++ends["ended with a sentence"];
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    // Before the run begins, MPI may not have started everywhere, and Open MPI ends it with a message of its own.
    const bool of_mpi =
        !fs::exists(folder / "run/experiment.resolved.toml") && outcome.err.find("PMIX ERROR") != std::string::npos;
    EXPECT_TRUE(of_mpi || outcome.err.find(" died") != std::string::npos) << outcome.err;
    return;
  }
  ++ends["served"];
  ASSERT_TRUE(fs::exists(path)) << outcome.err;
  const Json report = Json::parse(text_of(path));
  const auto count = [&](const char* of, const char* what) { return report.at(of).at(what).get<std::uint64_t>(); };
  EXPECT_EQ(count("requests", "completed") + count("requests", "rejected"), kRequestsOfRandomRun);
  EXPECT_EQ(count("requests", "failed"), 0U);
  EXPECT_EQ(count("prefetch", "open"), 0U) << report.at("prefetch");
  EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  if (count("prefetch", "engine_lost") > 0) ++ends["served, and prefetches were lost"];
}

// KVTWIN_STORM_SEED=N: only this seed. KVTWIN_DEEP=1: 200 seeds instead of `few`.
inline void expect_ends_after_random_deaths(std::uint64_t few, const std::function<RandomRun(Splitmix&)>& draw) {
  std::map<std::string, int> ends;
  const auto run_seed = [&](std::uint64_t seed) {
    SCOPED_TRACE("reproduce: KVTWIN_STORM_SEED=" + std::to_string(seed));
    Splitmix random(seed);
    const Folder folder;
    const RandomRun drawn = draw(random);
    const Settings settings = busy_ranks(folder, seed, kRequestsOfRandomRun) + random_storage(folder, random);
    Surroundings around = started_by_mpirun(drawn.processes);
    around.wrapper.emplace_back("--enable-recovery");
    Process process(run_arguments(folder, settings + drawn.settings), around);
    const pid_t victim = victim_at_random(process, folder, random.below(drawn.processes), random);
    if (victim != 0 && random.chance(30)) kill(victim, SIGSTOP);
    if (victim != 0) kill(victim, SIGKILL);
    expect_an_end(folder, process.wait(), ends);
  };
  if (const char* one = std::getenv("KVTWIN_STORM_SEED")) return run_seed(std::strtoull(one, nullptr, 10));
  const std::uint64_t seeds = std::getenv("KVTWIN_DEEP") != nullptr ? 200 : few;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) run_seed(seed);
  for (const auto& [end, runs] : ends) std::printf("%5d %s\n", runs, end.c_str());
}

}  // namespace kvtwin::test
