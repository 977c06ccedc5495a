// SGLang's pools in an experiment: L1 and L2 of models with several kinds of KV, the limit on running requests, and
// the flags. The sizes are those of tests/fixtures/sglang/pools.tsv.
#include <gtest/gtest.h>

#include <string>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr double kGib40Gb = 40e9 / 1073741824.0;

kvtwin::Setup setup_of(const Settings& settings, const std::string& flags = "") {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  if (!flags.empty()) apply_sglang_flags(experiment, flags);
  return make_setup(experiment);
}

kvtwin::Setup model_of(const std::string& model, const Settings& settings = {}) {
  return setup_of(
      Settings{"model.name=" + model, "model.kv_dtype=bf16", "tiers.device.gib=" + std::to_string(kGib40Gb)} +
      settings);
}

std::string notes_of(const kvtwin::Setup& setup) {
  std::string text;
  for (const std::string& note : setup.notes) text += note + "\n";
  return text;
}

bool has_note(const kvtwin::Setup& setup, const std::string& part) {
  return notes_of(setup).find(part) != std::string::npos;
}

Tokens device_tokens(const kvtwin::Setup& setup) { return setup.engine.device_pages * setup.engine.shape.page_tokens; }

std::string error_of(const Settings& settings) {
  try {
    setup_of(settings);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(EnginePoolsSetup, L1HasTheTokensOfTheFullPool) {
  const struct {
    const char* model;
    Tokens tokens;
  } kRooms[] = {
      {"gpt-oss-120b", 602'816},      {"gemma-3-27b", 78'720},          {"gemma-4-31b", 54'208},
      {"mimo-v2-flash", 218'816},     {"step-3.7-flash", 254'272},      {"qwen3-next-80b-a3b", 857'280},
      {"qwen3.5-397b-a17b", 689'344}, {"deepseek-v3.2", 510'656},       {"nemotron-3-nano-30b-a3b", 3'426'752},
      {"minimax-m3", 290'944},        {"deepseek-v4-flash", 5'261'056}, {"glm-5", 399'360}};
  for (const auto& room : kRooms) {
    const auto tokens = static_cast<double>(room.tokens);
    EXPECT_NEAR(static_cast<double>(device_tokens(model_of(room.model))), tokens, 0.001 * tokens) << room.model;
  }
}

TEST(EnginePoolsSetup, AModelWithOneKindOfKvHasNoPools) {
  const kvtwin::Setup plain = model_of("llama-3.1-8b");
  EXPECT_TRUE(plain.device_pools.pools.empty());
  EXPECT_EQ(plain.engine.device_pages, Pages{static_cast<std::uint64_t>(40e9) / 131'072 / 64});
  EXPECT_FALSE(has_note(plain, "hits are too high"));
}

TEST(EnginePoolsSetup, VllmHasOnePoolOfBlocks) {
  const Settings vllm{"engine=vllm", "cache.page_tokens=16", "hardware.operators=none"};
  const kvtwin::Setup windows = model_of("gpt-oss-120b", vllm);
  EXPECT_TRUE(windows.device_pools.pools.empty());
  ASSERT_TRUE(windows.block_pool);
  EXPECT_EQ(windows.block_pool->blocks, 67'816U);
  EXPECT_EQ(windows.engine.block_groups.blocks, 67'816U);
  EXPECT_EQ(windows.engine.block_groups.groups.size(), 2U);
  EXPECT_EQ(windows.engine.state_points, "align");
  EXPECT_FALSE(has_note(windows, "hits are too high")) << notes_of(windows);
  // One request can have all but the null block, the windows of the prefix that it continues from, and those of a
  // chunk.
  EXPECT_EQ(device_tokens(windows), (67'815U - 8 - (127 + 8192 + 15) / 16 - 1) * 16);
  const kvtwin::Setup with_host = model_of("gpt-oss-120b", vllm + Settings{"tiers.host.ratio=2"});
  EXPECT_FALSE(has_note(with_host, "hits are too high")) << notes_of(with_host);
  EXPECT_EQ(with_host.engine.block_offload.host.chunks, 2 * 67'816U);
  EXPECT_EQ(with_host.engine.block_offload.shape.page_bytes(), with_host.block_pool->block_bytes);
  const kvtwin::Setup gib = model_of("gpt-oss-120b", vllm + Settings{"tiers.host.gib=9"});
  EXPECT_EQ(gib.engine.block_offload.host.chunks, (std::uint64_t{9} << 30) / gib.block_pool->block_bytes);
  const kvtwin::Setup with_disk = model_of("gpt-oss-120b", vllm + Settings{"tiers.host.ratio=2", "tiers.disk.gib=90"});
  EXPECT_TRUE(with_disk.engine.block_groups.groups.empty());
  EXPECT_EQ(device_tokens(with_disk), 1'085'056U - 16) << "vLLM keeps one block, the null block, for itself";
  EXPECT_TRUE(
      has_note(with_disk, "gpt-oss-120b: hits are too high: a prefix that vLLM can reuse takes up 8 more blocks"))
      << notes_of(with_disk);
  EXPECT_FALSE(model_of("llama-3.1-8b", vllm).block_pool);
  // 6 + 23 layers in groups of 6: a layer of padding in the last group of states.
  const kvtwin::Setup states = model_of("nemotron-3-nano-30b-a3b", vllm);
  EXPECT_EQ(states.engine.block_groups.blocks, 3106U);
  EXPECT_EQ(states.engine.shape.page_tokens, 2096U) << "a block of attention has the bytes of a state";
  EXPECT_TRUE(has_note(states, "a page has 2096 tokens, as vLLM makes the blocks of all groups of layers equal"));
  EXPECT_EQ(model_of("gpt-oss-120b", vllm + Settings{"tiers.device.tokens=64000"}).engine.block_groups.blocks, 4000U);
  const kvtwin::Setup rows = model_of("gemma-4-31b", vllm);
  EXPECT_EQ(rows.engine.shape.page_tokens, 32U) << "rows of windows are twice as large as those of full attention";
  ASSERT_EQ(rows.engine.block_groups.groups.size(), 6U);
  EXPECT_EQ(rows.engine.block_groups.groups.front().blocks_per_page, 1U);
  EXPECT_EQ(rows.engine.block_groups.groups.back().blocks_per_page, 2U);
}

// The engines that prefill and those that decode have SGLang's pools. vLLM's blocks are not built for them.
TEST(EnginePoolsSetup, EnginesWithRolesHavePoolsOfSglang) {
  const Settings roles{"cluster.prefill=1", "cluster.decode=1"};
  const kvtwin::Setup setup = model_of("gpt-oss-120b", roles + Settings{"engine=sglang"});
  ASSERT_NE(setup.decode, nullptr);
  EXPECT_EQ(setup.engine.windows(), std::vector<kvtwin::Tokens>{128});
  EXPECT_EQ(setup.decode->engine.windows(), std::vector<kvtwin::Tokens>{128});
  ASSERT_EQ(setup.engine.hand_over.to.beside.size(), 1U);
  EXPECT_EQ(setup.engine.hand_over.to.beside[0].token_bytes(), 36'864U);
  EXPECT_FALSE(has_note(setup, "hits are too high")) << notes_of(setup);
  const kvtwin::Setup blocks = model_of("gpt-oss-120b", roles + Settings{"engine=vllm"});
  EXPECT_TRUE(blocks.engine.block_groups.groups.empty());
  EXPECT_TRUE(blocks.decode->engine.block_groups.groups.empty());
  EXPECT_TRUE(has_note(blocks, "hits are too high")) << notes_of(blocks);
  try {
    model_of("gpt-oss-120b", roles + Settings{"engine=sglang", "cluster.decode_set=scheduler.style=vllm"});
    FAIL() << "one engine has windows";
  } catch (const InputError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "cluster.decode_set (--set): the decode engines do not keep the windows and states that the prefill engines "
        "do; scheduler.style, cache.hybrid_allocator and tiers must allow both to keep them");
  }
}

TEST(EnginePoolsSetup, StatePointsAreThoseOfTheEngine) {
  const auto refusal = [](const char* model, const Settings& settings) {
    try {
      model_of(model, settings);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("gpt-oss-120b", {"engine=vllm", "cache.state_points=no_buffer"}),
            "cache.state_points (--set): is no_buffer, and scheduler.style (engine = vllm) = vllm keeps windows and "
            "states by align(retention=...)");
  EXPECT_NE(
      refusal("gpt-oss-120b", {"engine=vllm", "cache.page_tokens=16", "tiers.device.tokens=16"})
          .find("vLLM's pool holds 1 blocks of 589824 bytes in the 589824 bytes for KV, less than a page with the "
                "windows and states of a request"),
      std::string::npos);
  EXPECT_EQ(refusal("qwen3-next-80b-a3b", {"cache.state_points=align"}),
            "cache.state_points (--set): is align, and scheduler.style (engine = sglang) = sglang keeps states by "
            "extra_buffer, no_buffer or overlap");
}

TEST(EnginePoolsSetup, TheEngineHasThePoolsOfAHybridModel) {
  const Settings host{"tiers.host.ratio=2"};
  const kvtwin::Setup windows = model_of("gpt-oss-120b", host);
  ASSERT_EQ(windows.engine.pools.size(), 1U);
  const kvtwin::PoolConfig& window = windows.engine.pools.front();
  EXPECT_EQ(window.closure, kvtwin::Closure::tail);
  EXPECT_EQ(window.window, 128U);
  EXPECT_EQ(window.device_slots * 64, windows.device_pools.pools.at(1).slots / 64 * 64);
  EXPECT_EQ(window.host_slots, windows.host_pools.at(1).slots / 64);
  EXPECT_EQ(window.shape.token_bytes(), 36'864U);
  EXPECT_EQ(windows.engine.evict_unit, kvtwin::EvictUnit::node);
  EXPECT_FALSE(has_note(windows, "counted by formula")) << notes_of(windows);

  const kvtwin::Setup states = model_of("qwen3-next-80b-a3b", host);
  ASSERT_EQ(states.engine.pools.size(), 1U);
  EXPECT_EQ(states.engine.pools.front().closure, kvtwin::Closure::point);
  EXPECT_EQ(states.engine.pools.front().device_slots, 244U);
  EXPECT_EQ(states.engine.pools.front().host_slots, 488U);
  EXPECT_EQ(states.engine.pools.front().shape.token_bytes(), 77'266'944U);
  EXPECT_EQ(states.engine.state_points, "extra_buffer");
}

TEST(EnginePoolsSetup, TheNotesSayWhereHitsErr) {
  const Settings disk{"tiers.host.ratio=2", "tiers.disk.gib=100", "cache.write_policy=write_back"};
  EXPECT_TRUE(has_note(model_of("gpt-oss-120b", disk),
                       "gpt-oss-120b: hits are too high: SGLang reuses a prefix only with the last 128 tokens' rows"));
  EXPECT_TRUE(has_note(model_of("qwen3-next-80b-a3b", disk), "only with a state at its last token"));
  EXPECT_FALSE(has_note(model_of("gpt-oss-120b"), "hits are too high"));
  const kvtwin::Setup whole = model_of("gemma-3-27b");
  EXPECT_TRUE(has_note(whole, "SGLang has no pool for windows for gemma-3-27b"));
  EXPECT_FALSE(has_note(whole, "hits are too high"));
}

TEST(EnginePoolsSetup, WriteBackDecidesByPoolsAsSglangDoes) {
  const Settings back{"tiers.host.ratio=2", "cache.write_policy=write_back"};
  for (const char* model : {"gpt-oss-120b", "qwen3-next-80b-a3b"}) {
    const kvtwin::Setup setup = model_of(model, back);
    ASSERT_EQ(setup.engine.pools.size(), 1U) << model;
    EXPECT_NE(setup.engine.pools.front().host_slots, 0U) << model;
    EXPECT_EQ(setup.engine.clean_reserve, 0U) << model;
    EXPECT_FALSE(has_note(setup, "hits are too high")) << notes_of(setup);
  }
  const auto refusal = [&](const char* setting) {
    try {
      model_of("gpt-oss-120b", back + Settings{setting});
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("cache.tiering=exclusive"),
            "cache.tiering (--set): is not built for models with windows or states, which write_back copies when they "
            "are evicted, as SGLang does; set cache.tiering=inclusive");
  EXPECT_TRUE(refusal("cache.clean_reserve=0.1").ends_with("set cache.clean_reserve=0"));
  EXPECT_EQ(refusal("cache.clean_reserve=0"), "");
}

TEST(EnginePoolsSetup, ThePoolForStatesLimitsRunningRequests) {
  const kvtwin::Setup setup = model_of("qwen3-next-80b-a3b");
  EXPECT_EQ(setup.engine.max_running, 48U);
  EXPECT_TRUE(has_note(setup,
                       "scheduler.max_running is 48, not 256 (default): SGLang's pool for states holds 244, and a "
                       "running request takes 5 of them"))
      << notes_of(setup);
  EXPECT_EQ(model_of("qwen3-next-80b-a3b", {"scheduler.max_running=20"}).engine.max_running, 20U);
  EXPECT_EQ(model_of("qwen3-next-80b-a3b", {"scheduler.max_running=100"}).engine.max_running, 48U);
  EXPECT_EQ(model_of("qwen3-next-80b-a3b", {"tiers.device.states_per_request=3"}).engine.max_running, 81U);
  EXPECT_EQ(model_of("qwen3-next-80b-a3b", {"tiers.device.states=100"}).engine.max_running, 20U);
  EXPECT_EQ(model_of("gpt-oss-120b").engine.max_running, 256U);
  EXPECT_NE(error_of({"model.name=qwen3-next-80b-a3b", "tiers.device.gib=0.5"}).find("a running request needs 5"),
            std::string::npos);
  EXPECT_NE(error_of({"model.state_bytes=1000000000000"}).find("It depends on model.state_bytes (--set) too."),
            std::string::npos)
      << error_of({"model.state_bytes=1000000000000"});
}

TEST(EnginePoolsSetup, HostPoolsShareTheHostTier) {
  const kvtwin::Setup ratio = model_of("gpt-oss-120b", {"tiers.host.ratio=2"});
  EXPECT_EQ(ratio.engine.host_pages, 2 * ratio.engine.device_pages);
  ASSERT_EQ(ratio.host_pools.size(), 2U);
  const std::string gib = "tiers.host.gib=" + std::to_string(100e9 / 1073741824.0);
  const auto tokens = [&](const std::string& model) {
    const kvtwin::Setup setup = model_of(model, {gib});
    return static_cast<double>(setup.engine.host_pages * setup.engine.shape.page_tokens);
  };
  EXPECT_NEAR(tokens("gpt-oss-120b"), 1'507'072, 7500);
  EXPECT_NEAR(tokens("qwen3-next-80b-a3b"), 2'143'360, 10'000);
  EXPECT_NEAR(tokens("step-3.7-flash"), 542'592, 2700) << "beside a host tier, windows are kept as a whole";
  EXPECT_TRUE(has_note(model_of("deepseek-v4-flash", {gib}), "SGLang refuses --hicache-size for DeepSeek-V4"));
  EXPECT_NE(error_of({"model.name=gpt-oss-120b", "tiers.device.gib=37", "tiers.host.gib=0.001"}).find("tiers.host.gib"),
            std::string::npos);
}

TEST(EnginePoolsSetup, GivenTokensAreThoseOfTheFullPool) {
  const kvtwin::Setup setup = setup_of({"model.name=gpt-oss-120b", "tiers.device.tokens=64000"});
  EXPECT_EQ(setup.engine.device_pages, 1000U);
  EXPECT_EQ(setup.device_pools.find(PoolKind::window)->slots, 51'200U);
}

TEST(EnginePoolsSetup, FlagsOfSglangSizeThePools) {
  const std::string host = "--page-size 64 --mem-fraction-static 0.9 ";
  const auto tokens = [&](const std::string& flags) { return device_tokens(setup_of({}, host + flags)); };
  const std::string gpt = "--model-path openai/gpt-oss-20b ";
  EXPECT_GT(tokens(gpt + "--swa-full-tokens-ratio 0.1"), 3 * tokens(gpt) / 2);
  EXPECT_EQ(tokens(gpt + "--swa-full-tokens-ratio 0.8"), tokens(gpt));
  EXPECT_LT(tokens(gpt + "--disable-hybrid-swa-memory"), tokens(gpt));
  const std::string nemotron = "--model-path nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --tp 2 ";
  const kvtwin::Setup states = setup_of({}, host + nemotron + "--max-mamba-cache-size 40");
  EXPECT_EQ(states.device_pools.find(PoolKind::state)->slots, 40U);
  EXPECT_EQ(states.engine.max_running, 8U);
  EXPECT_EQ(setup_of({}, host + nemotron + "--max-mamba-cache-size 40 --mamba-radix-cache-strategy no_buffer")
                .engine.max_running,
            13U);
  EXPECT_GT(tokens(nemotron + "--mamba-full-memory-ratio 0.3"), tokens(nemotron));
}

TEST(EnginePoolsSetup, APoolOfTooManyStatesIsRefused) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  experiment.set("model.state_bytes=1");
  try {
    make_setup(experiment);
    FAIL() << "not refused";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("model.state_bytes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("more than a billion"), std::string::npos) << error.what();
  }
}

TEST(EnginePoolsSetup, FlagsSayWhereStatesAreKept) {
  const std::string line =
      "--page-size 64 --tp 2 --model-path nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --mamba-track-interval 512 "
      "--mamba-max-states-per-path ";
  const kvtwin::Setup four = setup_of({}, line + "4");
  EXPECT_EQ(four.engine.state_points, "extra_buffer(interval=512)");
  EXPECT_EQ(four.engine.states_per_path, 4U);
  EXPECT_EQ(setup_of({}, line + "-1").engine.states_per_path, 0U);
  EXPECT_THROW(setup_of({}, line + "-2"), InputError);
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const char* setting : {"model.name=qwen3-next-80b-a3b", "parallel.tp=4", "tiers.device.tokens=64000",
                              "cache.states_per_path=3", "cache.state_points=extra_buffer(interval=1024)"}) {
    experiment.set(setting);
  }
  const std::string flags = to_sglang_flags(experiment, make_setup(experiment)).line;
  EXPECT_NE(flags.find("--mamba-track-interval 1024"), std::string::npos) << flags;
  EXPECT_NE(flags.find("--mamba-max-states-per-path 3"), std::string::npos) << flags;
}

TEST(EnginePoolsSetup, FlagsAreWrittenAgain) {
  const Settings settings{"model.name=gpt-oss-120b",      "tiers.device.window_ratio=0.1",
                          "cache.hybrid_allocator=false", "tiers.device.states=7",
                          "tiers.device.state_ratio=0.5", "tiers.device.states_per_request=4",
                          "tiers.device.tokens=64000"};
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  const std::string flags = to_sglang_flags(experiment, make_setup(experiment)).line;
  for (const char* part : {"--swa-full-tokens-ratio 0.1", "--disable-hybrid-swa-memory", "--max-mamba-cache-size 7",
                           "--mamba-full-memory-ratio 0.5", "--mamba-radix-cache-strategy extra_buffer_lazy"}) {
    EXPECT_NE(flags.find(part), std::string::npos) << part << " in " << flags;
  }
}

TEST(EnginePoolsSetup, KeysWithoutAPoolAreNamed) {
  EXPECT_TRUE(has_note(model_of("llama-3.1-8b", {"tiers.device.window_ratio=0.1"}),
                       "tiers.device.window_ratio (--set) has no effect: llama-3.1-8b has no pool for windows"));
  EXPECT_TRUE(has_note(model_of("gpt-oss-120b", {"tiers.device.states=10"}), "has no pool for states"));
  EXPECT_FALSE(has_note(model_of("gpt-oss-120b", {"tiers.device.window_ratio=0.1"}), "has no effect"));
}

}  // namespace
}  // namespace kvtwin::test
