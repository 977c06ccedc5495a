// kill -9 in the middle of a simulation: no file may look like the result of a finished run, and the next run must be
// able to start.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// The trace comes through a pipe that never ends. The pipe holds 64 KiB and the buffer of the reader a few hundred KiB.
// So when the program has taken all of a few megabytes, it is in the middle of serving them.
class Killed : public testing::Test {
 protected:
  Killed() { mkfifo((folder_ / "endless.jsonl").c_str(), 0600); }

  std::vector<std::string> arguments(const std::string& trace) const {
    std::vector<std::string> list{
        "simulate", folder_ / "experiment.toml",          "--world", kAnyWorld, "--out", folder_ / "run",
        "--set",    "workload.trace=" + (folder_ / trace)};
    return list;
  }

  // Starts the program, kills it and returns its process id.
  pid_t kill_in_the_middle(std::vector<std::string> list) {
    Process process(list);
    const pid_t id = process.id();
    const int pipe = open((folder_ / "endless.jsonl").c_str(), O_WRONLY | O_CLOEXEC);  // waits for the reader
    std::string text;
    for (int i = 0; text.size() < (4U << 20); ++i) {
      text += R"({"timestamp": )" + std::to_string(1000 * i) +
              R"(, "input_length": 100, "output_length": 1, "hash_ids": [)" + std::to_string(i) + "]}\n";
    }
    std::size_t written = 0;
    while (written < text.size()) {
      const ssize_t n = write(pipe, text.data() + written, text.size() - written);
      if (n <= 0) break;
      written += static_cast<std::size_t>(n);
    }
    EXPECT_EQ(written, text.size());
    process.kill();
    const Outcome outcome = process.wait();
    close(pipe);
    EXPECT_EQ(outcome.signal, SIGKILL) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return id;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
      list.push_back(entry.path().filename().string());
    }
    std::ranges::sort(list);
    return list;
  }

  Folder folder_;
};

TEST_F(Killed, LeavesNothingThatLooksWholeAndTheNextRunWorks) {
  write_text(folder_ / "experiment.toml", "");
  conversations({.requests = 20}, 1).save(folder_);
  const pid_t id = kill_in_the_middle(arguments("endless.jsonl"));
  const std::string partial = ".run.partial." + std::to_string(id);
  EXPECT_EQ(names(), (std::vector<std::string>{partial, "endless.jsonl", "experiment.toml", "trace.jsonl"}));
  EXPECT_FALSE(fs::exists(folder_.path() / partial / "report.json"));

  std::vector<std::string> next = arguments("trace.jsonl");
  next.insert(next.end(), {"--set", "workload.block_tokens=64"});
  const Outcome outcome = run(next);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(folder_ / "run/report.json"));
}

TEST_F(Killed, LeavesTheRunThatItWasToReplace) {
  write_text(folder_ / "experiment.toml", "");
  conversations({.requests = 20}, 1).save(folder_);
  std::vector<std::string> first = arguments("trace.jsonl"), second = arguments("endless.jsonl");
  first.insert(first.end(), {"--set", "workload.block_tokens=64"});
  ASSERT_EQ(run(first).exit_code, 0);
  const std::string report = text_of(folder_ / "run/report.json"), requests = text_of(folder_ / "run/requests.csv");
  second.emplace_back("--force");
  kill_in_the_middle(second);
  EXPECT_EQ(text_of(folder_ / "run/report.json"), report);
  EXPECT_EQ(text_of(folder_ / "run/requests.csv"), requests);
}

}  // namespace
}  // namespace kvtwin::test
