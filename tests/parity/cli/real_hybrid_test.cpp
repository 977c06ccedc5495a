// Real runs of models with windows or with recurrent states: every kind of KV has bytes, in pools of its own on the
// device and the host, and every pass checks those that it continues from.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/mpi_run.hpp"
#include "tests/real_run.hpp"

#if KVTWIN_TEST_REAL

namespace kvtwin::test {
namespace {

// Four layers; windows of 32 tokens in two of them.
constexpr const char* kWindows = R"({"model_type": "gpt_oss", "hidden_size": 16, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "num_local_experts": 2,
  "num_experts_per_tok": 1, "vocab_size": 32, "torch_dtype": "bfloat16", "sliding_window": 32,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})";

// Four layers; gated delta nets in three of them.
constexpr const char* kStates = R"({"model_type": "qwen3_next", "hidden_size": 16, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "vocab_size": 32,
  "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
  "linear_num_value_heads": 2, "full_attention_interval": 4, "torch_dtype": "bfloat16"})";

struct Kind {
  const char* config;
  const char* verified;        // its part of real.verified
  const char* device_setting;  // pools that evict
};
constexpr Kind kKinds[] = {{kWindows, "windows", "tiers.device.window_ratio=0.5"},
                           {kStates, "states", "tiers.device.states=40"}};

// Conversations that are larger than L1.
Settings work(const Folder& folder, const Kind& kind, std::uint64_t seed, std::uint64_t requests = 80) {
  const Conversations c{.requests = requests,
                        .block_tokens = 16,
                        .first_blocks = 8,
                        .growth_blocks = 3,
                        .live = 12,
                        .output = 20,
                        .gap_ms = 2};
  write_text(folder / "config.json", kind.config);
  return conversations(c, seed).save(folder) +
         Settings{"engine=sglang",           "serving.engine=none",          "model.config=" + (folder / "config.json"),
                  "cache.page_tokens=16",    "hardware.name=cpu-host",       "tiers.device.tokens=2400",
                  "tiers.host.tokens=9600",  "scheduler.chunk_tokens=96",    "workload.time_scale=1",
                  "scheduler.max_running=4", "cache.load_back_min_tokens=4", kind.device_setting};
}

TEST(RealHybrid, EveryKindIsCheckedInEveryLayout) {
  std::uint64_t seed = 0;
  for (const Kind& kind : kKinds) {
    for (const char* form : {"cache.layout=layer_first", "cache.layout=page_first", "cache.layout=page_first_direct"}) {
      SCOPED_TRACE(std::string(kind.verified) + " " + form);
      const Folder folder;
      const Simulated real = run_for_real(folder, work(folder, kind, ++seed) + Settings{form});
      EXPECT_EQ(real.requests("failed") + real.requests("rejected"), 0U);
      EXPECT_GT(real.tokens("hit_device"), 0U);
      EXPECT_GT(real.tokens("hit_host"), 0U);
      const Json& verified = real.report.at("real").at("verified");
      EXPECT_EQ(verified.at("wrong_reads"), 0);
      const Json& part = verified.at(kind.verified);
      EXPECT_GT(part.at("read"), 0);
      EXPECT_GT(part.at("audited"), 0);
      EXPECT_GT(part.at("bytes_checked"), 0);
      if (std::string_view(KVTWIN_TEST_DEVICE) == "host") {  // a GPU checks a part
        EXPECT_EQ(part.at("bytes_checked"), part.at("bytes_read"));
      }
      EXPECT_EQ(part.contains("copied"), std::string(kind.verified) == "states");
      EXPECT_GT(part.value("copied", 1), 0);
      EXPECT_EQ(run({"replay", folder / "run", "--json"}).json().at("verdict"), "equal");
    }
  }
}

// One request after another, and nothing leaves memory: times decide nothing.
TEST(RealHybrid, DecidesAsTheSimulation) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    Settings settings = work(folder, kind, 7, 40);
    settings.pop_back();  // the pool's size
    settings = settings + Settings{"scheduler.max_running=1", "tiers.device.tokens=100000", "tiers.host.tokens=200000"};
    const Simulated real = run_for_real(folder, settings);
    const Simulated simulated = simulate(settings);
    EXPECT_EQ(real.digest(), simulated.digest());
    EXPECT_GT(real.tokens("hit_device"), 0U);
    EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
  }
}

TEST(RealHybrid, RefusesWhatIsNotThere) {
  const Folder folder;
  const Settings settings = work(folder, kKinds[0], 1);
  EXPECT_NE(run(run_arguments(folder,
                              settings + Settings{"tiers.disk.tokens=100000", "tiers.disk.path=" + (folder / "disk")}))
                .err.find("and not yet to storage tiers"),
            std::string::npos);
  const Settings vllm = settings + Settings{"engine=vllm", "tiers.device.window_ratio=0.8"};
  const Outcome outcome = run(run_arguments(folder, vllm));
  EXPECT_EQ(outcome.exit_code, 2);
}

#if KVTWIN_HAVE_MPI
TEST(RealHybrid, TwoRanksHaveTheirPartsOfEveryKind) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.verified);
    const Folder folder;
    const Outcome outcome = run_ranks(folder, work(folder, kind, 11, 40) + Settings{"parallel.tp=2"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Simulated real = read_run(outcome, folder / "run");
    const Json& verified = real.report.at("real").at("verified");
    EXPECT_EQ(verified.at("wrong_reads"), 0);
    EXPECT_GT(verified.at(kind.verified).at("read"), 0);
    expect_equal_ranks(folder, real.report, 2);
  }
}
#endif

}  // namespace
}  // namespace kvtwin::test

#endif
