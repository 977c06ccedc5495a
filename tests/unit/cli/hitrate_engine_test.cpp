// kvtwin hitrate --engine: the whole cache of a model under the rules of an engine.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/json.hpp"
#include "tests/paths.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

std::vector<std::string> hitrate(std::vector<std::string> more) {
  std::vector<std::string> words{"hitrate", "--trace", in_source("traces/chat_small.jsonl.zst"), "--limit", "800"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json rates(std::vector<std::string> more) {
  more.emplace_back("--json");
  const Outcome outcome = run(hitrate(std::move(more)));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(HitrateEngine, CountsWindowsAndStates) {
  for (const char* engine : {"sglang", "vllm"}) {
    const Json windows = rates({"--engine", engine, "--model", "gpt-oss-20b", "--capacity", "2TiB"});
    EXPECT_EQ(windows.at("engine"), engine);
    EXPECT_EQ(windows.at("rejected"), 0);
    const Json full = rates({"--engine", engine, "--model", "llama-3.1-8b", "--capacity", "2TiB"});
    EXPECT_EQ(full.at("unusable_tokens"), 0);
    EXPECT_EQ(windows.at("hit_tokens").get<double>() + windows.at("unusable_tokens").get<double>(),
              full.at("hit_tokens").get<double>())
        << engine << ": with room for all, only windows differ";
    EXPECT_GT(windows.at("unusable_tokens").get<double>(), 0) << engine;
    EXPECT_EQ(windows.at("without_window_tokens"), windows.at("unusable_tokens"));
    EXPECT_EQ(windows.at("without_state_tokens"), 0);
    const Json states = rates({"--engine", engine, "--model", "qwen3-next-80b-a3b", "--capacity", "2TiB"});
    EXPECT_EQ(states.at("without_window_tokens"), 0);
    EXPECT_EQ(states.at("without_state_tokens"), states.at("unusable_tokens"));
  }
  const Outcome table = run(hitrate({"--engine", "vllm", "--model", "gpt-oss-20b", "--capacity", "1000,8GiB"}));
  EXPECT_NE(table.out.find("unusable"), std::string::npos) << table.out;
}

TEST(HitrateEngine, RefusesWhatTheEngineDecides) {
  const auto refused = [](std::vector<std::string> more, const std::string& sentence) {
    const Outcome outcome = run(hitrate(std::move(more)));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
  };
  const std::vector<std::string> vllm{"--engine", "vllm", "--model", "gpt-oss-20b", "--capacity", "2000"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), vllm.begin(), vllm.end());
    return more;
  };
  refused({"--engine", "vllm", "--capacity", "9"}, "--engine vllm: give the model too");
  refused(with({"--eviction", "lfu"}), "--eviction lfu: vLLM's groups of blocks have one queue");
  refused(with({"--eviction", "opt"}), "--eviction opt: is a bound");
  refused(with({"--evict-unit", "node"}), "--evict-unit: --engine vllm has rules of its own");
  refused({"--engine", "vllm", "--model", "gpt-oss-20b", "--capacity", "2x"}, "x is no unit");
}

}  // namespace
}  // namespace kvtwin::test
