// Simulates the measurement of a machine with known numbers, with noise and outliers. The fit must find the numbers,
// and its intervals must contain them as often as they claim.
#include "models/calibration.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/presets.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

// Returns the preset with each number that a fit can find multiplied by a random factor.
HardwareSpec true_machine(Splitmix& rng) {
  HardwareSpec hw = hardware_preset("cpu-host");
  const auto vary = [&](double& figure) { figure *= 0.4 + static_cast<double>(rng.below(2000)) / 1000.0; };
  for (double* figure :
       {&hw.host_to_device, &hw.device_to_host, &hw.copy_call, &hw.descriptor_h2d, &hw.descriptor_d2h,
        &hw.kernel_launch, &hw.scatter_rate, &hw.gemm_fraction, &hw.attention_fraction, &hw.memory_fraction,
        &hw.pass_overhead, &hw.drive_read_bandwidth, &hw.drive_write_bandwidth, &hw.drive_read_latency,
        &hw.drive_write_latency, &hw.disk_look_up, &hw.pool_bandwidth, &hw.pool_look_up}) {
    vary(*figure);
  }
  hw.gemm_fraction = std::min(hw.gemm_fraction, 1.0);
  hw.memory_fraction = std::min(hw.memory_fraction, 1.0);
  // Nearly the same speed in both directions. Otherwise the slower direction hides the limit of both together.
  hw.device_to_host = 0.9 * hw.host_to_device;
  // Slower than the link, so that a measurement can show the kernel rates.
  hw.kernel_read = hw.host_to_device * 0.7;
  hw.kernel_write = hw.device_to_host * 0.6;
  hw.kernel_block_rate = std::max(hw.kernel_read, hw.kernel_write);
  hw.scatter_rate = std::min(hw.scatter_rate, 0.8 * std::min(hw.host_to_device, hw.device_to_host));
  hw.bidirectional_factor = 0.7;
  hw.nic_bandwidth = hw.pool_bandwidth;
  return hw;
}

class Paper {
 public:
  Paper(const HardwareSpec& hw, Splitmix& rng, std::uint64_t noise_percent)
      : hw_(hw), rng_(rng), noise_(noise_percent) {
    model_ = found.add_model("tiny", std::string(model_preset_text("tiny")));
  }

  void add(Measurement one) {
    for (int i = 0; i < 5; ++i) {
      one.seconds = 1;
      one.seconds = predicted_seconds(found, one, hw_) * noise();
      found.list.push_back(one);
    }
  }
  void copies() {
    for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
      for (const TransferPath path : {TransferPath::copy_engine, TransferPath::kernel, TransferPath::staged}) {
        for (const Bytes piece : {64U, 256U, 1024U, 16384U, 262144U}) {
          for (const std::uint64_t pieces : {1U, 16U, 256U, 4096U})
            copy(Measured::transfer, direction, path, piece, pieces);
        }
      }
    }
    for (const std::uint64_t pieces : {256U, 1024U, 4096U}) {
      copy(Measured::both, Direction::host_to_device, TransferPath::copy_engine, 262144, pieces);
    }
  }
  void passes() {
    for (const Tokens fresh : {1U, 16U, 64U, 256U, 1024U, 4096U}) {
      for (const Tokens context : {0U, 512U, 4096U, 16384U}) {
        Measurement one;
        one.what = Measured::forward;
        one.model = model_;
        one.shape.prefill_tokens = fresh;
        one.shape.prefill_pairs = fresh * context + fresh * (fresh + 1) / 2;
        one.shape.prefill_context_tokens = context;
        one.shape.prefill_sequences = 1;
        add(one);
        one.shape = {};
        one.shape.decode_sequences = static_cast<std::uint32_t>(std::min<Tokens>(fresh, 64));
        one.shape.decode_context_tokens = context * one.shape.decode_sequences;
        add(one);
      }
    }
  }
  void storage(Tier tier) {
    for (const StorageVerb verb : {StorageVerb::look_up, StorageVerb::get, StorageVerb::set}) {
      for (const Bytes page : {4096U, 65536U, 1048576U}) {
        for (const Pages pages : {1U, 4U, 16U, 64U, 256U}) {
          Measurement one;
          one.what = Measured::storage;
          one.work.verb = verb;
          one.work.tier = tier;
          one.work.pages = pages;
          one.work.page_bytes = page;
          add(one);
        }
      }
    }
  }
  Measurements found;

 private:
  void copy(Measured what, Direction direction, TransferPath path, Bytes piece, std::uint64_t pieces) {
    Measurement one;
    one.what = what;
    one.plan.direction = direction;
    one.plan.path = path;
    one.plan.pages = 1;
    one.plan.bytes = piece * pieces;
    one.plan.piece_bytes = one.plan.descriptor_bytes = piece;
    one.plan.descriptors = pieces;
    add(one);
  }
  // Uniform noise; and one measurement in twenty takes several times as long, as if another program used the machine.
  double noise() {
    const double even =
        1 + (static_cast<double>(rng_.below(2001)) - 1000.0) / 1000.0 * static_cast<double>(noise_) / 100.0;
    return rng_.below(20) == 0 ? even * static_cast<double>(2 + rng_.below(8)) : even;
  }

  const HardwareSpec& hw_;
  Splitmix& rng_;
  std::uint64_t noise_;
  std::size_t model_ = 0;
};

// Recorded passes take 1.5 times as long as passes measured alone. The fit must match the sum of the recorded passes.
TEST(Calibration, TakesTheLevelOfPassesFromServedRuns) {
  Splitmix rng(5);
  const HardwareSpec hw = true_machine(rng);
  Paper paper(hw, rng, 3);
  paper.passes();
  const std::size_t alone = paper.found.list.size();
  for (std::size_t i = 0; i < alone; i += 7) {
    Measurement served = paper.found.list[i];
    served.recorded = true;
    served.seconds = 1.5 * predicted_seconds(paper.found, served, hw);
    paper.found.list.push_back(served);
  }
  CalibrationTerms terms;
  terms.base = "cpu-host";
  const Calibration found = calibrate(paper.found, terms);
  double predicted = 0, measured = 0;
  const HardwareSpec written = parse_hardware(hardware_json(found, paper.found, terms), "fitted");
  for (const Measurement& one : paper.found.list) {
    if (!one.recorded) continue;
    predicted += predicted_seconds(paper.found, one, written);
    measured += one.seconds;
  }
  EXPECT_NEAR(predicted / measured, 1, 0.01);
  for (const CalibratedNumber& number : found.numbers) {
    if (number.low == 0) continue;
    EXPECT_LE(number.low, number.value) << number.key;
    EXPECT_GE(number.high, number.value) << number.key;
  }
}

const std::map<std::string, double HardwareSpec::*>& figures() {
  using H = HardwareSpec;
  static const std::map<std::string, double HardwareSpec::*> kFigures{
      {"host_to_device", &H::host_to_device},
      {"device_to_host", &H::device_to_host},
      {"copy_call", &H::copy_call},
      {"descriptor_h2d", &H::descriptor_h2d},
      {"descriptor_d2h", &H::descriptor_d2h},
      {"kernel_launch", &H::kernel_launch},
      {"kernel_read", &H::kernel_read},
      {"kernel_write", &H::kernel_write},
      {"bidirectional_factor", &H::bidirectional_factor},
      {"pass_overhead", &H::pass_overhead},
      {"gemm_fraction", &H::gemm_fraction},
      {"attention_fraction", &H::attention_fraction},
      {"drive_read_bandwidth", &H::drive_read_bandwidth},
      {"drive_write_bandwidth", &H::drive_write_bandwidth},
      {"drive_read_latency", &H::drive_read_latency},
      {"drive_write_latency", &H::drive_write_latency},
      {"disk_look_up", &H::disk_look_up},
      {"pool_bandwidth", &H::pool_bandwidth},
      {"pool_look_up", &H::pool_look_up},
  };
  return kFigures;
}

CalibrationTerms terms() {
  CalibrationTerms terms;
  terms.base = "cpu-host";
  terms.date = "2026-01-02";
  terms.command = "a test";
  return terms;
}

Measurements measured_on_paper(const HardwareSpec& hw, Splitmix& rng, std::uint64_t noise_percent) {
  Paper paper(hw, rng, noise_percent);
  paper.copies();
  paper.passes();
  paper.storage(Tier::disk);
  paper.storage(Tier::remote);
  return std::move(paper.found);
}

TEST(Calibration, FindsTheFiguresThroughNoiseAndOutliers) {
  std::size_t found = 0, held = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Splitmix rng(seed);
    const HardwareSpec hw = true_machine(rng);
    const Calibration c = calibrate(measured_on_paper(hw, rng, 8), terms());
    for (const CalibratedNumber& number : c.numbers) {
      const auto figure = figures().find(number.key);
      if (figure == figures().end() || number.low == 0) continue;
      // The measurements determine only the product of a fraction and its peak.
      const double peaks = number.key == "memory_fraction"     ? c.hardware.memory_bandwidth / hw.memory_bandwidth
                           : number.key.ends_with("_fraction") ? c.hardware.peak_bf16 / hw.peak_bf16
                                                               : 1;
      const double truth = hw.*figure->second / peaks;
      // Within 8 %, or within the interval of the fit if this is larger.
      const double unsure = (number.high - number.low) / number.value;
      EXPECT_NEAR(number.value / truth, 1, std::max(0.08, unsure)) << number.key;
      EXPECT_LE(number.low, number.value) << number.key;
      EXPECT_GE(number.high, number.value) << number.key;
      ++found;
      held += number.low <= truth && truth <= number.high ? 1 : 0;
    }
    for (const CalibratedGroup& group : c.groups) EXPECT_LT(quantile_of(group.errors, 0.5), 0.06) << group.name;
  }
  EXPECT_GE(found, 6 * figures().size() - 6);  // all numbers, except for a few that the machine hides
  // 95 % if the noise were normal and the model were linear.
  EXPECT_GE(held * 100, found * 85) << held << " of " << found;
}

TEST(Calibration, WhatNothingTellsKeepsTheBase) {
  Splitmix rng(3);
  const HardwareSpec hw = true_machine(rng);
  Paper paper(hw, rng, 5);
  paper.storage(Tier::disk);
  const Calibration c = calibrate(paper.found, terms());
  const HardwareSpec base = hardware_preset("cpu-host");
  EXPECT_EQ(c.hardware.host_to_device, base.host_to_device);
  EXPECT_EQ(c.hardware.gemm_fraction, base.gemm_fraction);
  EXPECT_EQ(c.hardware.pool_bandwidth, base.pool_bandwidth);
  EXPECT_TRUE(std::ranges::find(c.not_measured, "host_to_device") != c.not_measured.end());
  const HardwareSpec file = parse_hardware(hardware_json(c, paper.found, terms()), "file");
  for (const HardwareNumber& number : file.numbers) {
    EXPECT_EQ(number.low > 0, number.source.starts_with("measured:")) << number.key;
  }
}

TEST(Calibration, TheSameMeasurementsMakeTheSameFileInAnyWriting) {
  Splitmix rng(4);
  const HardwareSpec hw = true_machine(rng);
  Measurements all = measured_on_paper(hw, rng, 8);
  all.machine = MeasuredMachine{"a processor", "Linux 6", 2, "host"};
  const Measurements again = parse_measurements(to_jsonl(all), "again");
  EXPECT_EQ(to_jsonl(again), to_jsonl(all));
  EXPECT_EQ(hardware_json(calibrate(again, terms()), again, terms()),
            hardware_json(calibrate(all, terms()), all, terms()));
}

TEST(Calibration, FractionsAboveOneRaiseThePeak) {
  Splitmix rng(5);
  HardwareSpec hw = true_machine(rng);
  hw.peak_bf16 *= 10;
  hw.memory_bandwidth *= 10;
  Paper paper(hw, rng, 5);
  paper.passes();
  const Calibration c = calibrate(paper.found, terms());
  EXPECT_LE(c.hardware.gemm_fraction, 1);
  EXPECT_LE(c.hardware.attention_fraction, 1);
  EXPECT_NEAR(c.hardware.gemm_fraction * c.hardware.peak_bf16 / (hw.gemm_fraction * hw.peak_bf16), 1, 0.08);
  EXPECT_NO_THROW(hardware_json(c, paper.found, terms()));
}

}  // namespace
}  // namespace kvtwin::test
