// kvtwin calibrate of captures and of published tables: what it reads, what it cannot identify, and what it refuses.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

const fs::path kFixtures = fs::path(KVTWIN_SOURCE_DIR) / "tests/fixtures/sglang";

Json fitted(const Folder& folder, std::vector<std::string> more) {
  std::vector<std::string> arguments{"calibrate", "--json", "--out", folder / "out", "--set", "sim.world=events"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run(arguments).json();
}

// SGLang's own client wrote the file, but a stand-in served: the times mean nothing, and the fit has to say so.
TEST(CalibrateCapture, ReadsBenchServingAndSaysWhatItCannotIdentify) {
  const Folder folder;
  const Json file = fitted(folder, {"--from", kFixtures / "bench_random.jsonl", "--base", "h100-pcie5"});
  const Json& capture = file.at("capture");
  EXPECT_EQ(capture.at("format"), "bench_serving");
  EXPECT_EQ(capture.at("requests"), 24);
  EXPECT_EQ(capture.at("held_out_by"), "request");  // one client is one conversation
  EXPECT_EQ(capture.at("kept").at("host_to_device"), "the capture has no hits on the host");
  EXPECT_NE(capture.at("notes").dump().find("the experiment does not describe what served the capture"),
            std::string::npos)
      << capture.at("notes").dump(2);
  for (const char* figure : {"TTFT", "TPOT"}) EXPECT_TRUE(capture.at("errors").contains(figure)) << figure;
  // A number is fitted or kept, never both and never neither.
  for (const auto& [name, why] : capture.at("kept").items()) {
    if (file.at("numbers").contains(name)) {
      EXPECT_FALSE(file.at("numbers").at(name).at("source").get<std::string>().starts_with("fitted")) << name;
    }
  }
  const Json report = run({"simulate", folder / "out/fitted.toml", "--json"}).json();
  EXPECT_EQ(report.at("requests").at("completed"), 24);
}

TEST(CalibrateCapture, ReadsARequestLogWithEndToEndTimes) {
  const Folder folder;
  const Json file =
      fitted(folder, {"--from", kFixtures / "engine_requests.jsonl", "--experiment", kFixtures / "served.toml"});
  const Json& capture = file.at("capture");
  EXPECT_EQ(capture.at("format"), "request log");
  EXPECT_TRUE(capture.at("errors").contains("end to end"));
  EXPECT_FALSE(capture.at("errors").contains("TTFT"));
  EXPECT_NE(capture.at("notes").dump().find("end-to-end time of each request only"), std::string::npos);
}

TEST(CalibrateCapture, FitsTheEnginesOfATable) {
  const Folder folder;
  const Json fit = fitted(folder, {"--published", fs::path(KVTWIN_SOURCE_DIR) / "tests/fidelity/silicon.json",
                                   "--fit-on", "h100_sxm v", "--fit", "serving.step_us", "--rows", "4"});
  EXPECT_EQ(fit.size(), 1U);
  ASSERT_TRUE(fit.contains("vllm"));
  bool held_out = false;
  for (const Json& error : fit.at("vllm").at("errors")) {
    held_out = held_out || error.at("held_out").get<bool>();
    EXPECT_EQ(error.at("held_out").get<bool>(), error.at("group") != "h100_sxm vllm") << error;
  }
  EXPECT_TRUE(held_out);
  EXPECT_NE(text_of(folder / "out/serving-vllm.toml").find("engine = \"vllm\""), std::string::npos);
}

TEST(CalibrateCapture, RefusesBadInputInOneSentence) {
  const Folder folder;
  const std::string bench = kFixtures / "bench_random.jsonl", shared = kFixtures / "bench_shared.jsonl";
  const std::string table = fs::path(KVTWIN_SOURCE_DIR) / "tests/fidelity/silicon.json";
  const auto refused = [&](std::vector<std::string> arguments, const std::string& sentence) {
    arguments.insert(arguments.begin(), {"calibrate", "--out", folder / "refused"});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
  };
  refused({"--from", bench, "--from", bench}, "a capture of a server is fitted alone");
  refused({"--from", bench, "--fit", "gemm_fractoin"}, "did you mean \"gemm_fraction\"?");
  refused({"--from", bench, "--fit", "drive_read_latency"}, "the experiment does not use it");
  refused({"--from", bench, "--set", "hardware.host_link_gbps=10"}, "hides a number that is fitted");
  refused({"--from", bench, "--quick"}, "--from fits what was measured before");
  refused({"--from", shared}, "does not say which prefixes");
  refused({"--from", kFixtures / "engine_requests.jsonl"}, "needs --experiment");
  refused({"--experiment", kFixtures / "served.toml"}, "are of a capture of a server (--from) or of --published");
  refused({"--published", table}, "needs --fit-on");
  refused({"--published", table, "--fit-on", "h100"}, "needs --fit");
  refused({"--published", table, "--fit-on", "h900", "--fit", "serving.step_us"}, "no group whose name begins so");
  refused({"--published", table, "--fit-on", "h100", "--fit", "gemm_fraction"}, "is a figure of one machine");
  EXPECT_EQ(run({"calibrate", "--from", bench}).exit_code, 2);  // without --out
}

}  // namespace
}  // namespace kvtwin::test
