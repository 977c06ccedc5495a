// kill -9 in the middle of a real run. A real run cannot be repeated exactly, so its recorded data must stay; no file
// may look like the result of a finished run; and the next run must be able to start.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <thread>
#include <vector>

#include "lab/run/journal_file.hpp"
#include "policy/seam/journal.hpp"
#include "tests/real_run.hpp"

#if KVTWIN_TEST_REAL
namespace kvtwin::test {
namespace {

class KilledRun : public testing::Test {
 protected:
  KilledRun() : settings_(small_model(folder_) + conversations({.requests = 20, .block_tokens = 16}, 1).save(folder_)) {
    mkfifo((folder_ / "endless.jsonl").c_str(), 0600);
    settings_ = settings_ + Settings{"cache.page_tokens=4", "tiers.device.tokens=4000", "tiers.host.tokens=8000",
                                     "workload.time_scale=1e-6"};
  }

  // The trace comes through a pipe that never ends. The program is killed when its journal has reached a certain size.
  void kill_in_the_middle() {
    Process process(run_arguments(folder_, settings_ + Settings{"workload.trace=" + (folder_ / "endless.jsonl")}));
    const int pipe = open((folder_ / "endless.jsonl").c_str(), O_WRONLY | O_CLOEXEC);  // waits for the reader
    ASSERT_GE(pipe, 0);
    const fs::path journal = folder_ / "run/journal.kvj";
    std::error_code error;
    const auto size = [&] {
      const std::uintmax_t bytes = fs::file_size(journal, error);
      return error ? 0 : bytes;
    };
    for (std::uint64_t i = 0; size() < 200'000; ++i) {
      std::string text;
      for (std::uint64_t line = 0; line < 50; ++line) {
        text += R"({"timestamp": )" + std::to_string(50 * i + line) +
                R"(, "input_length": 40, "output_length": 6, "hash_ids": [1, )" + std::to_string(i % 7 + 2) + ", " +
                std::to_string(1000 + 50 * i + line) + "]}\n";
      }
      ASSERT_EQ(write(pipe, text.data(), text.size()), static_cast<ssize_t>(text.size()));
      std::this_thread::yield();
    }
    process.kill();
    const Outcome outcome = process.wait();
    close(pipe);
    EXPECT_EQ(outcome.signal, SIGKILL) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_GE(size(), 200'000U);
  }

  Folder folder_;
  Settings settings_;
};

TEST_F(KilledRun, KeepsItsJournalAndLooksUnfinished) {
  kill_in_the_middle();
  EXPECT_FALSE(fs::exists(folder_ / "run/report.json"));
  EXPECT_TRUE(fs::exists(folder_ / "run/experiment.resolved.toml"));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }

  // The replay of the journal decides the same as the run, up to the last recorded input.
  const std::vector<std::byte> bytes = read_journal(folder_ / "run/journal.kvj");
  JournalReader reader(bytes);
  JournalRecord record;
  std::uint64_t inputs = 0;
  DecisionMark last;
  JournalStatus status = JournalStatus::record;
  while ((status = reader.next(record)) == JournalStatus::record) {
    ++inputs;
    last = record.after;
  }
  EXPECT_EQ(status, JournalStatus::truncated);
  EXPECT_GT(inputs, 100U);
  EXPECT_GT(last.count, 0U);
  const Outcome told = run({"replay", folder_ / "run"});
  EXPECT_EQ(told.exit_code, 2);
  EXPECT_EQ(told.out, "");
  EXPECT_NE(told.err.find("truncated"), std::string::npos) << told.err;
  EXPECT_NE(told.err.find("equal"), std::string::npos) << told.err;
  const Outcome outcome = run({"replay", folder_ / "run", "--json"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  const Json again = Json::parse(outcome.out);
  EXPECT_EQ(again.at("verdict"), "truncated");
  EXPECT_EQ(again.at("inputs"), inputs);
  EXPECT_EQ(again.at("decisions").at("count"), last.count);

  const Outcome refused = run(run_arguments(folder_, settings_));
  EXPECT_EQ(refused.exit_code, 2) << "it isn't replaced by accident";
  const Outcome forced = run(run_arguments(folder_, settings_, "run", {"--force"}));
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_TRUE(fs::exists(folder_ / "run/report.json"));
}

}  // namespace
}  // namespace kvtwin::test
#endif
