#include "models/calibration.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace kvtwin::test {
namespace {

std::string sentence_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "nothing was wrong";
}

// ---- least squares -------------------------------------------------------------------------------------

FitTask line_of(const std::vector<double>& x, const std::vector<double>& y, std::vector<double> start) {
  FitTask task;
  task.start = std::move(start);
  task.least = std::vector<double>(task.start.size(), 1e-6);
  task.most = std::vector<double>(task.start.size(), 1e6);
  task.measured = y;
  task.predict = [x](std::span<const double> numbers, std::span<double> predicted) {
    for (std::size_t i = 0; i < x.size(); ++i) predicted[i] = numbers[0] + numbers[1] * x[i];
  };
  return task;
}

TEST(FitNumbers, FindsWhatMadeTheMeasurements) {
  const std::vector<double> x{1, 2, 5, 10, 100, 1000};
  std::vector<double> y;
  for (const double at : x) y.push_back(3 + 0.5 * at);
  const Fit fit = fit_numbers(line_of(x, y, {1000, 1000}));
  EXPECT_NEAR(fit.numbers[0].value, 3, 1e-3);
  EXPECT_NEAR(fit.numbers[1].value, 0.5, 1e-3);
  EXPECT_TRUE(fit.numbers[0].informed && fit.numbers[1].informed);
  EXPECT_LT(fit.errors.back(), 1e-3);
}

TEST(FitNumbers, AnOutlierPullsLittle) {
  std::vector<double> x, y;
  for (int i = 1; i <= 20; ++i) {
    x.push_back(i);
    y.push_back((3 + 0.5 * i) * (i % 2 == 0 ? 1.01 : 0.99));
  }
  y[7] *= 30;
  const Fit fit = fit_numbers(line_of(x, y, {1, 1}));
  EXPECT_NEAR(fit.numbers[0].value, 3, 0.2);
  EXPECT_NEAR(fit.numbers[1].value, 0.5, 0.03);
}

TEST(FitNumbers, WhatNothingHangsOnStaysWhereItBegan) {
  FitTask task = line_of({1, 2, 3}, {2, 4, 6}, {1, 1, 7});
  task.predict = [](std::span<const double> numbers, std::span<double> predicted) {
    for (std::size_t i = 0; i < 3; ++i) predicted[i] = numbers[1] * static_cast<double>(i + 1);
  };
  const Fit fit = fit_numbers(task);
  EXPECT_FALSE(fit.numbers[2].informed);
  EXPECT_EQ(fit.numbers[2].value, 7);
  EXPECT_NEAR(fit.numbers[1].value, 2, 1e-3);
}

// The number is too small to be measured, but the fit knows an upper limit: a larger value would have been visible.
TEST(FitNumbers, WhatIsNearlyNothingIsBoundedFromAbove) {
  std::vector<double> x, y;
  for (int i = 1; i <= 20; ++i) {
    x.push_back(i);
    y.push_back(0.5 * i * (i % 2 == 0 ? 1.02 : 0.98));
  }
  const Fit fit = fit_numbers(line_of(x, y, {50, 1}));
  EXPECT_TRUE(fit.numbers[0].informed);
  EXPECT_LT(fit.numbers[0].value, 0.1);
  EXPECT_LT(fit.numbers[0].high, 1);
}

TEST(FitNumbers, NothingMeasuredTellsNothing) {
  const Fit fit = fit_numbers(line_of({}, {}, {4, 5}));
  EXPECT_EQ(fit.numbers[0].value, 4);
  EXPECT_FALSE(fit.numbers[0].informed);
}

// ---- measurements --------------------------------------------------------------------------------------

TEST(Measurements, BadLinesAreNamed) {
  const auto error = [](const std::string& text) {
    return sentence_of([&] { static_cast<void>(parse_measurements(text, "m.jsonl")); });
  };
  const std::string disk = R"("memory":"host","pages":1,"page_bytes":4096,"seconds":)";
  EXPECT_EQ(error("\nno json\n"), "m.jsonl:2: is no JSON object; kvtwin calibrate writes one measurement a line");
  EXPECT_NE(error(R"({"what":"disc"})").find("m.jsonl:1: unknown what \"disc\": did you mean \"disk\"?"),
            std::string::npos);
  EXPECT_EQ(error(R"({"what":"disk","verb":"get",)" + disk + "0}"),
            "m.jsonl:1: \"seconds\" must be a number of seconds above 0 and below 1,000,000");
  EXPECT_NE(error(R"({"what":"disk","verb":"fetch",)" + disk + "1}").find("unknown verb \"fetch\""), std::string::npos);
  EXPECT_EQ(error(R"({"what":"forward","model":"other","seconds":1})"),
            "m.jsonl:1: \"model\" must be the name of a model line above it");
  EXPECT_NE(error(R"({"what":"disk","verb":"get","page_byte":4096,"memory":"host","pages":1,"seconds":1})")
                .find("m.jsonl:1: unknown key \"page_byte\": did you mean \"page_bytes\"?"),
            std::string::npos)
      << "a default in its place would decide";
  EXPECT_EQ(error(R"({"what":"disk","verb":"get","pages":2,)" + disk + "1}"),
            "m.jsonl:1: \"pages\" is given twice; it must be given once");
  EXPECT_EQ(error(""), "m.jsonl: holds no measurement; kvtwin calibrate writes one a line");
}

TEST(Measurements, OfTwoMachinesAreNotMixed) {
  Measurements one, same, other;
  one.machine = MeasuredMachine{"a processor", "Linux 6.1", 2, "host"};
  same.machine = MeasuredMachine{"a processor", "Linux 6.2", 2, "host"};
  other.machine = MeasuredMachine{"a processor", "Linux 6.1", 64, "host"};
  EXPECT_NO_THROW(one.add(same, "same"));
  EXPECT_NE(sentence_of([&] { one.add(other, "b.jsonl"); }).find("b.jsonl: was measured on another machine"),
            std::string::npos);
}

// ---- perftest ------------------------------------------------------------------------------------------

TEST(Perftest, TablesTellANicsFigures) {
  std::string bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";
  // Invented measurements: 20 GiB/s, and at least 0.25 us per message.
  for (const double bytes : {64.0, 1024.0, 65536.0, 1048576.0}) {
    const double rate = std::min(20480.0, bytes / 0.25e-6 / 1048576);
    bandwidth += " " + std::to_string(static_cast<int>(bytes)) + " 5000 1 " + std::to_string(rate) + " 0.1\n";
  }
  const std::string latency =
      " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n 8       1000          1.9  "
      "         9.1          2.00               2.1\n";
  Measurements all = parse_perftest(bandwidth, "bw.txt");
  all.add(parse_perftest(latency, "lat.txt"), "lat.txt");
  ASSERT_EQ(all.list.size(), 5u);
  CalibrationTerms terms;
  terms.base = "h200-sxm";
  const Calibration c = calibrate(all, terms);
  EXPECT_NEAR(c.hardware.nic_bandwidth, 20480.0 * 1048576, 1e8);
  EXPECT_NEAR(c.hardware.nic_object, 0.25e-6, 5e-9);
  EXPECT_NEAR(c.hardware.nic_latency, 2e-6, 1e-7);
}

TEST(Perftest, UcxTablesAreReadByTheirHeads) {
  const std::string head = "| Message size: 1048576 |\n|  Stage | # iterations | 50.0%ile | average | overall |\n";
  const Measurements stream = parse_perftest(
      head + "| | | overhead (usec) | bandwidth (MB/s) |\nFinal: 10000 0.1 50.0 50.0 20000.0 20000.0 20000 20000\n",
      "u");
  ASSERT_EQ(stream.list.size(), 1u);
  EXPECT_TRUE(stream.list[0].stream);
  EXPECT_NEAR(stream.list[0].seconds, 50e-6, 1e-9);
  const Measurements single = parse_perftest(
      head + "| | | latency (usec) | bandwidth (MB/s) |\nFinal: 10000 60.0 61.0 62.0 16000.0 16000.0 1 1\n", "u");
  EXPECT_FALSE(single.list[0].stream);
  EXPECT_NEAR(single.list[0].seconds, 62e-6, 1e-9);
  EXPECT_NE(sentence_of([&] {
              static_cast<void>(parse_perftest(head + "Final: 1 2 3\n", "u.txt"));
            }).find("u.txt:3: before `Final:`"),
            std::string::npos);
  EXPECT_NE(sentence_of([] { static_cast<void>(parse_perftest("#bytes\n", "b.txt")); }).find("b.txt:1: neither"),
            std::string::npos);
  EXPECT_NE(sentence_of([] { static_cast<void>(parse_perftest("hello\n", "b.txt")); }).find("b.txt: holds no row"),
            std::string::npos);
}

// ---- ranges --------------------------------------------------------------------------------------------

TEST(MeasuredRanges, SayWhatASimulationExtrapolates) {
  const WorkRanges measured = measured_ranges(
      R"({"calibration":{"ranges":{"prefill":{"tokens":[16,1024]},"h2d":{"bytes":[1,99],"piece_bytes":[1,99]}}}})",
      "f");
  WorkRanges asked;
  ForwardShape shape;
  shape.prefill_tokens = 512;
  asked.add(shape);
  EXPECT_TRUE(extrapolations(measured, asked, "m").empty());
  shape.prefill_tokens = 4096;
  asked.add(shape);
  StorageWork work;
  work.verb = StorageVerb::get;
  work.pages = 1;
  asked.add(work);
  const std::vector<std::string> notes = extrapolations(measured, asked, "m");
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0],
            "disk_read: nothing of it was measured in the calibration of m; its figures are those of the preset that "
            "began it");
  EXPECT_EQ(notes[1], "prefill: extrapolates the calibration of m: tokens 512 to 4096, measured 16 to 1024");
  EXPECT_TRUE(measured_ranges(R"({"numbers":{}})", "f").empty());
  EXPECT_NE(sentence_of([] {
              static_cast<void>(measured_ranges(R"({"calibration":{"ranges":{"h2d":{"bytes":[9,1]}}}})", "f.json"));
            }).find("f.json: calibration.ranges.h2d.bytes must be"),
            std::string::npos);
}

// ---- the screen ----------------------------------------------------------------------------------------

TEST(CalibrationText, HasEveryPartOfTheCalibration) {
  CalibrationTerms terms;
  terms.base = "cpu-host";
  Calibration calibration;
  calibration.numbers = {{"host_to_device", "copies", 12.5e9, 12e9, 13e9}, {"copy_call", "copies", 3e-6, 0, 0}};
  calibration.groups = {{"copies", 40, 9, {0.01, 0.02, 0.03}, 0, 1}, {"forward", 7, 7, {0.1}, 0, 1.25}};
  calibration.interference = {{"h2d", "d2h", 1.5, 4}};
  calibration.not_measured = {"disk_read", "nic"};
  calibration.probes = {{"copies", {0.002, 0.001, 0.003}}};
  calibration.notes = {"the machine changed"};
  const std::string text = calibration_text(calibration, terms);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  }
  ASSERT_EQ(lines.size(), 10U) << text;
  const auto begins = [](const std::string& line, const std::string& with) { return line.starts_with(with); };
  EXPECT_EQ(lines[0], "number                        value          low         high unit         cpu-host");
  EXPECT_TRUE(begins(lines[1], "host_to_device                 12.5           12           13 GB/s    ")) << lines[1];
  EXPECT_TRUE(begins(lines[2], "copy_call                         3                   follows us       ")) << lines[2];
  EXPECT_EQ(lines[3], "copies         40 measurements,     9 distinct; off by 2.0 % (median), 2.8 % (p90)");
  EXPECT_EQ(lines[4], "forward         7 measurements,     7 distinct; off by 10.0 % (median), 10.0 % (p90)");
  EXPECT_EQ(lines[5], "forward    recorded passes took 1.25 times as long in all, and all are scaled by that");
  EXPECT_EQ(lines[6], "h2d beside d2h takes 1.50 times as long (not in the model)");
  EXPECT_EQ(lines[7], "not measured, as of cpu-host: disk_read nic");
  EXPECT_EQ(lines[8], "probe      copies: 3 times, 1 to 3 ms");
  EXPECT_EQ(lines[9], "note       the machine changed");
}

}  // namespace
}  // namespace kvtwin::test
