// Runs `mpirun -np N kvtwin run` in tests: as root, on one machine, with more ranks than cores, without a network.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/real_run.hpp"

namespace kvtwin::test {

// `timeout` ends the run after two minutes, so that a run that hangs fails its test and leaves no processes.
inline Surroundings started_by_mpirun(std::size_t processes) {
  Surroundings around;
  around.wrapper = {"timeout",
                    "-k",
                    "20",
                    "120",
                    KVTWIN_MPIRUN,
                    "--quiet",
                    "-np",
                    std::to_string(processes),
                    "--allow-run-as-root",
                    "--oversubscribe",
                    "--bind-to",
                    "none",
                    "--mca",
                    "btl",
                    "self,vader",
                    "--mca",
                    "btl_vader_single_copy_mechanism",
                    "none",
                    "--mca",
                    "plm",
                    "isolated"};
  return around;
}
inline constexpr int kHung = 124;

// A model with four heads, for up to four ranks.
inline Settings model_of_ranks(const Folder& folder) {
  write_text(folder / "config.json",
             R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "vocab_size": 32,
                 "torch_dtype": "bfloat16"})");
  return {"model.config=" + (folder / "config.json")};
}

// Tiers that hold a few prompts, so that both evict pages and load pages again. Several requests run at the same time.
inline Settings busy_ranks(const Folder& folder, std::uint64_t seed, std::uint64_t requests = 80) {
  const Conversations c{.requests = requests,
                        .block_tokens = 16,
                        .first_blocks = 6,
                        .growth_blocks = 2,
                        .live = 8,
                        .output = 12,
                        .gap_ms = 2};
  return model_of_ranks(folder) + conversations(c, seed).save(folder) + Settings{"cache.page_tokens=4",
                                                                                 "tiers.device.tokens=800",
                                                                                 "tiers.host.tokens=2400",
                                                                                 "scheduler.chunk_tokens=96",
                                                                                 "cache.load_back_min_tokens=4",
                                                                                 "workload.time_scale=0.1",
                                                                                 "parallel.tp=2"};
}

inline Outcome run_ranks(const Folder& folder, const Settings& settings, std::size_t processes = 2,
                         const std::string& out = "run", const std::vector<std::string>& more = {}) {
  return run(run_arguments(folder, settings, out, more), started_by_mpirun(processes));
}

// The journal of a process, in the folder of a test whose run is "run".
inline std::string journal_of(std::size_t process) {
  return process == 0 ? "run/journal.kvj" : "run/journal." + std::to_string(process) + ".kvj";
}

// Each rank's journal replays to the same decisions, and the decisions of all ranks are equal.
inline void expect_equal_ranks(const Folder& folder, const Json& report, std::size_t ranks) {
  ASSERT_EQ(report.at("ranks").size(), ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    EXPECT_EQ(report.at("ranks")[rank].at("digest"), report.at("decisions").at("digest"));
    EXPECT_EQ(report.at("ranks")[rank].at("reductions"), report.at("ranks")[0].at("reductions"));
    EXPECT_GT(report.at("ranks")[rank].at("reductions").get<std::uint64_t>(), 0U);
    const Json again = run({"replay", folder / journal_of(rank), "--json"}).json();
    EXPECT_EQ(again.at("verdict"), "equal");
    EXPECT_EQ(again.at("decisions"), report.at("decisions"));
  }
}

// Returns the id of the process that has `file` open, or 0.
inline pid_t process_with(const std::filesystem::path& file) {
  std::error_code error;
  for (const std::filesystem::directory_entry& process : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t id = std::atoi(process.path().filename().c_str());
    if (id <= 0) continue;
    for (const std::filesystem::directory_entry& open :
         std::filesystem::directory_iterator(process.path() / "fd", error)) {
      if (std::filesystem::read_symlink(open.path(), error) == file) return id;
    }
    error.clear();  // the process has ended, or belongs to another user
  }
  return 0;
}

// Returns the id of the process of a run in `folder` that mpirun has given this number, or 0.
inline pid_t process_of_rank(const std::filesystem::path& folder, std::size_t rank) {
  const auto read = [](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  std::error_code error;
  for (const std::filesystem::directory_entry& process : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t id = std::atoi(process.path().filename().c_str());
    if (id <= 0) continue;
    const std::string command = read(process.path() / "cmdline"), environment = read(process.path() / "environ");
    if (!command.starts_with(program()) || command.find(folder.string()) == std::string::npos) continue;
    const std::string number = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
    if (environment.find(number + '\0') != std::string::npos) return id;
  }
  return 0;
}

inline bool has_ended(const Process& process) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(process.id()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

// Kills the process of a run that writes this journal, once the journal has more than `bytes` bytes. Returns false if
// the run has ended before.
inline bool kill_in_the_middle(const Process& process, const std::filesystem::path& journal, std::uintmax_t bytes) {
  std::error_code error;
  const auto grown = [&] {
    const std::uintmax_t size = std::filesystem::file_size(journal, error);
    return !error && size > bytes;
  };
  while (!grown() && !has_ended(process)) std::this_thread::yield();
  const pid_t victim = process_with(journal);
  return victim > 0 && kill(victim, SIGKILL) == 0;
}

// The run is refused before it begins: exit code 2, and one sentence of all processes that says these words.
inline void expect_refused(const Folder& folder, const Outcome& outcome, const std::vector<std::string>& says) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  for (const std::string& words : says) {
    EXPECT_NE(outcome.err.find(words), std::string::npos) << words << " isn't in: " << outcome.err;
  }
  const std::size_t first = outcome.err.find("kvtwin: ");
  EXPECT_EQ(outcome.err.find("kvtwin: ", first + 1), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

}  // namespace kvtwin::test
