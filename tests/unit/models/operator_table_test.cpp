#include "models/operator_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "models/operator_cost.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"
#include "models/text_file.hpp"
#include "tests/paths.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kFsPerMeasuredNs = 1'000'000;
const std::string kPart = "tests/fixtures/operators/h100_sxm_sglang_part.txt";

std::string part_text() { return read_text_file(in_source(kPart), "give the fixture"); }
OperatorTable part() { return parse_operators(part_text(), kPart); }

const OperatorLattice& lattice(const OperatorTable& table, const char* name) {
  const OperatorLattice* found = table.find(name);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}

std::string error_of(const std::string& text) {
  try {
    parse_operators(text, "ops.txt");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kHead = "kvtwin-operators 1\ngpu g\nengine e\nsource s\ndate 2026-11-25\n";

TEST(OperatorTable, ReadsThePointsOfTheFile) {
  const OperatorTable table = part();
  EXPECT_EQ(table.gpu, "h100_sxm");
  EXPECT_EQ(table.engine, "sglang");
  EXPECT_EQ(table.lattices.size(), 5U);
  for (const auto& [name, one] : table.lattices) {
    std::vector<std::uint64_t> x{1}, y{1}, z{1};
    x = one.axis(0);
    if (one.axes() > 1) y = one.axis(1);
    if (one.axes() > 2) z = one.axis(2);
    std::size_t point = 0;
    for (const std::uint64_t a : x) {
      for (const std::uint64_t b : y) {
        for (const std::uint64_t c : z) {
          EXPECT_EQ(one.at_fs(a, b, c), Wide128{one.ns(point++)} * kFsPerMeasuredNs) << name;
        }
      }
    }
    EXPECT_EQ(point, one.points());
  }
}

TEST(OperatorTable, IsLinearBetweenPointsAndProportionalBeyond) {
  const OperatorTable table =
      parse_operators(std::string(kHead) + "table t\naxis x 10 20\naxis y 1 3\nns 100 200\nns 300 500\n", "f");
  const OperatorLattice& one = lattice(table, "t");
  EXPECT_EQ(one.at_fs(15, 1), Wide128{200} * kFsPerMeasuredNs);
  EXPECT_EQ(one.at_fs(15, 2), Wide128{275} * kFsPerMeasuredNs);
  EXPECT_EQ(one.at_fs(40, 6), Wide128{2000} * kFsPerMeasuredNs);
  EXPECT_EQ(one.at_fs(0, 1), Wide128{100} * kFsPerMeasuredNs);
}

TEST(OperatorTable, MoreTokensAreNeverCheaper) {
  const OperatorTable table = part();
  Splitmix random{7};
  for (const auto& [name, one] : table.lattices) {
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t a = random.next() >> (random.next() % 63),
                          b = a + (random.next() >> (random.next() % 63)) / 2;
      const std::uint64_t other = 1 + random.next() % 40000, third = 1 + random.next() % 40000;
      const std::uint64_t high = b < a ? a : b;
      EXPECT_LE(one.at_fs(a, other, third), one.at_fs(high, other, third)) << name << " " << a << " " << high;
      if (one.axes() != 2) continue;
      EXPECT_LE(one.at_fs(other, a), one.at_fs(other, high)) << name << " " << a << " " << high;
    }
  }
}

TEST(OperatorTable, GarbageIsOneSentence) {
  const std::string head = kHead;
  const std::string garbage[] = {
      "",
      "garbage",
      "\x28\xb5\x2f\xfd garbage",
      "kvtwin-operators 1\n",
      head,
      head + "axis x 1 2\n",
      head + "table t\nns 1\n",
      head + "table t\naxis x 2 1\nns 1 2\n",
      head + "table t\naxis x 1 2\nns 1\n",
      head + "table t\naxis x 1 2\nns 2 1\n",
      head + "table t\naxis x 1 2\nns 1 -2\n",
      head + "table t\naxis x 1 2\nns 1 99999999999999999999\n",
      head + "table t\naxis x 1 2\nns 1 2\ntable t\naxis x 1 2\nns 1 2\n",
      head + "table t\naxis a 1 2\naxis b 1 2\naxis c 1 2\naxis d 1 2\nns 1 2\n",
      head + "table t\naxis x 1 2\nns 1 2\nns 1 2\n",
  };
  for (const std::string& text : garbage) {
    const std::string error = error_of(text);
    EXPECT_TRUE(error.starts_with("ops.txt: ")) << text << " -> " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(OperatorTable, EachChangedByteIsRefusedOrGivesMonotoneTimes) {
  const std::string text = part_text();
  Splitmix random{11};
  for (int i = 0; i < 300; ++i) {
    std::string changed = text;
    changed[random.next() % changed.size()] = static_cast<char>(random.next());
    try {
      const OperatorTable table = parse_operators(changed, "f");
      for (const auto& [name, one] : table.lattices) EXPECT_LE(one.at_fs(100, 9, 9), one.at_fs(101, 9, 9)) << name;
    } catch (const ModelError&) {
    }
  }
}

ForwardShape prompt(Tokens tokens, Tokens context) {
  ForwardShape s;
  s.prefill_tokens = tokens;
  s.prefill_context_tokens = context;
  s.prefill_pairs = tokens * context + tokens * (tokens + 1) / 2;
  s.prefill_sequences = 1;
  return s;
}

ForwardShape decoding(std::uint32_t sequences, Tokens each) {
  ForwardShape s;
  s.decode_sequences = sequences;
  s.decode_context_tokens = sequences * each;
  return s;
}

class OperatorCosts : public ::testing::Test {
 protected:
  const ModelGeometry model = model_preset("llama-3.1-8b");
  const HardwareSpec hardware = hardware_preset("h100-sxm");
  const OperatorTable table = part();
  RooflineCost measured() const {
    RooflineCost cost(model, hardware, 1);
    cost.measure_with(table, model, hardware, 1);
    return cost;
  }
};

TEST_F(OperatorCosts, ABurstTakesAsLongAsItsSteps) {
  const RooflineCost cost = measured();
  for (const std::uint32_t sequences : {1U, 7U, 32U, 3000U}) {
    for (const Tokens each : {Tokens{1}, Tokens{100}, Tokens{4000}, Tokens{131'000}, Tokens{500'000}}) {
      constexpr std::uint64_t kSteps = 400;
      TimeNs sum = 0;
      for (std::uint64_t j = 0; j < kSteps; ++j) sum += cost.forward_ns(decoding(sequences, each + j), 1);
      const TimeNs burst = cost.forward_ns(decoding(sequences, each), kSteps);
      EXPECT_LE(burst, sum);
      EXPECT_GE(burst + static_cast<TimeNs>(kSteps), sum) << sequences << " " << each;  // rounding of each step
    }
  }
}

TEST_F(OperatorCosts, TimesRiseWithTokensContextAndSteps) {
  const RooflineCost cost = measured();
  TimeNs before = 0;
  for (Tokens tokens = 1; tokens < 100'000; tokens += 1 + tokens / 50) {
    const TimeNs now = cost.forward_ns(prompt(tokens, 1000), 1);
    EXPECT_GE(now, before) << tokens;
    before = now;
  }
  EXPECT_LE(cost.forward_ns(prompt(512, 0), 1), cost.forward_ns(prompt(512, 4096), 1));
  EXPECT_LT(cost.forward_ns(decoding(8, 1000), 5), cost.forward_ns(decoding(8, 1000), 6));
  EXPECT_LE(cost.forward_ns(decoding(8, 1000), 5), cost.forward_ns(decoding(8, 2000), 5));
}

TEST_F(OperatorCosts, TheRooflineFillsTheRest) {
  const RooflineCost cost = measured();
  ASSERT_NE(cost.operators(), nullptr);
  EXPECT_TRUE(cost.operators()->missing().empty());
  EXPECT_GT(cost.measured_x2_32(prompt(2048, 0)), (std::uint64_t{1} << 32) * 9 / 10);
  RooflineCost sharded(model, hardware, 2);  // the part of the table has no attention with 16 heads
  sharded.measure_with(table, model, hardware, 2);
  EXPECT_EQ(sharded.operators()->full().layers, 0U);
  EXPECT_EQ(sharded.operators()->unmeasured_collectives(), 0U);
  EXPECT_FALSE(sharded.operators()->missing().empty());
  EXPECT_GT(sharded.forward_ns(prompt(2048, 0), 1), 0);
  const RooflineCost plain(model, hardware, 1);
  EXPECT_EQ(plain.operators(), nullptr);
  EXPECT_EQ(plain.measured_x2_32(prompt(2048, 0)), 0U);
}

// A table with gated delta nets and experts, made up so that each part has a time of its own.
OperatorTable made_up(const std::string& experts) {
  return parse_operators(std::string(kHead) +
                             "table gdn_context 4096 8 32\naxis batch 1 8\naxis tokens 1 1024\nns 1000 "
                             "9000\nns 2000 60000\ntable gdn_generation 4096 8 32\naxis batch 1 64\nns "
                             "3000 7000\ntable moe bf16 4096 1024 10 512 " +
                             experts + "\naxis tokens 1 1024\nns 5000 50000\n",
                         "ops.txt");
}

// The text part of Qwen3.5-397B-A17B's config.json, with four layers.
ModelGeometry delta_net_model() {
  return parse_model(R"({"model_type": "qwen3_5_moe_text", "torch_dtype": "bfloat16", "num_hidden_layers": 4,
      "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
      "full_attention_interval": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 1024,
      "shared_expert_intermediate_size": 1024, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4})",
                     "config.json");
}

TEST_F(OperatorCosts, AGatedDeltaNetTakesItsMeasuredTime) {
  const ModelGeometry net = delta_net_model();
  const OperatorTable made = made_up("2 1");
  const OperatorCost cost(net, hardware, 2, 1, made);
  ASSERT_EQ(cost.state().layers, 3U);
  EXPECT_EQ(cost.state().step_fs(64), Wide128{3} * 7000 * kFsPerMeasuredNs);
  EXPECT_EQ(cost.state().step_fs(0), Wide128{0});
  ForwardShape two = prompt(2048, 0);
  two.prefill_sequences = 1;
  EXPECT_EQ(cost.state().prefill_fs(two), Wide128{3} * 18'000 * kFsPerMeasuredNs);  // in proportion beyond the table
  EXPECT_EQ(OperatorCost(net, hardware, 1, 1, made).state().layers, 0U);            // no lattice for 16 key heads
}

// GLM-5's config.json with two layers, one of them with experts.
ModelGeometry sparse_model() {
  return parse_model(R"({"model_type": "glm_moe_dsa", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
      "hidden_size": 6144, "intermediate_size": 12288, "num_attention_heads": 64, "num_key_value_heads": 64,
      "head_dim": 64, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
      "moe_intermediate_size": 2048, "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": 2048,
      "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_head_dim": 128,
      "index_n_heads": 32, "index_topk": 2048, "vocab_size": 154880})",
                     "config.json");
}

const std::string kExperts = "table moe bf16 6144 2048 8 256 8 1\naxis tokens 1 1024\nns 5000 50000\n";

OperatorTable sparse_table() {
  return parse_operators(kHead + kExperts +
                             "table dsa_context bf16 bf16 6144 8\naxis batch 1 8\naxis tokens 1 1024\nns 10000 "
                             "90000\nns 20000 600000\ntable dsa_generation bf16 bf16 6144 8\naxis batch 1 64\n"
                             "axis tokens 1 1001\nns 3000 7000\nns 5000 9000\n",
                         "ops.txt");
}

TEST_F(OperatorCosts, SparseAttentionTakesItsMeasuredTimeWithItsProjections) {
  const ModelGeometry sparse = sparse_model();
  const OperatorTable lattices = sparse_table();
  const OperatorCost cost(sparse, hardware, 8, 1, lattices);
  ASSERT_EQ(cost.full().layers, 2U);
  EXPECT_TRUE(cost.full().sparse);
  // By tokens, not by pairs; in proportion beyond the table.
  EXPECT_EQ(cost.full().prefill_fs(prompt(1024, 0)), Wide128{2} * 90'000 * kFsPerMeasuredNs);
  EXPECT_EQ(cost.full().prefill_fs(prompt(2048, 0)), Wide128{2} * 180'000 * kFsPerMeasuredNs);
  EXPECT_EQ(cost.full().decode_fs(64, Wide128{64} * 1000 * 1024, 64 * 1024, 1), Wide128{2} * 9000 * kFsPerMeasuredNs);
  // Without the lattices, the projections are products of the linear part.
  const OperatorCost without(sparse, hardware, 8, 1, parse_operators(kHead + kExperts, "ops.txt"));
  EXPECT_EQ(without.full().layers, 0U);
  EXPECT_LT(cost.linear_fs(64, 64), without.linear_fs(64, 64));
  EXPECT_EQ(std::ranges::count(without.missing(), "dsa_context bf16 bf16 6144 8"), 1);
  EXPECT_EQ(small_kernels(sparse) - small_kernels(sparse, true), 2U);
}

TEST_F(OperatorCosts, SparseAttentionOfAPassIsThatOfItsLattices) {
  const ModelGeometry sparse = sparse_model();
  const OperatorTable lattices = sparse_table();
  RooflineCost cost(sparse, hardware, 8);
  cost.measure_with(lattices, sparse, hardware, 8);
  // The latent cache and the window of 2,048 tokens have no time of their own: contexts cost what the lattice says.
  const auto rises = cost.forward_ns(decoding(64, 1000), 1) - cost.forward_ns(decoding(64, 500), 1);
  EXPECT_NEAR(static_cast<double>(rises), 2 * 2000, 2);
  // Each verified token counts as a sequence.
  ForwardShape drafted = decoding(32, 1000);
  drafted.draft_tokens = 1;
  drafted.decode_yield_x1024 = 32 * 1024;
  ForwardShape longer = drafted;
  longer.decode_context_tokens += Tokens{32} * 100;
  EXPECT_NEAR(static_cast<double>(cost.forward_ns(longer, 1) - cost.forward_ns(drafted, 1)), 2.0 * 9000 * 100 / 1001,
              40);
  // A cached prefix adds the indexer's pairs.
  const TimeNs alone = cost.forward_ns(prompt(512, 0), 1);
  EXPECT_GT(cost.forward_ns(prompt(512, 50'000), 1), alone);
  TimeNs before = 0;
  for (Tokens tokens = 1; tokens < 100'000; tokens += 1 + tokens / 50) {
    const TimeNs now = cost.forward_ns(prompt(tokens, 1000), 1);
    EXPECT_GE(now, before) << tokens;
    before = now;
  }
}

TEST_F(OperatorCosts, ExpertsAreThoseOfTheSplit) {
  const ModelGeometry net = delta_net_model();
  const auto missing = [&](const OperatorTable& made, std::uint32_t ep) {
    const OperatorCost cost(net, hardware, 2, ep, made);
    std::string all;
    for (const std::string& name : cost.missing()) all += name + ";";
    return all;
  };
  EXPECT_EQ(missing(made_up("2 1"), 1).find("moe"), std::string::npos);
  EXPECT_EQ(missing(made_up("1 2"), 2).find("moe"), std::string::npos);
  // Without a lattice at ep 2 that of ep 1 serves, and the report names the missing one.
  EXPECT_NE(missing(made_up("2 1"), 2).find("moe bf16 4096 1024 10 512 1 2"), std::string::npos);
  const OperatorTable together = made_up("2 1");
  EXPECT_EQ(OperatorCost(net, hardware, 2, 2, together).linear_fs(64, 1),
            OperatorCost(net, hardware, 2, 1, together).linear_fs(64, 1));
  const OperatorTable apart = made_up("1 2");
  EXPECT_EQ(OperatorCost(net, hardware, 2, 2, apart).linear_fs(64, 1),
            OperatorCost(net, hardware, 2, 1, together).linear_fs(64, 1));
}

TEST_F(OperatorCosts, ServingTimesAddToAPass) {
  const auto with = [&](const ServingTimes& times) {
    RooflineCost cost = measured();
    cost.serve_with(times, model, hardware);
    return cost;
  };
  const TimeNs bare = with({}).forward_ns(decoding(8, 1000), 1);
  // 32 layers with two norms, rotary embedding and activation each.
  EXPECT_EQ(small_kernels(model), 32U * 4);
  EXPECT_NEAR(static_cast<double>(with({.kernel_ns = 1000}).forward_ns(decoding(8, 1000), 1) - bare), 128'000, 2);
  // Time that overlap scheduling hides counts only if it is longer than the GPU's time.
  EXPECT_EQ(with({.schedule_ns = 1000}).forward_ns(decoding(8, 1000), 1), bare);
  EXPECT_EQ(with({.schedule_ns = 10'000'000'000, .sequence_ns = 5}).forward_ns(decoding(8, 1000), 1), 10'000'000'040);
  EXPECT_EQ(with({.schedule_ns = 1000, .overlap = false}).forward_ns(decoding(8, 1000), 1), bare + 1000);
  EXPECT_EQ(with({.step_ns = 1000, .sequence_ns = 5}).forward_ns(decoding(8, 1000), 1), bare + 1040);
  // A factor counts in a step with a prefill only.
  EXPECT_EQ(with({.prefill_x1024 = 2048}).forward_ns(decoding(8, 1000), 3), with({}).forward_ns(decoding(8, 1000), 3));
  EXPECT_NEAR(static_cast<double>(with({.prefill_x1024 = 2048}).forward_ns(prompt(1000, 0), 1)),
              2 * static_cast<double>(with({}).forward_ns(prompt(1000, 0), 1)), 2);
  // Pairs with a cached prefix: 500 new tokens behind 500 have 250,000 of them, and 125,250 of their own.
  const ServingTimes doubled{.prefix_x1024 = 2048};
  EXPECT_EQ(with(doubled).forward_ns(prompt(500, 0), 1), with({}).forward_ns(prompt(500, 0), 1));
  ForwardShape as_many = prompt(500, 500);
  as_many.prefill_pairs = 125'250 + 2 * 250'000;
  EXPECT_EQ(with(doubled).forward_ns(prompt(500, 500), 1), with({}).forward_ns(as_many, 1));
  EXPECT_GT(with(doubled).forward_ns(prompt(500, 500), 1), with({}).forward_ns(prompt(500, 500), 1));
  // Launches of 32 layers with 10 kernels count in a prefill, and without graphs in each pass.
  const ServingTimes launches{.launch_ns = 1'000'000};
  EXPECT_EQ(with(launches).forward_ns(decoding(8, 1000), 1), bare);
  EXPECT_EQ(with(launches).forward_ns(prompt(16, 0), 1), 320'000'000);
  EXPECT_EQ(with({.launch_ns = 1'000'000, .graphs = false}).forward_ns(decoding(8, 1000), 1), 320'000'000);
}

TEST_F(OperatorCosts, ABurstWithServingTimesTakesAsLongAsItsSteps) {
  RooflineCost bare_cost = measured();
  bare_cost.serve_with({}, model, hardware);
  // As long as a step in the middle of the burst.
  const auto middle = static_cast<std::uint64_t>(bare_cost.forward_ns(decoding(32, 1200), 1));
  for (const bool overlap : {true, false}) {
    for (const std::uint64_t step_ns : {std::uint64_t{0}, middle, middle * 10}) {
      RooflineCost cost = measured();
      cost.serve_with({.schedule_ns = step_ns, .step_ns = 11, .sequence_ns = 7, .kernel_ns = 100, .overlap = overlap},
                      model, hardware);
      constexpr std::uint64_t kSteps = 400;
      TimeNs sum = 0, before = 0;
      for (std::uint64_t j = 0; j < kSteps; ++j) {
        sum += cost.forward_ns(decoding(32, 1000 + j), 1);
        const TimeNs burst = cost.forward_ns(decoding(32, 1000), j + 1);
        EXPECT_GT(burst, before);
        before = burst;
      }
      EXPECT_LE(before, sum) << step_ns;
      EXPECT_GE(before + static_cast<TimeNs>(kSteps), sum) << step_ns;
    }
  }
}

TEST_F(OperatorCosts, ExtremeShapesSaturate) {
  const RooflineCost cost = measured();
  constexpr Tokens kMany = ~Tokens{0};
  ForwardShape s = prompt(1000, 0);
  s.prefill_pairs = kMany;
  s.prefill_tokens = kMany;
  s.decode_sequences = ~0U;
  s.decode_context_tokens = kMany;
  EXPECT_GT(cost.forward_ns(s, 1), 0);
  EXPECT_GE(cost.forward_ns(s, ~std::uint64_t{0}), cost.forward_ns(s, 1));
}

}  // namespace
}  // namespace kvtwin::test
