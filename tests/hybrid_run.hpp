// Real runs of small models with windows or recurrent states, and of tiers that keep what they store.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/real_run.hpp"

namespace kvtwin::test {

// Four layers; windows of 32 tokens in two of them.
inline constexpr const char* kWindows = R"({"model_type": "gpt_oss", "hidden_size": 16, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "num_local_experts": 2,
  "num_experts_per_tok": 1, "vocab_size": 32, "torch_dtype": "bfloat16", "sliding_window": 32,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})";

// Four layers; gated delta nets in three of them.
inline constexpr const char* kStates = R"({"model_type": "qwen3_next", "hidden_size": 16, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "vocab_size": 32,
  "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 1,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
  "linear_num_value_heads": 2, "full_attention_interval": 4, "torch_dtype": "bfloat16"})";

// Four layers: three with linear attention, one with MLA, whose rows are the same on all ranks.
inline constexpr const char* kStatesBesideLatents =
    R"({"model_type": "kimi_linear", "hidden_size": 16, "num_hidden_layers": 4,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "vocab_size": 32,
  "num_experts": 2, "num_experts_per_token": 1, "moe_intermediate_size": 16, "kv_lora_rank": 24, "q_lora_rank": null,
  "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "torch_dtype": "bfloat16",
  "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 8, "num_heads": 2,
  "short_conv_kernel_size": 4}})";

struct HybridKind {
  const char* config;
  const char* verified;        // its part of real.verified
  const char* device_setting;  // pools that evict
};
inline constexpr HybridKind kHybridKinds[] = {{kWindows, "windows", "tiers.device.window_ratio=0.5"},
                                              {kStates, "states", "tiers.device.states=40"}};

inline constexpr HybridKind kRankHybridKinds[] = {
    kHybridKinds[0], kHybridKinds[1], {kStatesBesideLatents, "states", "tiers.device.states=40"}};

inline Settings settings_of(const HybridKind& kind, const Folder& folder) {
  write_text(folder / "config.json", kind.config);
  return {"engine=sglang", "serving.engine=none", "hardware.name=cpu-host", "model.config=" + (folder / "config.json"),
          kind.device_setting};
}

// Conversations that are larger than L1.
inline Settings hybrid_work(const Folder& folder, const HybridKind& kind, std::uint64_t seed,
                            std::uint64_t requests = 80) {
  return conversations(busy_conversations(requests), seed).save(folder) +
         Settings{"cache.page_tokens=16",        "tiers.device.tokens=2400", "tiers.host.tokens=9600",
                  "scheduler.chunk_tokens=96",   "workload.time_scale=1",    "scheduler.max_running=4",
                  "cache.load_back_min_tokens=4"} +
         settings_of(kind, folder);
}

// The first run fills the tier; the second one begins with empty pools, and reads what the first has left.
class HybridTiers : public testing::Test {
 protected:
  Simulated serve(const Settings& settings, const std::string& out) {
    fs::remove_all(folder_ / out);
    const Simulated real = run_for_real(folder_, settings, out);
    EXPECT_EQ(real.requests("failed") + real.requests("rejected"), 0U);
    EXPECT_EQ(real.report.at("real").at("verified").at("wrong_reads"), 0);
    for (const Json& lane : real.report.at("lanes")) EXPECT_LE(lane.at("busy_fraction"), 1) << lane;
    EXPECT_EQ(run({"replay", folder_ / out, "--json"}).json().at("verdict"), "equal");
    return real;
  }
  void fill_and_read(const HybridKind& kind, const std::string& tier, const Settings& place, std::uint64_t seed) {
    SCOPED_TRACE(std::string(kind.verified) + " " + tier);
    const Settings settings = tiers_of(kind, seed) + place;
    serve(settings, "filled");
    const Simulated real = serve(settings, "read");
    EXPECT_GT(real.report.at("real").at("verified").at(kind.verified).at("read"), 0);
    EXPECT_GT(real.tokens(("hit_" + tier).c_str()), 0U);
    EXPECT_GT(real.report.at("real").at("storage").at(tier).at("pool1_objects_read"), 0);
  }
  Settings tiers_of(const HybridKind& kind, std::uint64_t seed, std::uint64_t requests = 40) const {
    return hybrid_work(folder_, kind, seed, requests) +
           Settings{"tiers.host.tokens=4800", "cache.prefetch_min_tokens=16", "cache.prefetch_policy=wait_complete"};
  }
  Settings disk(std::uint64_t tokens, const HybridKind& kind) const {
    return {"tiers.disk.tokens=" + std::to_string(tokens),
            "tiers.disk.path=" + (folder_ / (std::string("disk-") + kind.verified))};
  }

  Folder folder_;
};

}  // namespace kvtwin::test
