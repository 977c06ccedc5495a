// Random experiments that SGLang's flags can express are unchanged after conversion to a flag line and back. And any
// text as a flag line or as the info of a server gives either an experiment or an InputError.
#include "lab/sglang/sglang_flags.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

Experiment empty_experiment() { return Experiment::from_text("", "none"); }

std::string values_of(const Experiment& experiment) {
  std::string text;
  for (const ExperimentKey& key : experiment_keys()) {
    text += std::string(key.name) + " = " + experiment.as_toml(key.name) + "\n";
  }
  return text;
}

template <typename T, std::size_t N>
T any(Splitmix& random, const T (&list)[N]) {
  return list[random.below(N)];
}

Experiment drawn(Splitmix& random) {
  Experiment x = empty_experiment();
  const auto set = [&](const std::string& key, const std::string& value) { x.set(key + "=" + value); };
  const auto between = [&](std::uint64_t least, std::uint64_t most) {
    return std::to_string(random.between(least, most));
  };
  static constexpr const char* kModels[] = {"llama-3.1-8b", "qwen3-32b", "qwen3-coder-30b-a3b", "gpt-oss-120b",
                                            "deepseek-v3"};
  static constexpr const char* kRanks[] = {"1", "2", "4", "8"};
  static constexpr const char* kPages[] = {"1", "16", "32", "64"};
  const std::string model = any(random, kModels), ranks = any(random, kRanks);
  set("model.name", model);
  set("model.kv_dtype", any(random, {"auto", "bf16", "fp8"}));
  set("parallel.tp", ranks);
  set("cache.page_tokens", any(random, kPages));
  set("cache.evict_unit", "node");
  set("cache.clean_reserve", "0");
  set("cache.rules.raise_prompt_priority", "true");
  set("cache.rules.split_refreshes", "true");
  set("cache.rules.count_touches", "insert");
  const std::string eviction = any(random, {"lru", "lru", "lru", "slru", "tlru"});
  if (eviction == "lru") set("cache.eviction", eviction);
  if (eviction == "slru") set("cache.eviction", "slru(protected=" + between(1, 9) + ")");
  if (eviction == "tlru") {
    set("cache.eviction", "tlru(threshold=" + between(0, 9'000) + ", next_prompt=" + between(0, 900) + ")");
  }
  set("scheduler.order", any(random, {"fcfs", "longest_prefix", "shortest_prefill_first", "hrrn"}));
  set("scheduler.chunk_tokens", between(1, 100'000));
  set("scheduler.max_running", between(1, 1000));
  if (random.chance(50)) set("scheduler.max_waiting", between(1, 1000));
  if (random.chance(20) && model == "llama-3.1-8b") {
    set("tiers.device.memory_fraction", "0." + between(30, 99));
  } else {
    set("tiers.device.tokens", between(10'000, 2'000'000));
  }
  if (random.chance(70)) {
    if (random.chance(50)) {
      set("tiers.host.ratio", between(1, 9) + "." + between(0, 99999));
    } else {
      Experiment size = empty_experiment();  // an integer number of GB per rank
      apply_sglang_flags(size, "--enable-hierarchical-cache --hicache-size " + between(1, 2000) + " --tp " + ranks);
      set("tiers.host.gib", size.as_toml("tiers.host.gib"));
    }
    static constexpr const char* kPairs[][2] = {{"kernel", "layer_first"},
                                                {"kernel", "page_first"},
                                                {"direct", "layer_first"},
                                                {"direct", "page_first_direct"}};
    const auto& [io, layout] = kPairs[random.below(4)];
    set("cache.io", io);
    set("cache.layout", layout);
    set("cache.prefetch_policy", any(random, {"best_effort", "wait_complete", "timeout"}));
    set("cache.prefetch_retry_steps", between(0, 20));
    set("cache.prefetch_attempts", between(1, 20));
  }
  return x;
}

TEST(SglangRoundTrip, DrawnExperimentsComeBack) {
  std::size_t with_host = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Splitmix random(seed);
    const Experiment x = drawn(random);
    const kvtwin::Setup setup = make_setup(x);
    const ServerLine line = to_sglang_flags(x, setup);
    ASSERT_TRUE(line.notes.empty()) << "seed " << seed << ": " << line.notes.front();
    Experiment again = empty_experiment();
    apply_sglang_flags(again, line.line);
    ASSERT_EQ(values_of(again), values_of(x)) << "seed " << seed << ": " << line.line;
    ASSERT_EQ(to_sglang_flags(again, make_setup(again)).line, line.line) << "seed " << seed;
    with_host += setup.engine.host_pages != 0;
  }
  EXPECT_GT(with_host, 200U);
}

// Sizes that no flag can express exactly come back as the same number of pages.
TEST(SglangRoundTrip, AnyHostSizeKeepsItsPages) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Splitmix random(seed);
    Experiment x = empty_experiment();
    x.set("cache.page_tokens=" + std::to_string(random.between(1, 64)));
    x.set("tiers.device.tokens=" + std::to_string(random.between(64, 5'000'000)));
    x.set("tiers.host.tokens=" + std::to_string(random.between(64, 90'000'000)));
    const kvtwin::Setup setup = make_setup(x);
    Experiment again = empty_experiment();
    apply_sglang_flags(again, to_sglang_flags(x, setup).line);
    ASSERT_EQ(make_setup(again).engine.host_pages, setup.engine.host_pages) << "seed " << seed;
  }
}

// Returns the text with random changes: it cuts, repeats, overwrites and inserts pieces.
std::string mutated(Splitmix& random, std::string text) {
  static constexpr const char* kPieces[] = {"{",
                                            "}",
                                            "[",
                                            "]",
                                            "\"",
                                            "\\",
                                            ",",
                                            ":",
                                            "null",
                                            "-1",
                                            "1e999",
                                            "1e308",
                                            "true",
                                            "false",
                                            "'",
                                            "=",
                                            " --",
                                            "",
                                            "\xff\xfe",
                                            "\\u0000",
                                            "0.1e-400",
                                            "\n",
                                            "Ki",
                                            "@/",
                                            " ",
                                            "[[[[[[[[",
                                            "--hicache-ratio",
                                            "\"page_size\":",
                                            "99999999999999999999"};
  for (std::uint64_t edits = random.between(1, 4); edits > 0; --edits) {
    const std::size_t at = random.below(text.size() + 1), length = random.below(20);
    switch (random.below(4)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(at, text.substr(random.below(text.size() + 1), length)); break;
      case 2: text.insert(at, any(random, kPieces)); break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
    }
  }
  return text;
}

template <typename Apply>
std::size_t survive(const std::vector<std::string>& seeds, std::uint64_t rounds, const Apply& apply) {
  std::size_t taken = 0;
  for (std::uint64_t seed = 0; seed < rounds; ++seed) {
    Splitmix random(seed);
    const std::string text = mutated(random, seeds[random.below(seeds.size())]);
    std::optional<Experiment> experiment = empty_experiment();
    try {
      apply(*experiment, text);
      ++taken;
    } catch (const InputError& error) {
      EXPECT_GT(std::string(error.what()).size(), 10U) << text;
      continue;
    }
    // An experiment that was accepted can be written in its resolved form and read again.
    const Experiment again = Experiment::from_text(experiment->resolved(), "resolved");
    EXPECT_EQ(again.as_toml("cache.page_tokens"), experiment->as_toml("cache.page_tokens")) << text;
    EXPECT_EQ(again.as_toml("tiers.host.ratio"), experiment->as_toml("tiers.host.ratio")) << text;
    for (const std::string& note : experiment->notes()) {
      for (const char c : note) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << text;
    }
  }
  return taken;
}

TEST(SglangInput, NoServerInfoIsFatal) {
  const std::vector<std::string> seeds = {
      R"({"page_size": 64, "tp_size": 4, "enable_hierarchical_cache": true, "hicache_ratio": 2.0, "hicache_size": 0})",
      R"({"model_path": "Qwen/Qwen3-32B", "max_total_num_tokens": 512000, "lora_paths": [], "internal_states": [{}]})",
      R"({"hicache_storage_backend_extra_config": "{\"prefetch_threshold\": 3}", "hicache_storage_backend": "file",
          "enable_hierarchical_cache": true, "schedule_policy": "lpm", "mem_fraction_static": 0.8, "x": {"y": [1, [2]]}})"};
  const std::size_t taken = survive(seeds, 6000, [](Experiment& experiment, const std::string& text) {
    apply_sglang_server_info_text(experiment, text, "info.json");
  });
  EXPECT_GT(taken, 500U);
}

TEST(SglangInput, NoFlagLineIsFatal) {
  const std::vector<std::string> seeds = {
      "--page-size 64 --tp 4 --enable-hierarchical-cache --hicache-ratio=2.5 --hicache-io-backend direct",
      "python -m sglang.launch_server --model-path 'Qwen/Qwen3-32B' --max-total-tokens 20k --port 1 --pp-size 2",
      R"(--enable-hierarchical-cache --hicache-storage-backend file --hicache-storage-backend-extra-config '{"prefetch_threshold": 3, "a": {}}')"};
  const std::size_t taken = survive(
      seeds, 3000, [](Experiment& experiment, const std::string& text) { apply_sglang_flags(experiment, text); });
  EXPECT_GT(taken, 100U);
}

}  // namespace
}  // namespace kvtwin::test
