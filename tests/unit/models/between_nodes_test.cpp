// Exchanges with the experts and collectives between nodes.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "models/operator_cost.hpp"
#include "models/presets.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kFsPerMeasuredNs = 1'000'000;
const std::string kHead = "kvtwin-operators 1\ngpu g\nengine sglang\nsource s\ndate 2026-11-25\n";

// DeepSeek-V3 on 16 ranks of two nodes.
class BetweenNodes : public ::testing::Test {
 protected:
  const ModelGeometry model = model_preset("deepseek-v3");
  const HardwareSpec hardware = hardware_preset("h100-sxm");

  Wide128 linear(const std::string& tables, std::uint32_t dp, const std::string& experts = "moe") const {
    const OperatorTable table = parse_operators(head_ + tables, "ops.txt");
    return OperatorCost(model, hardware, 16, 16, table, dp, experts).linear_fs(160, 160, 10);
  }

  std::string head_ = kHead;
  const std::string kSlow = "table exchange_normal 7168 8 256 16\naxis tokens 1 1000\nns 90000 90000\n";
  const std::string kFast = "table exchange_low_latency 7168 8 288 16\naxis tokens 1 1000\nns 30000 30000\n";
  const std::string kNode = "table exchange_low_latency 7168 8 288 8\naxis tokens 1 1000\nns 20000 20000\n";
};

TEST_F(BetweenNodes, ExpertsExchangeByTheKernelsOfTheirMode) {
  const Wide128 slow = linear(kSlow + kFast, 16, "moe_normal"), fast = linear(kSlow + kFast, 16, "moe_low_latency");
  EXPECT_EQ(slow - fast, Wide128{58} * 60'000 * kFsPerMeasuredNs);
  // Without an all-to-all, the exchange takes the time of collectives.
  EXPECT_NE(linear(kSlow + kFast, 16), fast);
  EXPECT_EQ(linear(kSlow + kFast, 16), linear(kFast, 16));
}

TEST_F(BetweenNodes, TensorRtLlmTakesTheFasterKernels) {
  head_.replace(head_.find("sglang"), 6, "trtllm");
  EXPECT_EQ(linear(kSlow + kFast, 16), linear(kFast, 16, "moe_low_latency"));
  EXPECT_EQ(linear(kSlow, 16), linear(kSlow, 16, "moe_normal"));
}

TEST_F(BetweenNodes, AnAllReduceTakesLongerThanWithinANode) {
  const Wide128 more = linear(kFast + kNode, 1) - linear(kFast, 1);
  EXPECT_EQ(more, Wide128{2} * 61 * 10'000 * kFsPerMeasuredNs);
  EXPECT_EQ(linear(kNode, 1), linear(kFast, 1));
}

}  // namespace
}  // namespace kvtwin::test
