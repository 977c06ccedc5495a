// kvtwin presets --limits: a hardware file with the planner's limits that a matrix.csv tells.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/hardware.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

// Batches are good from 32 KiB on to the device and 16 KiB on to the host, boxes from 8 KiB on; kernels overtake
// batches from 256 pieces on.
std::string table() {
  std::string csv = "# gpu: made up, 1 SMs\n# date: 2026-11-22T01:02Z\npath,direction,chunk_bytes,chunks,r_median\n";
  const auto row = [&](const std::string& path, const std::string& direction, int chunk, int chunks, double rate) {
    csv += path + "," + direction + "," + std::to_string(chunk) + "," + std::to_string(chunks) + "," +
           std::to_string(rate) + "\n";
  };
  for (const std::string direction : {"h2d", "d2h"}) {
    for (const int chunk : {4096, 8192, 16384, 32768}) {
      for (const int chunks : {64, 256}) {
        row("batch", direction, chunk, chunks, chunk >= (direction == "h2d" ? 32768 : 16384) ? 0.95 : 0.2);
        row("boxes", direction, chunk, chunks, chunk >= 8192 ? 0.95 : 0.3);
        row("kernel", direction, chunk, chunks, chunks >= 256 ? 0.9 : 0.1);
      }
    }
  }
  return csv;
}

class Limits : public testing::Test {
 protected:
  Limits() {
    around_.folder = folder_.path();
    write_text(folder_ / "matrix.csv", table());
  }
  void refused(const std::vector<std::string>& arguments, const std::string& sentence) {
    std::vector<std::string> all = {"presets"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run(all, around_);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("kvtwin: ") && outcome.err.ends_with("\n")) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
  }
  void refused_table(const std::string& csv, const std::string& sentence) {
    write_text(folder_ / "bad.csv", csv);
    refused({"--limits", "bad.csv"}, sentence);
  }

  Folder folder_;
  Surroundings around_;
};

TEST_F(Limits, AreThoseOfTheMatrixInAPresetsFile) {
  const Outcome outcome = run({"presets", "--limits", "matrix.csv"}, around_);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const HardwareSpec machine = parse_hardware(outcome.out, "machine.json");
  EXPECT_EQ(machine.copy_engine_min_h2d, 32768);
  EXPECT_EQ(machine.copy_engine_min_d2h, 16384);
  EXPECT_EQ(machine.box_min, 8192);
  EXPECT_EQ(machine.kernel_min_pieces, 256);
  EXPECT_EQ(machine.box_min_busy, 0);  // no matrix tells it
  const Json numbers = outcome.json().at("numbers");
  EXPECT_EQ(numbers.at("box_min").at("source"), "measured: matrix.csv (made up, 1 SMs)");
  EXPECT_EQ(numbers.at("box_min").at("date"), "2026-11-22");
  const HardwareSpec preset = hardware_preset("h200-sxm");
  EXPECT_EQ(machine.numbers.size(), preset.numbers.size() + 4);
  for (const HardwareNumber& number : preset.numbers) {
    EXPECT_EQ(numbers.at(number.key).at("value").dump(), number.value) << number.key;
    EXPECT_EQ(numbers.at(number.key).at("source"), number.source) << number.key;
  }
}

TEST_F(Limits, AreTakenAsAHardwareFile) {
  const Outcome outcome = run({"presets", "--limits", "matrix.csv", "--hardware", "a100-sxm"}, around_);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(parse_hardware(outcome.out, "x").memory_bytes, hardware_preset("a100-sxm").memory_bytes);
  write_text(folder_ / "machine.json", outcome.out);
  write_text(folder_ / "trace.jsonl",
             R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]})");
  write_text(folder_ / "x.toml", "[workload]\ntrace = \"trace.jsonl\"\n[hardware]\nfile = \"machine.json\"\n");
  const Outcome simulated = run({"simulate", "x.toml", "--world", kAnyWorld, "--json"}, around_);
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
}

TEST_F(Limits, WhatTheMatrixDoesNotTellStays) {
  write_text(folder_ / "some.csv",
             "path,direction,chunk_bytes,chunks,r_median\nbatch,h2d,4096,64,0.9\ncopy_loop,d2h,4096,64,1\n");
  const Outcome outcome = run({"presets", "--limits", "some.csv"}, around_);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const HardwareSpec machine = parse_hardware(outcome.out, "machine.json");
  EXPECT_EQ(machine.copy_engine_min_h2d, 4096);
  EXPECT_EQ(machine.copy_engine_min_d2h, 0);
  EXPECT_EQ(machine.box_min, 0);
  EXPECT_EQ(machine.kernel_min_pieces, 0);
}

TEST_F(Limits, BadInputIsOneSentence) {
  const std::string head = "path,direction,chunk_bytes,chunks,r_median\n";
  refused({"--limits", "none.csv"}, "none.csv: can't be read; give the path of a matrix.csv");
  refused({"--limits", "."}, ".: can't be read");
  refused({"--limits", "matrix.csv", "--hardware", "h200-pcie6"}, "did you mean \"h200-sxm\"?");
  refused({"--limits", "matrix.csv", "--json"}, "--json");
  refused({"--hardware", "h200-sxm"}, "--limits");
  refused({"--limits"}, "--limits");
  refused_table("", "bad.csv: is empty; give the path of a matrix.csv");
  refused_table("# gpu: made up\npath,direction,chunk_bytes,chunks\n", "bad.csv:2: no column r_median");
  refused_table("{\"numbers\": {}}\n", "bad.csv:1: no column path; a matrix.csv of gpu_bench has path, direction");
  refused_table(head + "batch,h2d,4096,64\n", "bad.csv:2: 4 fields under 5 columns");
  refused_table(head + "batch,h2d,4096,64,fast\n", "bad.csv:2: `fast` where a number");
  refused_table(head, "bad.csv: tells no limit; it must have rows of the paths batch, boxes or kernel");
  refused_table(head + "copy_loop,h2d,4096,64,1\n", "bad.csv: tells no limit");
  refused_table(head + "batch,h2d,4000000000,64,0.1\nstaged,h2d,4000000000,64,0.9\n", "at most 1 GB");
}

}  // namespace
}  // namespace kvtwin::test
