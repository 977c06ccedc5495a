// Data parallelism of attention in the cost model, by formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/device_memory.hpp"
#include "models/operator_cost.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"
#include "models/wide.hpp"

namespace kvtwin {
namespace {

class AttentionGroups : public testing::Test {
 protected:
  static RooflineCoefficients of(std::uint32_t tp, std::uint32_t groups) {
    return coefficients_of(model_preset("deepseek-v3"), hardware_preset("gb200"), tp, groups);
  }
  static ForwardShape batch(std::uint32_t sequences, Tokens context) {
    ForwardShape shape;
    shape.decode_sequences = sequences;
    shape.decode_context_tokens = sequences * context;
    return shape;
  }
  static ForwardShape prompts(std::uint32_t sequences, Tokens tokens) {
    ForwardShape shape;
    shape.prefill_sequences = sequences;
    shape.prefill_tokens = sequences * tokens;
    shape.prefill_pairs = sequences * (tokens * (tokens + 1) / 2);
    return shape;
  }

  const ModelGeometry model = model_preset("deepseek-v3");
  const HardwareSpec hardware = hardware_preset("gb200");
};

TEST_F(AttentionGroups, OneGroupIsTensorParallelism) {
  EXPECT_EQ(of(8, 1), coefficients_of(model, hardware, 8));
  EXPECT_EQ(of(8, 1).group_token_fs, 0U);
  EXPECT_EQ(of(8, 1).group_reduce_fs, 0U);
  const ForwardShape shape = batch(7, 1000);
  EXPECT_EQ(group_share(shape, 1).decode_context_tokens, shape.decode_context_tokens);
  const RooflineCost one(model, hardware, 8), same(model, hardware, 8, 1);
  EXPECT_EQ(one.forward_ns(shape, 9), same.forward_ns(shape, 9));
}

TEST_F(AttentionGroups, TheFullestGroupHasTheShareRoundedUp) {
  const ForwardShape share = group_share(batch(9, 1000), 8);
  EXPECT_EQ(share.decode_sequences, 2U);
  EXPECT_EQ(share.decode_context_tokens, 2000U);
  // One prompt is in one group, with all of its tokens.
  const ForwardShape alone = group_share(prompts(1, 500), 8), all = group_share(prompts(16, 500), 8);
  EXPECT_EQ(alone.prefill_tokens, 500U);
  EXPECT_EQ(alone.prefill_pairs, 500U * 501 / 2);
  EXPECT_EQ(all.prefill_tokens, 1000U);
  EXPECT_EQ(all.prefill_sequences, 2U);
  EXPECT_EQ(group_share(batch(0, 0), 8).decode_sequences, 0U);
}

TEST_F(AttentionGroups, AttentionIsOfTheRanksOfOneGroup) {
  const RooflineCoefficients dp8 = of(8, 8), tp1 = of(1, 1), dp4 = of(8, 4), tp2 = of(2, 1);
  EXPECT_EQ(dp8.decode_token_fs, tp1.decode_token_fs);
  EXPECT_EQ(dp8.prefill_pair_fs, tp1.prefill_pair_fs);
  EXPECT_EQ(dp4.decode_token_fs, tp2.decode_token_fs);
  // Experts and the output head stay over all ranks.
  EXPECT_EQ(dp8.expert_fs, of(8, 1).expert_fs);
  EXPECT_EQ(dp8.head_sequence_fs, of(8, 1).head_sequence_fs);
}

TEST_F(AttentionGroups, ProductsOutsideOfTheExpertsAreSplitByGroup) {
  // Attention, three dense layers and a shared expert in 58 layers, and not the router.
  EXPECT_NEAR(static_cast<double>(model.group_parameters), 61 * 187.1e6 + 3 * 396.4e6 + 58 * 44.0e6, 0.01e9);
  const double attention = 2.0 * static_cast<double>(model.group_parameters);
  const double rate = hardware.gemm_fraction * matrix_peak(hardware, model.attention_format);
  EXPECT_NEAR(static_cast<double>(of(8, 8).group_token_fs), attention / rate * 1e15, 1.0);
  EXPECT_NEAR(static_cast<double>(of(8, 4).group_token_fs), attention / (2 * rate) * 1e15, 1.0);
  // All FLOPs of a token are in one of the two coefficients.
  EXPECT_NEAR(static_cast<double>(of(8, 8).linear_token_fs) + attention / (8 * rate) * 1e15,
              static_cast<double>(of(8, 1).linear_token_fs), 2.0);
  // Each group reads all weights of attention.
  const double bandwidth = hardware.memory_bandwidth * hardware.memory_fraction;
  const double more = static_cast<double>(model.group_weight_bytes) * (1.0 - 1.0 / 8) / bandwidth * 1e15;
  EXPECT_NEAR(static_cast<double>(of(8, 8).weights_fs - of(8, 1).weights_fs), more, 2.0);
}

TEST_F(AttentionGroups, TheExpertsExchangeAtMostAllTokens) {
  const double row = static_cast<double>(model.hidden) * model.dtype_bytes;
  const auto exchanged = [&](double ranks) {
    const double to_experts = std::min(1.0, 8.0 / ranks);
    const double layers = 58 * to_experts;  // the three dense layers exchange nothing
    return layers * 2 * (ranks - 1) / ranks * row / hardware.peer_bandwidth * 1e15;
  };
  EXPECT_NEAR(static_cast<double>(of(8, 8).reduce_token_fs), exchanged(8), 1.0);
  EXPECT_NEAR(static_cast<double>(of(32, 32).reduce_token_fs), exchanged(32), 1.0);
  EXPECT_EQ(of(8, 8).group_reduce_fs, 0U);  // one rank reduces nothing
  EXPECT_NEAR(static_cast<double>(of(8, 4).group_reduce_fs), 64 * row / hardware.peer_bandwidth * 1e15, 1.0);
  EXPECT_EQ(reduces_of_group(model), 64U);  // attention, and dense feed-forward
  EXPECT_EQ(collectives_of(model, 8, 1), 122U);
  EXPECT_EQ(collectives_of(model, 8, 8), 116U);
  EXPECT_EQ(collectives_of(model, 8, 4), 180U);
  EXPECT_EQ(collectives_of(model, 1, 1), 0U);
}

TEST_F(AttentionGroups, ADecodeStepIsTheSumOfItsParts) {
  const RooflineCost cost(model, hardware, 32, 32);
  const RooflineCoefficients& c = cost.coefficients();
  constexpr std::uint32_t kSequences = 100, kMost = 4;  // ceil(100 / 32)
  constexpr Tokens kContext = 4096;
  const Wide128 experts = Wide128{c.expert_fs} * cost.distinct_experts_x2_32(kSequences) >> 32;
  const Wide128 compute = Wide128{c.linear_token_fs} * kSequences + Wide128{c.group_token_fs} * kMost +
                          Wide128{c.head_sequence_fs} * kSequences;
  const Wide128 fs = c.step_fs + std::max(compute, c.weights_fs + experts) + Wide128{c.reduce_token_fs} * kSequences +
                     Wide128{c.decode_token_fs} * (kMost * (kContext + 1));
  EXPECT_EQ(cost.spread_ns(batch(kSequences, kContext), 1), static_cast<TimeNs>((fs + 999'999) / 1'000'000));
}

TEST_F(AttentionGroups, AJointStepWaitsForTheSlowestGroup) {
  const RooflineCost cost(model, hardware, 8, 8);
  const std::vector<ForwardShape> even(8, batch(4, 4096));
  EXPECT_EQ(cost.joint_step_ns(even), cost.spread_ns(batch(32, 4096), 1)) << "evenly spread";
  EXPECT_EQ(cost.joint_step_ns(std::span(even).first(1)), cost.forward_ns(even[0], 1)) << "one group alone";
  std::vector<ForwardShape> uneven(8, batch(2, 4096));
  uneven[3] = batch(18, 4096);
  EXPECT_GT(cost.joint_step_ns(uneven), cost.joint_step_ns(even)) << "as many sequences, most of them in one group";
  // A prefill in one group holds up the decodes of the others, for hardly longer than alone.
  std::vector<ForwardShape> mixed = even;
  mixed[0] = prompts(1, 8000);
  const TimeNs alone = cost.forward_ns(mixed[0], 1);
  EXPECT_GE(cost.joint_step_ns(mixed), alone);
  EXPECT_LT(cost.joint_step_ns(mixed), alone + cost.joint_step_ns(even));
}

TEST_F(AttentionGroups, ADraftModelStepsWithTheGroups) {
  RooflineCost cost(model, hardware, 8, 8);
  cost.set_draft(model_preset("llama-3.1-8b"), hardware, 8);
  ForwardShape drafting = batch(4, 4096);
  drafting.draft_tokens = 3;
  drafting.decode_yield_x1024 = 4 * 2560;
  const std::vector<ForwardShape> even(8, drafting);
  ForwardShape all = batch(32, 4096);
  all.draft_tokens = 3;
  all.decode_yield_x1024 = 32 * 2560;
  EXPECT_EQ(cost.joint_step_ns(even), cost.spread_ns(all, 1));
}

TEST_F(AttentionGroups, TransfersAreThoseOfOneGroup) {
  Plan plan;
  plan.path = TransferPath::staged;
  plan.direction = Direction::host_to_device;
  plan.bytes = Bytes{1} << 30;
  plan.descriptors = 1024;
  plan.descriptor_bytes = Bytes{1} << 20;
  const TransferCost one = RooflineCost(model, hardware, 1).transfer(plan);
  const TransferCost eight = RooflineCost(model, hardware, 8, 8).transfer(plan);
  EXPECT_EQ(eight.bytes_per_second, one.bytes_per_second);
  EXPECT_EQ(eight.latency_ns, one.latency_ns);
}

TEST_F(AttentionGroups, BeyondADomainNicsLimitTheExchange) {
  const HardwareSpec h200 = hardware_preset("h200-sxm");
  EXPECT_DOUBLE_EQ(exchange_rate(h200, 8), h200.peer_bandwidth);
  EXPECT_DOUBLE_EQ(exchange_rate(h200, 16), 8 * 46.6e9);
  EXPECT_DOUBLE_EQ(exchange_rate(hardware, 64), hardware.peer_bandwidth);
  HardwareSpec alone = h200;
  alone.nic_count = 0;
  EXPECT_DOUBLE_EQ(exchange_rate(alone, 16), h200.peer_bandwidth);
}

TEST_F(AttentionGroups, MemoryHoldsTheWeightsOutsideOfTheExpertsOncePerGroup) {
  MemoryTerms terms;
  terms.tp = 8;
  const Bytes one = device_kv_bytes(hardware, model, terms);
  terms.attention_dp = 8;
  const Bytes eight = device_kv_bytes(hardware, model, terms);
  EXPECT_NEAR(static_cast<double>(one - eight), static_cast<double>(model.group_weight_bytes) * 7 / 8, 2.0);
}

TEST_F(AttentionGroups, MeasuredPartsTakeTheTokensOfAGroup) {
  const OperatorTable table = operators_preset("gb200/sglang");
  const OperatorCost one(model, hardware, 8, 8, table), same(model, hardware, 8, 8, table, 1);
  const OperatorCost groups(model, hardware, 8, 8, table, 8);
  EXPECT_EQ(one.linear_fs(64, 64), same.linear_fs(64, 64, 8));
  EXPECT_GT(groups.linear_fs(64, 64, 16), groups.linear_fs(64, 64, 8));
  EXPECT_GT(groups.linear_fs(64, 64, 8), groups.linear_measured_fs(64, 64, 8));
  // Attention has the lattice of all 128 heads.
  EXPECT_EQ(groups.full().decode_fs(8, Wide128{8} * 1000 * 1024, 8 * 1024, 1),
            OperatorCost(model, hardware, 1, 1, table).full().decode_fs(8, Wide128{8} * 1000 * 1024, 8 * 1024, 1));
}

TEST_F(AttentionGroups, TheTablesAllToAllIsTheExchange) {
  const OperatorTable table = operators_preset("gb200/trtllm");
  OperatorTable without = table;
  std::erase_if(without.lattices, [](const auto& entry) { return entry.first.starts_with("exchange"); });
  const OperatorCost with(model, hardware, 32, 32, table, 32), roofline(model, hardware, 32, 32, without, 32);
  EXPECT_EQ(with.unmeasured_collectives(), 0U);
  EXPECT_EQ(roofline.unmeasured_collectives(), 116U);
  const OperatorLattice* lattice = table.find("exchange fp8 7168 8 256 32");
  ASSERT_NE(lattice, nullptr);
  constexpr Tokens kTokens = 2048, kOfGroup = 64;
  const Wide128 reduced = Wide128{RooflineCost(model, hardware, 32, 32).coefficients().reduce_token_fs} * kTokens;
  EXPECT_EQ(with.linear_fs(kTokens, 0, kOfGroup) - 58 * lattice->at_fs(kOfGroup),
            roofline.linear_fs(kTokens, 0, kOfGroup) - reduced);
}

TEST_F(AttentionGroups, ExpertsHaveTheKernelsOfTheirMode) {
  const OperatorTable table = operators_preset("gb200/sglang");
  const auto cost = [&](const char* family) { return OperatorCost(model, hardware, 32, 32, table, 32, family); };
  const OperatorLattice* fused = table.find("moe fp8_block 7168 2048 8 256 1 32");
  const OperatorLattice* wide = table.find("moe_low_latency fp8_block 7168 2048 8 256 1 32");
  ASSERT_TRUE(fused != nullptr && wide != nullptr);
  constexpr Tokens kTokens = 2048;  // a knot of both
  EXPECT_EQ(cost("moe").linear_fs(kTokens, 0, 64) - 58 * fused->at_fs(kTokens),
            cost("moe_low_latency").linear_fs(kTokens, 0, 64) - 58 * wide->at_fs(kTokens));
  // A table without the lattice: the fused kernels', and a name in the report.
  const OperatorCost balanced = cost("moe_balanced");
  EXPECT_EQ(balanced.linear_fs(kTokens, 0, 64), cost("moe").linear_fs(kTokens, 0, 64));
  EXPECT_TRUE(std::ranges::any_of(balanced.missing(), [](const std::string& name) {
    return name == "moe_balanced fp8_block 7168 2048 8 256 1 32";
  }));
}

}  // namespace
}  // namespace kvtwin
