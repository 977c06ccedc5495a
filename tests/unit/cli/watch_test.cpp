// kvtwin watch as a user runs it.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/program.hpp"
#include "tests/trace_files.hpp"

namespace kvtwin::test {
namespace {

const std::string kEvents = fixture("vllm/kv_events.jsonl");

TEST(WatchCommand, PrintsALinePerIntervalAndAScreen) {
  const Outcome outcome = run({"watch", kEvents, "--every", "5s"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("        5 s       13 requests"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("device            100            321   35.31 %"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("advice    add a host tier of 400 blocks"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out, run({"watch", kEvents, "--every", "5s"}).out);
}

TEST(WatchCommand, JsonIsAllThatStdoutHas) {
  const Outcome outcome = run({"watch", kEvents, "--json", "--sample", "2", "--window", "0", "--max-blocks", "500"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("sample_one_in").get<int>(), 2);
  EXPECT_EQ(json.at("windows").get<int>(), 0);
}

TEST(WatchCommand, ExpectedHitsThatDoNotComeAreExitCode3) {
  const Outcome outcome = run({"watch", kEvents, "--expect", "hits=0.5"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.err.find("the cache is too small"), std::string::npos) << outcome.err;
  EXPECT_EQ(run({"watch", kEvents, "--expect", "hits=30%"}).exit_code, 0);
}

TEST(WatchCommand, ForEndsEarly) {
  const Json json = Json::parse(run({"watch", kEvents, "--for", "10s", "--json"}).out);
  EXPECT_LE(json.at("seconds").get<double>(), 10);
  EXPECT_GT(json.at("seconds").get<double>(), 8);
}

TEST(WatchCommand, ADescriptionAddsTheEnginesRules) {
  const Outcome outcome = run({"watch", kEvents, "--experiment", fixture("vllm/served.toml"), "--every", "5s"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("twin      37.51 % of the prompt tokens"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("--kv-offloading-size"), std::string::npos) << outcome.out;
  const Outcome flags = run({"watch", kEvents, "--from-vllm-flags", "vllm serve Qwen/Qwen3-0.6B --block-size 32",
                             "--set", "model.name=tiny", "--set", "hardware.name=h100-sxm", "--device-blocks", "50"});
  EXPECT_EQ(flags.exit_code, 0) << flags.err;
}

TEST(WatchCommand, WritesThePageByItself) {
  const Folder folder;
  EXPECT_EQ(run({"watch", kEvents, "--report", folder / "report.html"}).exit_code, 0);
  const std::string page = text_of(folder / "report.html");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(page.find("const SNAPSHOT = {\"seconds\":27"), std::string::npos);
  EXPECT_EQ(run({"watch", kEvents, "--report", folder / "absent/report.html"}).exit_code, 1);
  std::filesystem::create_directory(folder / "taken");
  EXPECT_EQ(run({"watch", kEvents, "--report", folder / "taken"}).exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(folder / ".taken.partial"));
}

TEST(WatchCommand, RefusesInASentence) {
  const Folder folder;
  write_text(folder / "empty.jsonl", "");
  write_text(folder / "cut.jsonl", text_of(kEvents).substr(0, 3000));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"watch"},
           {"watch", folder / "absent"},
           {"watch", folder / "empty.jsonl"},
           {"watch", folder / "cut.jsonl"},
           {"watch", folder.path().string()},
           {"watch", kEvents, "--every", "0s"},
           {"watch", kEvents, "--every", "-5"},
           {"watch", kEvents, "--every", "1e15s"},
           {"watch", kEvents, "--every", "soon"},
           {"watch", kEvents, "--for", "0"},
           {"watch", kEvents, "--for", "-1s"},
           {"watch", kEvents, "--for", "9999999999s"},
           {"watch", kEvents, "--for", ""},
           {"watch", kEvents, "--report", ""},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--out", ""},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--serve", ""},
           {"watch", "", "--for", "1s"},
           {"watch", kEvents, "--expect", "hits=1.5"},
           {"watch", kEvents, "--expect", "hits"},
           {"watch", kEvents, "--sample", "0"},
           {"watch", kEvents, "--max-blocks", "0"},
           {"watch", kEvents, "--max-blocks", "99999999999"},
           {"watch", kEvents, "--speed", "nan"},
           {"watch", kEvents, "--set", "cache.page_tokens=32"},
           {"watch", kEvents, "--experiment", folder / "absent.toml"},
           {"watch", kEvents, "--experiment", fixture("sglang/served.toml")},
           {"watch", kEvents, "tcp://127.0.0.1:1"},
           {"watch", kEvents, "--replay", "tcp://127.0.0.1:1"},
           {"watch", kEvents, "--metrics", "http://127.0.0.1:1/metrics"},
           {"watch", kEvents, "--request-log", kEvents},
           {"watch", kEvents, "--out", folder / "out"},
           {"watch", kEvents, "--serve", "127.0.0.1:0"},
           {"watch", kEvents, "--topic", "kv"},
           {"watch", kEvents, "--token-file", folder / "absent"},
           {"watch", kEvents, "--block-tokens", "16"},
           {"watch", kEvents, "--log-zone", "Z"},
           {"watch", kEvents, "--keep-mib", "7"},
           {"watch", kEvents, "--metrics-every", "5s"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--keep-mib", "7"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--block-tokens", "16"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--metrics-every", "2s"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--log-zone", "+02:00"},
           {"watch", "--request-log", kEvents, "--replay", "tcp://127.0.0.1:1", "--for", "1s"},
           {"watch", "--request-log", kEvents, "--topic", "kv", "--for", "1s"},
           {"watch", "--request-log", kEvents, "--log-zone", "CET", "--for", "1s"},
           {"watch", "--request-log", kEvents, "--log-zone", "+2:00", "--for", "1s"},
           {"watch", "--request-log", kEvents, "--log-zone", "+24:00", "--for", "1s"},
           {"watch", "--metrics", "http://127.0.0.1:1/metrics", "--replay", "tcp://127.0.0.1:1", "--for", "1s"},
           {"watch", "--metrics", "http://127.0.0.1:1/metrics", "--device-blocks", "100", "--for", "1s"},
           {"watch", "--metrics", "http://127.0.0.1:1/metrics", "--out", folder / "kept", "--for", "1s"},
           {"watch", "--metrics", "http://127.0.0.1:1/metrics", "--set", "model.name=tiny", "--for", "1s"},
           {"watch", kEvents, "--metrics-every", "soon"},
           {"watch", "tcp://127.0.0.1:1", "--speed", "2"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--serve", "0.0.0.0:0"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--serve", "nowhere"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--metrics", "https://127.0.0.1:1/metrics"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--metrics-every", "0"},
           {"watch", "tcp://127.0.0.1:1", "--for", "1s", "--request-log", folder / "absent"},
           {"watch", "nothing://x", "--for", "1s"},
       }) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.exit_code, 2) << words.back() << outcome.err;
    EXPECT_NE(outcome.err.find("kvtwin: "), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace kvtwin::test
