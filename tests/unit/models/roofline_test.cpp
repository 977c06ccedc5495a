#include "models/roofline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "models/presets.hpp"

namespace kvtwin {
namespace {

RooflineCost cost_of(const char* model, const char* hardware, std::uint32_t tp = 1) {
  return {model_preset(model), hardware_preset(hardware), tp};
}

ForwardShape prefill(Tokens fresh, Tokens cached = 0) {
  ForwardShape shape;
  shape.prefill_tokens = fresh;
  shape.prefill_pairs = fresh * cached + fresh * (fresh + 1) / 2;
  shape.prefill_context_tokens = cached;
  shape.prefill_sequences = 1;
  return shape;
}

ForwardShape decode(std::uint32_t sequences, Tokens context) {
  ForwardShape shape;
  shape.decode_sequences = sequences;
  shape.decode_context_tokens = sequences * context;
  return shape;
}

// The time of a pass by definition: step by step, without a closed form.
Wide128 naive_fs(const RooflineCost& cost, const ForwardShape& s, std::uint64_t steps) {
  const RooflineCoefficients& c = cost.coefficients();
  const auto both = [&](Wide128 computing, Wide128 reading) {
    return std::max(computing, reading) + (std::min(computing, reading) * c.serial_x2_32 >> 32);
  };
  Wide128 total = 0;
  for (std::uint64_t j = 1; j <= steps; ++j) {
    const Tokens fresh = j == 1 ? s.prefill_tokens : 0;
    const std::uint64_t yielding = s.decode_sequences + (j == 1 ? std::uint64_t{s.prefill_sequences} : 0);
    const Tokens tokens = fresh + s.decode_sequences;
    const Wide128 context = Wide128{s.decode_context_tokens} + Wide128{j} * s.decode_sequences;
    total += c.step_fs;
    if (tokens != 0) {
      const Wide128 experts = Wide128{c.expert_fs} * cost.distinct_experts_x2_32(tokens) >> 32;
      total += std::max(Wide128{c.linear_token_fs} * tokens + Wide128{c.head_sequence_fs} * yielding,
                        c.weights_fs + experts) +
               Wide128{c.reduce_token_fs} * tokens;
    }
    total += context * c.decode_token_fs + Wide128{c.decode_sequence_fs} * s.decode_sequences;
    total += c.decode_window_token_fs * std::min<Wide128>(context, Wide128{s.decode_sequences} * c.window_tokens);
    if (j != 1) continue;
    total += both(Wide128{s.prefill_pairs} * c.prefill_pair_fs,
                  (Wide128{s.prefill_context_tokens} + fresh) * c.prefill_read_fs);
    total += Wide128{s.prefill_context_tokens} * c.prefill_context_fs;
    total += Wide128{s.prefill_sequences} * c.decode_sequence_fs;
    total += Wide128{s.copied_states} * 2 * c.decode_sequence_fs;  // read and written
    if (c.window_tokens == 0) continue;
    total +=
        both(std::min<Wide128>(s.prefill_pairs, Wide128{fresh} * c.window_tokens) * c.prefill_window_pair_fs,
             (std::min<Wide128>(s.prefill_context_tokens, Wide128{s.prefill_sequences} * c.window_tokens) + fresh) *
                 c.prefill_window_read_fs);
  }
  return total;
}

std::uint64_t below(std::mt19937_64& random, std::uint64_t limit) { return random() % limit; }

ForwardShape random_shape(std::mt19937_64& random) {
  ForwardShape shape;
  if (below(random, 3) != 0) shape = prefill(below(random, 1 << below(random, 18)), below(random, 100000));
  shape.prefill_sequences = static_cast<std::uint32_t>(below(random, 5));
  shape.copied_states = static_cast<std::uint32_t>(below(random, 1 + shape.prefill_sequences));
  if (below(random, 3) != 0) {
    shape.decode_sequences = static_cast<std::uint32_t>(below(random, 300));
    shape.decode_context_tokens = shape.decode_sequences * below(random, 1 << below(random, 18));
  }
  return shape;
}

const std::vector<const char*> kModels{"llama-3.1-8b", "qwen3-coder-30b-a3b", "gpt-oss-120b", "deepseek-v3", "tiny"};

TEST(Roofline, ClosedFormEqualsTheLoop) {
  std::mt19937_64 random(1);
  for (const char* model : kModels) {
    for (const char* hardware : {"h200-sxm", "cpu-host"}) {
      const RooflineCost cost = cost_of(model, hardware, 1);
      for (int i = 0; i < 100; ++i) {
        const ForwardShape shape = random_shape(random);
        const std::uint64_t steps = 1 + below(random, 300);
        const Wide128 fs = naive_fs(cost, shape, steps);
        EXPECT_EQ(cost.forward_ns(shape, steps), static_cast<TimeNs>((fs + 999'999) / 1'000'000)) << model << " " << i;
      }
    }
  }
}

// `serial` is the part of the shorter of computing and reading that is not hidden. With 1, both times are added; with
// 0, only the longer time counts.
TEST(Roofline, AttentionHidesWhatItIsSaidTo) {
  HardwareSpec hw = hardware_preset("h200-sxm");
  const ModelGeometry model = model_preset("llama-3.1-8b");
  std::vector<TimeNs> times;
  for (const double serial : {0.0, 0.5, 1.0}) {
    hw.attention_serial = serial;
    times.push_back(RooflineCost(model, hw, 1).forward_ns(prefill(512, 8192), 1));
  }
  EXPECT_GT(times[1], times[0]);
  EXPECT_NEAR(static_cast<double>(times[1] - times[0]), static_cast<double>(times[2] - times[1]), 2);
  hw.attention_serial = 0;
  const RooflineCoefficients c = coefficients_of(model, hw, 1);
  const ForwardShape shape = prefill(512, 8192);
  const Wide128 shorter =
      std::min(Wide128{shape.prefill_pairs} * c.prefill_pair_fs, Wide128{8192 + 512} * c.prefill_read_fs);
  EXPECT_NEAR(static_cast<double>(times[2] - times[0]), static_cast<double>(shorter) / 1e6, 2);
}

// So many tokens reach half of the share that many tokens reach; without the figure, every number reaches it.
TEST(Roofline, AttentionOfFewTokensReachesASmallerShare) {
  HardwareSpec hw = hardware_preset("h100-sxm");
  const ModelGeometry model = model_preset("llama-3.1-8b");
  const auto attention_of = [&](std::uint64_t tokens) {
    const ForwardShape shape = prefill(tokens, 65536);
    ForwardShape without = shape;
    without.prefill_pairs = without.prefill_context_tokens = 0;
    const RooflineCost cost(model, hw, 1);
    return static_cast<double>(cost.forward_ns(shape, 1) - cost.forward_ns(without, 1));
  };
  const double plain = attention_of(1024), few = attention_of(512);
  EXPECT_NEAR(few / plain, 0.5, 0.01);
  hw.attention_query_tokens = 1024;
  EXPECT_NEAR(attention_of(1024) / plain, 2, 0.01);
  EXPECT_NEAR(attention_of(512) / few, 3, 0.01);
}

TEST(Roofline, TimeGrowsWithEveryStepAndEveryField) {
  std::mt19937_64 random(2);
  for (const char* model : kModels) {
    const RooflineCost cost = cost_of(model, "b200-sxm", 8);
    for (int i = 0; i < 200; ++i) {
      const ForwardShape shape = random_shape(random);
      const std::uint64_t steps = 1 + below(random, 1000);
      const TimeNs time = cost.forward_ns(shape, steps);
      EXPECT_GT(time, 0);
      EXPECT_GT(cost.forward_ns(shape, steps + 1), time);
      const std::uint64_t more = 1 + below(random, 5000);
      const auto grown = [&](auto ForwardShape::*field) {
        ForwardShape larger = shape;
        larger.*field = static_cast<std::remove_reference_t<decltype(larger.*field)>>(larger.*field + more);
        return cost.forward_ns(larger, steps);
      };
      EXPECT_GE(grown(&ForwardShape::prefill_tokens), time);
      EXPECT_GE(grown(&ForwardShape::prefill_pairs), time);
      EXPECT_GE(grown(&ForwardShape::prefill_context_tokens), time);
      EXPECT_GE(grown(&ForwardShape::prefill_sequences), time);
      EXPECT_GE(grown(&ForwardShape::decode_sequences), time);
      EXPECT_GE(grown(&ForwardShape::decode_context_tokens), time);
    }
  }
}

TEST(Roofline, WildShapesStayAtTheLargestTime) {
  const RooflineCost cost = cost_of("gpt-oss-120b", "cpu-host");
  constexpr auto kAll = std::numeric_limits<std::uint64_t>::max();
  const ForwardShape shape{kAll, kAll, kAll, 0xFFFFFFFFU, 0xFFFFFFFFU, kAll};
  EXPECT_EQ(cost.forward_ns(shape, kAll), std::numeric_limits<TimeNs>::max());
  EXPECT_EQ(cost.forward_ns(shape, 1), std::numeric_limits<TimeNs>::max());
  EXPECT_EQ(cost.forward_ns({}, kAll), std::numeric_limits<TimeNs>::max());
  EXPECT_EQ(cost.forward_ns({}, 0), cost.forward_ns({}, 1));
}

TEST(Roofline, KnownFiguresByHand) {
  // Llama-3.1-8B on H200. Decoding one sequence reads 15.0 GB of weights (all but the input embedding) at 0.87 * 4.8
  // TB/s, which takes 3.594 ms. A prefill of 8192 tokens is 2 * 6.98e9 * 8192 FLOPs at 0.7 * 989.4 TFLOP/s.
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  EXPECT_NEAR(static_cast<double>(cost.forward_ns(decode(1, 0), 1)), 3.594e6 + 0.2e6, 1e4);
  const double linear = 2 * 6.98e9 * 8192 / (0.7 * 989.4e12), pairs = 8192.0 * 8193 / 2;
  const double attention = pairs * 4 * 32 * 128 * 32 / (0.5 * 989.4e12);
  EXPECT_NEAR(static_cast<double>(cost.forward_ns(prefill(8192), 1)), (linear + attention) * 1e9 + 0.2e6, 3e5);
  // A cached prefix of 8192 tokens saves most of a prefill of 8192 + 1024.
  EXPECT_LT(cost.forward_ns(prefill(1024, 8192), 1) * 5, cost.forward_ns(prefill(9216), 1));
}

TEST(Roofline, MoreTokensTouchMoreExpertsUpToAll) {
  const RooflineCost cost = cost_of("gpt-oss-120b", "h200-sxm");
  EXPECT_EQ(cost.distinct_experts_x2_32(0), 0U);
  EXPECT_EQ(cost.distinct_experts_x2_32(1), 4ULL << 32);
  for (Tokens t = 0; t < 400; ++t) {
    EXPECT_LE(cost.distinct_experts_x2_32(t), cost.distinct_experts_x2_32(t + 1));
    EXPECT_LE(cost.distinct_experts_x2_32(t), std::min<Tokens>(128, 4 * t) << 32);
  }
  EXPECT_EQ(cost.distinct_experts_x2_32(1000), 128ULL << 32);
  EXPECT_EQ(cost_of("tiny", "cpu-host").distinct_experts_x2_32(5), 0U);
}

HardwareSpec twice_as_fast(HardwareSpec spec) {
  for (double HardwareSpec::*rate :
       {&HardwareSpec::memory_bandwidth, &HardwareSpec::peak_bf16, &HardwareSpec::peak_fp8, &HardwareSpec::peak_fp4,
        &HardwareSpec::peer_bandwidth, &HardwareSpec::host_to_device, &HardwareSpec::device_to_host,
        &HardwareSpec::inline_rate, &HardwareSpec::kernel_block_rate, &HardwareSpec::kernel_read,
        &HardwareSpec::kernel_write, &HardwareSpec::scatter_rate}) {
    spec.*rate *= 2;
  }
  return spec;
}

TEST(Roofline, TwiceTheRatesHalveTheCoefficients) {
  for (const char* model : kModels) {
    const HardwareSpec slow = hardware_preset("h100-sxm");
    const RooflineCoefficients a = coefficients_of(model_preset(model), slow, 2);
    const RooflineCoefficients b = coefficients_of(model_preset(model), twice_as_fast(slow), 2);
    const auto halved = [&](std::uint64_t RooflineCoefficients::*field) {
      EXPECT_NEAR(static_cast<double>(a.*field) / 2, static_cast<double>(b.*field), 1) << model;
    };
    for (const auto field :
         {&RooflineCoefficients::linear_token_fs, &RooflineCoefficients::head_sequence_fs,
          &RooflineCoefficients::weights_fs, &RooflineCoefficients::expert_fs, &RooflineCoefficients::prefill_pair_fs,
          &RooflineCoefficients::prefill_read_fs, &RooflineCoefficients::prefill_window_pair_fs,
          &RooflineCoefficients::prefill_window_read_fs, &RooflineCoefficients::prefill_context_fs,
          &RooflineCoefficients::decode_token_fs, &RooflineCoefficients::decode_window_token_fs,
          &RooflineCoefficients::reduce_token_fs}) {
      halved(field);
    }
    EXPECT_EQ(a.step_fs, b.step_fs);  // overheads stay the same
    EXPECT_EQ(2 * a.moves.host_to_device.link_rate, b.moves.host_to_device.link_rate);
    EXPECT_EQ(2 * a.moves.device_to_host.kernel_rate, b.moves.device_to_host.kernel_rate);
  }
}

TEST(Roofline, RanksShareTheWork) {
  const ForwardShape shape = prefill(4096, 4096);
  const TimeNs one = cost_of("llama-3.1-8b", "h100-sxm", 1).forward_ns(shape, 1);
  const TimeNs eight = cost_of("llama-3.1-8b", "h100-sxm", 8).forward_ns(shape, 1);
  EXPECT_LT(eight, one);
  EXPECT_GT(eight * 8, one);  // the all-reduces and the overhead of a pass do not shrink
  // With more ranks than KV heads, each rank still reads one head.
  const auto c8 = coefficients_of(model_preset("llama-3.1-8b"), hardware_preset("h100-sxm"), 8);
  const auto c16 = coefficients_of(model_preset("llama-3.1-8b"), hardware_preset("h100-sxm"), 16);
  EXPECT_EQ(c8.decode_token_fs, c16.decode_token_fs);
  EXPECT_THROW(coefficients_of(model_preset("llama-3.1-8b"), hardware_preset("h100-sxm"), 3), ModelError);
}

Plan plan_of(TransferPath path, Direction direction, std::uint64_t descriptors, Bytes piece) {
  Plan plan;
  plan.path = path;
  plan.direction = direction;
  plan.descriptors = descriptors;
  plan.descriptor_bytes = piece;
  plan.bytes = descriptors * piece;
  return plan;
}

constexpr auto kUp = Direction::host_to_device;
constexpr auto kDown = Direction::device_to_host;

TEST(Roofline, TransfersFollowTheCopyEngine) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  const TransferCost small = cost.transfer(plan_of(TransferPath::copy_engine, kUp, 1000, 8192));
  EXPECT_EQ(small.bytes, 8'192'000U);
  EXPECT_EQ(small.latency_ns, 3000 + 1000 * 100);
  EXPECT_EQ(small.bytes_per_second, 6'500'000'000U);  // the inline rate of the driver
  const TransferCost down = cost.transfer(plan_of(TransferPath::copy_engine, kDown, 1000, 8192));
  EXPECT_EQ(down.bytes_per_second, 8192 * 2'000'000ULL);  // 0.5 us per descriptor
  const TransferCost middle = cost.transfer(plan_of(TransferPath::copy_engine, kUp, 10, 30000));
  EXPECT_EQ(middle.bytes_per_second, 50'000'000'000U);  // 0.6 us per descriptor
  EXPECT_EQ(cost.transfer(plan_of(TransferPath::copy_engine, kUp, 10, 1 << 20)).bytes_per_second, 0U);
}

TEST(Roofline, HandOversFollowTheNicsWrites) {
  RooflineCoefficients c;
  c.step_fs = 1'000'000;
  c.moves.storage[Tier::remote].write.object_ns = 2500;
  c.moves.storage[Tier::remote].write.object_fs = 700'000'000;  // 0.7 us
  c.moves.device_to_host.call_ns = 1000;
  c.moves.host_to_device.call_ns = 2000;
  HandOverWork work;
  work.pages = 10;
  work.bytes = 64'000'000;
  work.writes = 1000;
  const TransferCost direct = RooflineCost(c).hand_over(work);
  EXPECT_EQ(direct.latency_ns, 2500);
  EXPECT_EQ(direct.bytes, work.bytes);
  EXPECT_EQ(direct.bytes_per_second, 64'000'000'000'000U / 700) << "0.7 ms for a thousand writes";
  work.staged = true;
  EXPECT_EQ(RooflineCost(c).hand_over(work).latency_ns, 2500 + 1000 + 2000);
  c.moves.storage[Tier::remote].write.object_fs = 0;
  EXPECT_EQ(RooflineCost(c).hand_over(work).bytes_per_second, 0U) << "only the links limit";
}

TEST(Roofline, BroadcastsCrossEachLinkOnce) {
  // H100: 450 GB/s, 8 us. A page of DeepSeek's latent has 64 * 61 * 1,152 = 4,497,408 bytes, which take 9,994.24 ns.
  EXPECT_EQ(RooflineCost(model_preset("deepseek-v3"), hardware_preset("h100-sxm"), 8).broadcast_ns(4'497'408),
            8'000 + 9'995);
  // With data parallelism of attention, each group copies its own pages, and a group of one rank has nothing to copy.
  EXPECT_EQ(RooflineCost(model_preset("deepseek-v3"), hardware_preset("h100-sxm"), 8, 4).broadcast_ns(4'497'408),
            8'000 + 9'995);
  EXPECT_EQ(RooflineCost(model_preset("deepseek-v3"), hardware_preset("h100-sxm"), 8, 8).broadcast_ns(4'497'408), 0);
  EXPECT_EQ(RooflineCost(model_preset("deepseek-v3"), hardware_preset("h100-sxm"), 1).broadcast_ns(4'497'408), 0);
}

TEST(Roofline, TransfersFollowKernelAndStaging) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  const TransferCost kernel = cost.transfer(plan_of(TransferPath::kernel, kUp, 100000, 512));
  EXPECT_EQ(kernel.latency_ns, 3500);
  EXPECT_EQ(kernel.bytes_per_second, 50'000'000'000U);
  const TransferCost staged = cost.transfer(plan_of(TransferPath::staged, kUp, 8, 2 << 20));
  const TimeNs last_chunk = 41944;  // 8 MiB at 200 GB/s, rounded up
  EXPECT_EQ(staged.latency_ns, 3000 + 8 * 100 + 3500 + last_chunk);
  EXPECT_EQ(staged.bytes_per_second, 0U);
}

TEST(Roofline, TransfersFollowBoxesAndRing) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  Plan boxes = plan_of(TransferPath::boxes, kUp, 100, 64 * 1024);
  boxes.piece_bytes = 1024;
  EXPECT_EQ(cost.transfer(boxes).latency_ns, 3000 + 100 * 100);
  EXPECT_EQ(cost.transfer(boxes).bytes_per_second, 1024 * 20'000'000ULL);  // 0.05 us per row
  boxes.piece_bytes = 8192;
  EXPECT_EQ(cost.transfer(boxes).bytes_per_second, 0U);
  boxes = plan_of(TransferPath::boxes, kUp, 100, 16 * 1024);  // 0.6 us per box, and no inline rate
  boxes.piece_bytes = 8192;
  EXPECT_EQ(cost.transfer(boxes).bytes_per_second, 16384 * 10'000'000ULL / 6);
  const TransferCost ring = cost.transfer(plan_of(TransferPath::ring, kUp, 100000, 512));
  EXPECT_EQ(ring.latency_ns, 3500);
  EXPECT_EQ(ring.bytes_per_second, 50'000'000'000U);  // without ring_rate, the rate of a copy kernel
  HardwareSpec measured = hardware_preset("h200-sxm");
  measured.ring_rate = 51e9;
  const RooflineCost faster(model_preset("llama-3.1-8b"), measured, 1);
  EXPECT_EQ(faster.transfer(plan_of(TransferPath::ring, kUp, 100000, 512)).bytes_per_second, 51'000'000'000U);
  EXPECT_EQ(faster.transfer(plan_of(TransferPath::kernel, kUp, 100000, 512)).bytes_per_second, 50'000'000'000U);
}

// A quarter of the window moves in the time of a call, 3 us.
TEST(Roofline, ATightWindowHoldsTheCopyEngineBack) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  for (const auto path : {TransferPath::copy_engine, TransferPath::boxes, TransferPath::staged}) {
    Plan plan = plan_of(path, kUp, 100, 1 << 20);
    plan.piece_bytes = 1 << 20;
    plan.window = 8 << 20;
    EXPECT_EQ(cost.transfer(plan).bytes_per_second, 0U);
    plan.window = 60'000;
    EXPECT_EQ(cost.transfer(plan).bytes_per_second, 5'000'000'000U);
  }
}

TimeNs alone_ns(const RooflineCost& cost, const Plan& plan) {
  const TransferCost t = cost.transfer(plan);
  const auto& c =
      plan.direction == kUp ? cost.coefficients().moves.host_to_device : cost.coefficients().moves.device_to_host;
  const std::uint64_t rate = t.bytes_per_second == 0 ? c.link_rate : std::min(t.bytes_per_second, c.link_rate);
  return t.latency_ns + static_cast<TimeNs>(Wide128{t.bytes} * 1'000'000'000U / rate);
}

StorageWork storage_work(StorageVerb verb, Tier tier, Pages pages, std::uint32_t objects) {
  StorageWork work;
  work.verb = verb;
  work.tier = tier;
  work.pages = pages;
  work.page_bytes = 8'388'608;  // 64 tokens of Llama-3.1-8B
  work.objects = objects;
  return work;
}

// Four drives of 13.5 and 6.6 GB/s, 2.5 M and 0.25 M IOPS, 75 and 12 us, depth 128; four NICs of 46.6 GB/s.
TEST(Roofline, StorageByHand) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  const auto get = [&](Tier tier, Pages pages, std::uint32_t objects) {
    return cost.storage(storage_work(StorageVerb::get, tier, pages, objects));
  };
  // Whole pages: the sequential bandwidth is the limit.
  const TransferCost whole = get(Tier::disk, 128, 1);
  EXPECT_EQ(whole.latency_ns, 75'000);
  EXPECT_EQ(whole.bytes, 128U * 8'388'608);
  EXPECT_EQ(whole.bytes_per_second, 54'000'000'000U);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::set, Tier::disk, 128, 1)).latency_ns, 12'000);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::set, Tier::disk, 128, 1)).bytes_per_second, 26'400'000'000U);
  // A page in 2,048 objects of 4 KiB: 128 pages need 512 rounds of 75 us. IOPS (26.2 ms) and bandwidth need less time.
  const TransferCost small = get(Tier::disk, 128, 2'048);
  EXPECT_NEAR(static_cast<double>(small.bytes) / static_cast<double>(small.bytes_per_second), 511 * 75e-6, 1e-9);
  // For writes, IOPS are the limit: 262,144 objects at a million per second.
  const TransferCost write = cost.storage(storage_work(StorageVerb::set, Tier::disk, 128, 2'048));
  EXPECT_NEAR(static_cast<double>(write.bytes) / static_cast<double>(write.bytes_per_second), 0.262144, 1e-8);
  // Remote: a latency of 100 us for the pool and 2.2 us on the wire; 0.7 us per object and NIC.
  EXPECT_EQ(get(Tier::remote, 1, 1).latency_ns, 102'200);
  EXPECT_EQ(get(Tier::remote, 1, 1).bytes_per_second, 186'400'000'000U);
  EXPECT_NEAR(static_cast<double>(get(Tier::remote, 1, 2'048).bytes_per_second), 4'096 / 0.175e-6, 1);
}

TEST(Roofline, AFileAPageIsReadOneAfterTheOtherByEachRank) {
  HardwareSpec hardware = hardware_preset("h100-sxm");
  hardware.file_a_page = true;
  hardware.file_read_overhead = 60e-6;
  hardware.file_read_bandwidth = 1.5e9;
  const RooflineCost cost(model_preset("llama-3.1-8b"), hardware, 1);
  StorageWork work = storage_work(StorageVerb::get, Tier::disk, 100, 64);
  // Each of 100 pages takes 60 us plus the time of its bytes at 1.5 GB/s; the number of objects does not matter.
  const auto seconds = [&] {
    const TransferCost c = cost.storage(work);
    return static_cast<double>(c.latency_ns) * 1e-9 +
           static_cast<double>(c.bytes) / static_cast<double>(c.bytes_per_second);
  };
  const double each = 60e-6 + static_cast<double>(work.page_bytes) / 1.5e9;
  EXPECT_NEAR(seconds(), 100 * each, 1e-6 * 100 * each);
  work.ranks = 2;  // each rank reads at its own rate
  EXPECT_NEAR(seconds(), 100 * each, 1e-6 * 100 * each);
  work.ranks = 64;  // now the drives are the limit
  EXPECT_NEAR(static_cast<double>(cost.storage(work).bytes_per_second),
              hardware.drive_read_bandwidth * hardware.drive_count, 1);
}

TEST(Roofline, StorageOfRanksAndPastHostMemory) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm", 2);
  StorageWork work = storage_work(StorageVerb::get, Tier::remote, 4, 1);
  work.ranks = 2;
  EXPECT_EQ(cost.storage(work).bytes, 8U * 8'388'608);
  work.memory = Tier::device;
  EXPECT_EQ(cost.storage(work).bytes_per_second, 2 * 46'600'000'000U);
  work.objects = 2'048;  // the submitters of a rank take 1.25 us per object
  EXPECT_NEAR(static_cast<double>(cost.storage(work).bytes_per_second), 2 * 4'096 / 1.25e-6, 1);
}

TEST(Roofline, StorageThatMovesNothing) {
  const RooflineCost cost = cost_of("llama-3.1-8b", "h200-sxm");
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::look_up, Tier::disk, 500, 64)).latency_ns, 20'000);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::look_up, Tier::remote, 500, 64)).latency_ns, 100'000);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::remove, Tier::disk, 500, 64)).latency_ns, 12'000);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::get, Tier::disk, 0, 64)).bytes, 0U);
  const TransferCost wild = cost.storage({.verb = StorageVerb::get,
                                          .tier = Tier::disk,
                                          .pages = ~Pages{0},
                                          .page_bytes = ~Bytes{0},
                                          .objects = ~0U,
                                          .ranks = ~0U});
  EXPECT_EQ(wild.bytes, ~Bytes{0});
  EXPECT_GT(wild.bytes_per_second, 0U);
}

// 2 MiB per page at 20 GB/s take 104.9 us. The metadata servers open one file per 50 us. With small pages, the metadata
// servers are the limit.
TEST(Roofline, ASharedFileSystemIsBoundByItsBandwidthOrItsMetadata) {
  HardwareSpec hardware = hardware_preset("h100-sxm");
  hardware.shared_fs_read_bandwidth = 0;
  hardware.shared_fs_write_bandwidth = 0;
  EXPECT_EQ(RooflineCost(model_preset("tiny"), hardware, 1).coefficients().moves.storage[Tier::shared_fs],
            StorageTierCoefficients{});
  hardware.shared_fs_read_bandwidth = 20e9;
  hardware.shared_fs_write_bandwidth = 10e9;
  hardware.shared_fs_latency = 200e-6;
  hardware.shared_fs_file = 50e-6;
  const RooflineCost cost(model_preset("tiny"), hardware, 1);
  StorageWork work = storage_work(StorageVerb::get, Tier::shared_fs, 64, 1);
  work.page_bytes = 2 << 20;
  EXPECT_EQ(cost.storage(work).latency_ns, 200'000);
  EXPECT_EQ(cost.storage(work).bytes_per_second, 20'000'000'000U);
  work.page_bytes = 64 << 10;
  EXPECT_NEAR(static_cast<double>(cost.storage(work).bytes_per_second), 65'536 / 50e-6, 1);
  work.objects = 2;
  EXPECT_NEAR(static_cast<double>(cost.storage(work).bytes_per_second), 65'536 / 100e-6, 1);
  work.verb = StorageVerb::set;
  work.objects = 1;
  work.page_bytes = 2 << 20;
  EXPECT_EQ(cost.storage(work).bytes_per_second, 10'000'000'000U);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::look_up, Tier::shared_fs, 500, 1)).latency_ns,
            200'000 + 500 * 50'000);
  EXPECT_EQ(cost.storage(storage_work(StorageVerb::remove, Tier::shared_fs, 500, 1)).latency_ns, 200'000);
}

TEST(Roofline, StorageIsMonotone) {
  for (const char* machine : {"h200-sxm", "a100-sxm", "cpu-host"}) {
    const RooflineCost cost = cost_of("llama-3.1-8b", machine);
    const auto seconds = [&](const StorageWork& work) {
      const TransferCost c = cost.storage(work);
      return static_cast<double>(c.latency_ns) * 1e-9 +
             static_cast<double>(c.bytes) / static_cast<double>(c.bytes_per_second);
    };
    std::mt19937_64 random(3);
    for (int i = 0; i < 2'000; ++i) {
      StorageWork work = storage_work(below(random, 2) == 0 ? StorageVerb::get : StorageVerb::set,
                                      below(random, 2) == 0 ? Tier::disk : Tier::remote, 1 + below(random, 1'000),
                                      static_cast<std::uint32_t>(1 + below(random, 5'000)));
      work.memory = below(random, 2) == 0 ? Tier::host : Tier::device;
      StorageWork more = work;
      (below(random, 2) == 0 ? more.pages : more.page_bytes) += 1 + below(random, 100);
      more.objects += static_cast<std::uint32_t>(below(random, 100));
      EXPECT_GE(seconds(more), seconds(work) * (1 - 1e-6)) << machine << " " << i;
    }
  }
}

TEST(Roofline, AFasterMachineIsNeverSlower) {
  std::mt19937_64 random(3);
  const ModelGeometry model = model_preset("gpt-oss-120b");
  const HardwareSpec base = hardware_preset("gb200");
  const RooflineCost slow(model, base, 2);
  for (double HardwareSpec::*rate :
       {&HardwareSpec::memory_bandwidth, &HardwareSpec::peak_bf16, &HardwareSpec::peak_fp8, &HardwareSpec::peak_fp4,
        &HardwareSpec::peer_bandwidth, &HardwareSpec::host_to_device, &HardwareSpec::device_to_host,
        &HardwareSpec::inline_rate, &HardwareSpec::kernel_block_rate, &HardwareSpec::kernel_read,
        &HardwareSpec::kernel_write, &HardwareSpec::scatter_rate}) {
    HardwareSpec faster = base;
    faster.*rate *= 1.7;
    const RooflineCost fast(model, faster, 2);
    for (int i = 0; i < 50; ++i) {
      const ForwardShape shape = random_shape(random);
      EXPECT_LE(fast.forward_ns(shape, 7), slow.forward_ns(shape, 7));
      for (const auto path : {TransferPath::copy_engine, TransferPath::boxes, TransferPath::kernel, TransferPath::ring,
                              TransferPath::staged}) {
        const Plan plan = plan_of(path, i % 2 == 0 ? kUp : kDown, 1 + below(random, 1000), 1 + below(random, 1 << 20));
        EXPECT_LE(alone_ns(fast, plan), alone_ns(slow, plan));
      }
    }
  }
}

TEST(Roofline, RawCoefficientsAreTakenAsGiven) {
  RooflineCoefficients c;
  c.step_fs = 5'000'000;
  c.decode_token_fs = 2'000'000;
  const RooflineCost cost(c);
  EXPECT_EQ(cost.forward_ns(decode(1, 10), 3), 3 * 5 + 2 * (11 + 12 + 13));
  EXPECT_EQ(cost.transfer(plan_of(TransferPath::staged, kUp, 3, 100)).latency_ns, 0);
  EXPECT_EQ(RooflineCost(RooflineCoefficients{}).forward_ns({}, 4), 4);  // at least a nanosecond per step
  const std::string text = to_string(c);
  EXPECT_NE(text.find("decode_token = 2000000 fs/token\n"), std::string::npos);
}

// ---- a draft model -----------------------------------------------------------------------------------------

RooflineCost with_draft(const char* model, const char* draft) {
  RooflineCost cost = cost_of(model, "h100-sxm");
  cost.set_draft(model_preset(draft), hardware_preset("h100-sxm"), 1);
  return cost;
}

ForwardShape speculative(std::uint32_t sequences, Tokens context, std::uint32_t draft, std::uint64_t yield_x1024) {
  ForwardShape shape = decode(sequences, context);
  shape.draft_tokens = draft;
  shape.decode_yield_x1024 = sequences * yield_x1024;
  return shape;
}

TEST(Draft, verifying_costs_less_than_decoding_one_by_one) {
  const RooflineCost alone = cost_of("llama-3.1-8b", "h100-sxm"), drafted = with_draft("llama-3.1-8b", "tiny");
  for (const std::uint32_t sequences : {1U, 16U}) {
    const TimeNs plain = alone.forward_ns(decode(sequences, 4000), 1);
    const TimeNs step = drafted.forward_ns(speculative(sequences, 4000, 4, 3277), 1);
    EXPECT_GT(step, plain) << "five tokens a sequence, and four steps of the draft";
    EXPECT_LT(step, 2 * plain) << "the weights and the context are read once for all of them";
  }
}

TEST(Draft, a_larger_draft_and_more_of_its_tokens_cost_more) {
  const RooflineCost small = with_draft("llama-3.1-70b", "tiny"), large = with_draft("llama-3.1-70b", "llama-3.1-8b");
  EXPECT_GT(large.forward_ns(speculative(1, 4000, 4, 3277), 1), small.forward_ns(speculative(1, 4000, 4, 3277), 1));
  EXPECT_GT(large.forward_ns(speculative(1, 4000, 5, 3277), 1), large.forward_ns(speculative(1, 4000, 4, 3277), 1));
  EXPECT_GT(large.forward_ns(prefill(1000), 1), cost_of("llama-3.1-70b", "h100-sxm").forward_ns(prefill(1000), 1))
      << "the draft's KV of the prompt is computed too";
}

// A draft of 0 tokens that yields 1 token per step equals no draft. Each step has a cost. Contexts grow by the yield.
TEST(Draft, steps_add_up) {
  const RooflineCost alone = cost_of("llama-3.1-8b", "h100-sxm"), drafted = with_draft("llama-3.1-8b", "tiny");
  for (const std::uint64_t steps : {1U, 2U, 7U, 64U}) {
    EXPECT_EQ(alone.forward_ns(speculative(8, 1000, 0, 1024), steps), alone.forward_ns(decode(8, 1000), steps));
    const ForwardShape shape = speculative(8, 1000, 4, 2560);
    EXPECT_GT(drafted.forward_ns(shape, steps + 1), drafted.forward_ns(shape, steps));
  }
  const auto last_step = [&](Tokens context, std::uint64_t steps) {
    const ForwardShape shape = speculative(8, context, 4, 2560);
    return drafted.forward_ns(shape, steps) - drafted.forward_ns(shape, steps - 1);
  };
  EXPECT_NEAR(static_cast<double>(last_step(1000, 11)), static_cast<double>(last_step(1020, 3)), 2.0);
}

}  // namespace
}  // namespace kvtwin
