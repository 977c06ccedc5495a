// The notes on how far a validation can be trusted, tested with invented cells and hardware files.
#include "lab/validate/validate_notes.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvtwin {
namespace {

const MeasuredMachine kHere{"a processor", "Linux 6", 2, "host"};
constexpr const char* kCalibrated = R"({"calibration": {
  "machine": {"cpu": "a processor", "cores": 2, "kernel": "Linux 5", "device": "host"}, "base": "cpu-host",
  "fits": {"copies": {"error_p90": 0.2}, "forward": {"error_p90": 0.2}}}})";

ValidatedCell cell_of(const std::vector<double>& ttfts, double busy_s, double predicted_busy_s,
                      const std::string& lane = "h2d") {
  const auto run_of = [&](double ttft, double busy) {
    RunFigures run;
    run.figures = {{"ttft_mean_s", ttft}};
    run.lanes = {{lane, {1e9, 10, busy}}};
    run.completed = 1;
    run.machine = kHere;
    return run;
  };
  ValidatedCell cell;
  cell.cell.name = "a cell";
  for (const double ttft : ttfts) cell.cell.measured.push_back(run_of(ttft, busy_s));
  cell.cell.predicted = run_of(1, predicted_busy_s);
  cell.errors = errors_of(cell.cell);
  return cell;
}

std::vector<std::string> notes(const ValidatedCell& cell, const std::string& file = kCalibrated,
                               const std::optional<MeasuredMachine>& here = std::nullopt) {
  return validation_notes({cell}, {{"machine.json", calibration_facts(file)}}, here);
}

void expect_one(const std::vector<std::string>& notes, const std::vector<std::string>& parts) {
  ASSERT_EQ(notes.size(), 1U) << (notes.empty() ? "" : notes[1]);
  for (const std::string& part : parts) EXPECT_NE(notes[0].find(part), std::string::npos) << notes[0];
}

TEST(ValidationNotes, NoneWhereAllIsWell) {
  EXPECT_TRUE(notes(cell_of({1, 1.05, 0.95}, 1, 1)).empty());
  EXPECT_TRUE(notes(cell_of({1}, 1, 1.15)).empty()) << "within what its own measurements were off by";
}

TEST(ValidationNotes, RepeatsThatDisagree) {
  expect_one(notes(cell_of({1, 2, 3}, 1, 1)), {"Repeats disagree", "more than 10 % in 1 of 1", "a cell: 50 %"});
}

TEST(ValidationNotes, FiguresOfNoMachineOrAnother) {
  expect_one(
      notes(cell_of({1}, 1, 1), R"({"numbers": {}})"),
      {"machine.json: its figures were never calibrated on the machine that is validated (a processor, 2 cores"});
  expect_one(notes(cell_of({1}, 1, 1), R"({"calibration": {"machine": {"cpu": "another", "cores": 64}}})"),
             {"was calibrated on another machine (another, 64 cores"});
  expect_one(notes(cell_of({1}, 1, 1, "disk_read")), {"without a measurement of disk, which disk_read goes by"});
  ValidatedCell simulated = cell_of({1}, 1, 1);
  simulated.cell.measured[0].simulated = true;
  EXPECT_TRUE(notes(simulated, R"({"numbers": {}})").empty()) << "a simulation has no machine";
}

TEST(ValidationNotes, ACalibrationThatNoLongerHolds) {
  expect_one(notes(cell_of({1, 1, 1}, 2, 1)),
             {"the calibration no longer holds for h2d: predicted 0.50 of the measured time a byte (a cell), off by 50 "
              "%, and nine in ten of its own measurements came out within 20 %"});
}

TEST(ValidationNotes, OtherWorkOnTheMachine) {
  MeasuredMachine busy = kHere;
  busy.load = MachineLoad{7, 7, 0};
  expect_one(notes(cell_of({1}, 1, 1), kCalibrated, busy), {"the load average was 7.0 on 2 cores"});
}

}  // namespace
}  // namespace kvtwin
