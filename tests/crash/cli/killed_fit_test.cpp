// kill -9 in the middle of a fit to a capture: nothing is left that looks like a result.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

TEST(KilledFit, LeavesNothing) {
  const Folder folder;
  simulate_to(folder, "run", {"model.name=tiny", "hardware.name=cpu-host", "workload.limit=20"}, false, "events");
  const std::string requests = folder / "requests.jsonl";
  mkfifo(requests.c_str(), 0600);
  const auto wait_for_reader = [&] { return open(requests.c_str(), O_WRONLY | O_CLOEXEC); };
  Process process({"calibrate", "--from", folder / "run", "--experiment", folder / "run/experiment.resolved.toml",
                   "--set", "workload.trace=" + requests, "--set", "workload.format=mooncake", "--set",
                   "workload.block_tokens=512", "--out", folder / "out", "--jobs", "1"});
  const int first = wait_for_reader();  // the program reads the requests
  ASSERT_GE(first, 0);
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    lines += R"({"timestamp": )" + std::to_string(10 * i) +
             R"(, "input_length": 40, "output_length": 6, "hash_ids": [)" + std::to_string(i) + "]}\n";
  }
  ASSERT_EQ(write(first, lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  close(first);
  const int second = wait_for_reader();  // a simulation reads them
  ASSERT_GE(second, 0);
  process.kill();
  EXPECT_EQ(process.wait().signal, SIGKILL);
  close(second);
  EXPECT_FALSE(fs::exists(folder / "out"));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }
}

}  // namespace
}  // namespace kvtwin::test
