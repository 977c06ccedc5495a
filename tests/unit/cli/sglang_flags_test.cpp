// SGLang's server flags in the program: files, flags and --set together, notes, sweeps, and the line that is printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// ---- the program -------------------------------------------------------------------------------------

class SglangProgram : public testing::Test {
 protected:
  SglangProgram() {
    around_.folder = folder_.path();
    write_text(folder_ / "trace.jsonl",
               R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})");
    write_text(folder_ / "good.toml", "[workload]\ntrace = \"trace.jsonl\"\n[cache]\npage_tokens = 16\n");
  }
  Outcome simulate(std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", "good.toml", "--world", kAnyWorld});
    return run(more, around_);
  }

  Folder folder_;
  Surroundings around_;
};

TEST_F(SglangProgram, Hf3fsIsSimulated) {
  const Outcome outcome =
      simulate({"--json", "--from-sglang-flags", "--enable-hierarchical-cache --hicache-storage-backend hf3fs"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json last = outcome.json().at("tiers").back();
  EXPECT_EQ(last.at("name"), "shared_fs");
  EXPECT_EQ(last.at("used_pages_max"), 600 / 16) << "each full page is written through";
}

TEST_F(SglangProgram, FileThenFlagsThenSet) {
  const auto page_line = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = more;
    arguments.insert(arguments.end(), {"--out", "out", "--force"});
    const Outcome outcome = simulate(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::string resolved = text_of(folder_ / "out/experiment.resolved.toml");
    const std::size_t at = resolved.find("cache.page_tokens");
    return resolved.substr(at, resolved.find('\n', at) - at);
  };
  EXPECT_EQ(page_line({}), "cache.page_tokens = 16  # good.toml:4");
  EXPECT_EQ(page_line({"--from-sglang-flags", "--tp 1"}), "cache.page_tokens = 16  # good.toml:4");
  EXPECT_EQ(page_line({"--from-sglang-flags", "--page-size 32"}),
            "cache.page_tokens = 32  # --from-sglang-flags --page-size");
  write_text(folder_ / "good.toml", "[workload]\ntrace = \"trace.jsonl\"\n");
  EXPECT_EQ(page_line({"--from-sglang-flags", ""}), "cache.page_tokens = 1  # SGLang's default of --page-size");
  EXPECT_EQ(page_line({"--set", "cache.page_tokens=64", "--from-sglang-flags", "--page-size 32"}),
            "cache.page_tokens = 64  # --set");
}

TEST_F(SglangProgram, NotesGoToStderrAndIntoTheReport) {
  const Outcome outcome = simulate({"--from-sglang-flags", "--page-size 32 --pp-size 2", "--json"});
  EXPECT_NE(outcome.err.find("kvtwin: note: --from-sglang-flags: not modelled: --pp-size 2"), std::string::npos);
  const Json report = outcome.json();
  const bool found = std::ranges::any_of(report.at("notes"), [](const Json& note) {
    return note.get<std::string>().find("--pp-size 2") != std::string::npos;
  });
  EXPECT_TRUE(found) << outcome.out;
}

TEST_F(SglangProgram, ServerInfo) {
  write_text(folder_ / "info.json", R"({"page_size": 32, "max_total_num_tokens": 6400})");
  const Outcome outcome = simulate({"--from-sglang-server-info", "info.json", "--to-sglang-flags"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("--page-size 32 --max-total-tokens 6400 "), std::string::npos) << outcome.out;
  for (const auto& [more, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--from-sglang-server-info", "nowhere.json"}, "nowhere.json"},
           {{"--from-sglang-server-info", "."}, "can't be read"},
           {{"--from-sglang-server-info", ""}, "is empty; give the path"},
           {{"--from-sglang-server-info", "info.json", "--from-sglang-flags", "--tp 1"}, "--from-sglang-flags"}}) {
    const Outcome refused = simulate(more);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
    EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
  }
}

TEST_F(SglangProgram, ToFlagsRunsNothing) {
  for (const char* command : {"simulate", "run"}) {
    const Outcome outcome = run({command, "good.toml", "--to-sglang-flags", "--out", "out"}, around_);
    if (std::string(command) == "run" && !KVTWIN_TEST_REAL) continue;
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with("--model-path meta-llama/Llama-3.1-8B-Instruct ")) << outcome.out;
    EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 1);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
}

// The flags apply to every cell. --vary and --set override flags. Rows with different flags are different rows.
TEST_F(SglangProgram, SweepsAndComparisonsTakeThem) {
  write_text(folder_ / "good.toml",
             "[workload]\ntrace = \"trace.jsonl\"\n[cache]\nevict_unit = \"page\"\n[tiers.device]\ntokens = 6400\n");
  write_text(folder_ / "info.json", R"({"page_size": 16, "schedule_policy": "lof", "max_total_num_tokens": 3200})");
  for (const char* command : {"sweep", "compare"}) {
    SCOPED_TRACE(command);
    const auto cells = [&](std::vector<std::string> more, const std::string& out) {
      more.insert(more.begin(), {command, "good.toml", "--world", kAnyWorld, "--out", out});
      const Outcome outcome = run(more, around_);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      return outcome;
    };
    const std::string flags = "--page-size 16 --schedule-policy lof --warp-drive 9";
    const std::string out = std::string(command) + "_flags";
    const Outcome first = cells(
        {"--from-sglang-flags", flags, "--vary", "cache.eviction=lru,fifo", "--set", "scheduler.max_running=3"}, out);
    for (const char* part : {"--warp-drive 9", "--schedule-policy lof", "cache.evict_unit = node, not 'page'"}) {
      const std::size_t at = first.err.find(part);
      EXPECT_NE(at, std::string::npos) << first.err;
      EXPECT_EQ(first.err.find(part, at + 1), std::string::npos) << "said once, not for every cell: " << first.err;
      EXPECT_NE(text_of(folder_ / (out + "/compare.json")).find(part), std::string::npos);
    }
    // The keys that the flags set give the same decisions, and other flags give other rows.
    const auto digests = [&](const std::string& of) {
      std::vector<std::string> list;
      std::istringstream rows(text_of(folder_ / (of + "/sweep.jsonl")));
      for (std::string row; std::getline(rows, row);) list.push_back(Json::parse(row).at("decisions_digest"));
      return list;
    };
    cells({"--set", "cache.page_tokens=16", "--set", "cache.evict_unit=node", "--set", "cache.clean_reserve=0",
           "--vary", "cache.eviction=lru,fifo", "--set", "scheduler.max_running=3"},
          std::string(command) + "_keys");
    EXPECT_EQ(digests(out), digests(std::string(command) + "_keys"));
    const Outcome again = cells(
        {"--from-sglang-flags", flags, "--vary", "cache.eviction=lru,fifo", "--set", "scheduler.max_running=3"}, out);
    EXPECT_NE(again.err.find("2 of 2 cells are there already"), std::string::npos) << again.err;
    const Outcome other =
        run({command, "good.toml", "--world", kAnyWorld, "--out", out, "--from-sglang-flags", "--page-size 32",
             "--vary", "cache.eviction=lru,fifo", "--set", "scheduler.max_running=3"},
            around_);
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_NE(other.err.find("cells that aren't of this sweep"), std::string::npos) << other.err;
    // --vary overrides the flags, and no note mentions the replaced value.
    const std::string varied = std::string(command) + "_varied";
    const Outcome wins = cells({"--from-sglang-server-info", "info.json", "--vary", "cache.page_tokens=16,32", "--vary",
                                "cache.evict_unit=page,node"},
                               varied);
    EXPECT_EQ(wins.err.find("evict_unit"), std::string::npos) << wins.err;
    EXPECT_NE(digests(varied).front(), digests(varied).back());
  }
  const Outcome refused = run({"compare", "a", "b", "--from-sglang-flags", "--page-size 16"}, around_);
  EXPECT_EQ(refused.exit_code, 2);
}

// The example of the help text.
TEST(SglangHelp, ExamplesRun) {
  Surroundings around;
  around.folder = kSourceFolder;
  EXPECT_NE(run({"simulate", "--help"})
                .out.find("--from-sglang-flags \"--page-size 32 --enable-hierarchical-cache --hicache-ratio 4\""),
            std::string::npos);
  EXPECT_EQ(run({"simulate", "experiments/quickstart.toml", "--world", kAnyWorld, "--from-sglang-flags",
                 "--page-size 32 --enable-hierarchical-cache --hicache-ratio 4"},
                around)
                .exit_code,
            0);
  EXPECT_EQ(run({"simulate", "experiments/chat_hour.toml", "--to-sglang-flags"}, around).exit_code, 0);
}

}  // namespace
}  // namespace kvtwin::test
