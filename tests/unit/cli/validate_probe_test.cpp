// kvtwin validate repeats the probes of the calibration. The child that probes is replaced, so nothing is timed.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "lab/run/machine.hpp"
#include "lab/validate/probe.hpp"
#include "lab/validate/validate.hpp"
#include "tests/paths.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

Json json_of_machine(const MeasuredMachine& machine) {
  return {{"cpu", machine.cpu}, {"cores", machine.cores}, {"kernel", machine.kernel}, {"device", machine.device}};
}

class ValidateProbe : public testing::Test {
 protected:
  // A simulated run that says that this machine served it, and a hardware file that says that this machine was
  // measured.
  ValidateProbe() {
    simulate_to(folder_, "run", {"model.name=tiny", "hardware.name=cpu-host", "workload.limit=20"}, false, "events");
    const Json machine = json_of_machine(this_machine(false));
    Json report = Json::parse(text_of(folder_ / "run/report.json"));
    report["real"]["machine"] = machine;
    report["device"] = "host";
    write_text(folder_ / "run/report.json", report.dump());
    Json hardware = Json::parse(text_of(fs::path(kSourceFolder) / "models/presets/hardware/cpu-host.json"));
    hardware["calibration"] = {{"machine", machine},
                               {"base", "cpu-host"},
                               {"probes", {{"copies", {0.010, 0.011, 0.010}}, {"forward", {0.5, 0.5, 0.5}}}}};
    write_text(folder_ / "hardware.json", hardware.dump());
  }

  // Validates with a machine whose probes take these times. Returns the text or the JSON.
  std::string validated(double copies, double forward, bool json) {
    const KvtwinProgram program = [&](const std::vector<std::string>& words) -> ProgramOutput {
      if (words.front() != "calibrate") {
        const Outcome outcome = run(words);
        return {outcome.exit_code, outcome.out, outcome.err};
      }
      probed_ = words;
      Measurements now;
      for (const auto& [of, seconds] : {std::pair{"copies", copies}, std::pair{"forward", forward}}) {
        Measurement one;
        one.what = Measured::probe;
        one.of = of;
        one.seconds = seconds;
        now.list.push_back(one);
      }
      return {0, json_of(check_probes(probed_calibration(words[2]), now)).dump(), ""};
    };
    ValidateArguments arguments;
    arguments.runs = {folder_ / "run"};
    arguments.hardware = folder_ / "hardware.json";
    arguments.json = json;
    return validate(arguments, program, {}).text;
  }

  Folder folder_;
  std::vector<std::string> probed_;
};

TEST_F(ValidateProbe, SaysWhenTheMachineIsNoLongerWhatWasCalibrated) {
  const std::string text = validated(0.0198, 0.5, false);
  EXPECT_EQ(probed_, (std::vector<std::string>{"calibrate", "--probe", folder_ / "hardware.json", "--json"}));
  EXPECT_NE(text.find("this machine has changed since the calibration (copies takes 1.80 times as long as then)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("probe      forward  500 ms; calibrated 500 to 500 ms: as calibrated"), std::string::npos)
      << text;
  const Json json = Json::parse(validated(0.0198, 0.5, true));
  const Json& probes = json.at("probes").at(folder_ / "hardware.json").at("probes");
  EXPECT_EQ(probes.at("copies").at("changed"), true);
  EXPECT_EQ(probes.at("forward").at("changed"), false);
  EXPECT_NE(json.at("notes").dump().find("has changed since the calibration"), std::string::npos);
}

// A faster machine is another one too; a difference of 20 % is none.
TEST_F(ValidateProbe, JudgesByARatioInBothDirections) {
  EXPECT_EQ(validated(0.0131, 0.42, false).find("no longer"), std::string::npos);
  EXPECT_NE(validated(0.010, 0.4, false).find("(forward takes 0.80 times as long as then)"), std::string::npos);
}

TEST_F(ValidateProbe, DoesNotProbeForRunsOfAnotherMachine) {
  Json report = Json::parse(text_of(folder_ / "run/report.json"));
  report["real"]["machine"]["cpu"] = "another processor";
  write_text(folder_ / "run/report.json", report.dump());
  validated(0.01, 0.5, false);
  EXPECT_TRUE(probed_.empty());
}

}  // namespace
}  // namespace kvtwin::test
