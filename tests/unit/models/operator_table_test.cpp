#include "models/operator_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/operator_cost.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"
#include "models/text_file.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kFsPerMeasuredNs = 1'000'000;
const std::string kPart = "tests/fixtures/operators/h100_sxm_sglang_part.txt";

std::string part_text() { return read_text_file(KVTWIN_SOURCE_DIR "/" + kPart, "give the fixture"); }
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
  const HardwareSpec hardware = hardware_preset("h100-pcie5");
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
  EXPECT_TRUE(sharded.operators()->reduces());
  EXPECT_FALSE(sharded.operators()->missing().empty());
  EXPECT_GT(sharded.forward_ns(prompt(2048, 0), 1), 0);
  const RooflineCost plain(model, hardware, 1);
  EXPECT_EQ(plain.operators(), nullptr);
  EXPECT_EQ(plain.measured_x2_32(prompt(2048, 0)), 0U);
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
