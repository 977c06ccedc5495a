// kvtwin calibrate of captures and of published tables: what it reads, what it cannot identify, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lab/calibrate/simulated_fit.hpp"
#include "tests/paths.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

const fs::path kFixtures = fs::path(kSourceFolder) / "tests/fixtures/sglang";

Json fitted(const Folder& folder, std::vector<std::string> more) {
  std::vector<std::string> arguments{"calibrate", "--json", "--out", folder / "out", "--set", "sim.world=events"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run(arguments).json();
}

// SGLang's own client wrote the file, but a stand-in served: the times mean nothing, and the fit has to say so.
TEST(CalibrateCapture, ReadsBenchServingAndSaysWhatItCannotIdentify) {
  const Folder folder;
  const Json file = fitted(folder, {"--from", kFixtures / "bench_random.jsonl", "--base", "h100-sxm"});
  const Json& capture = file.at("capture");
  EXPECT_EQ(capture.at("format"), "bench_serving");
  EXPECT_EQ(capture.at("requests"), 24);
  EXPECT_EQ(capture.at("held_out_by"), "request");  // one client is one conversation
  EXPECT_EQ(capture.at("kept").at("host_to_device"), "the capture has no hits on the host");
  EXPECT_NE(capture.at("notes").dump().find("the experiment does not give the times of the capture"), std::string::npos)
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

// The line of bench_random.jsonl. Its request rate is Infinity, which is no JSON.
Json bench_line() {
  std::string text = text_of(kFixtures / "bench_random.jsonl");
  const std::string rate = "Infinity";
  return Json::parse(text.replace(text.find(rate), rate.size(), "null"));
}

// A server with a step of 3 ms, simulated, answers the requests of a file of bench_serving: the fit finds the step.
TEST(CalibrateCapture, FindsTheTimesOfTheServerInBenchServing) {
  const Folder folder;
  const std::vector<std::string> fit{"--base", "h100-sxm",       "--set", "serving.engine=sglang",
                                     "--fit",  "serving.step_us"};
  std::vector<std::string> first{"--from", kFixtures / "bench_random.jsonl"};
  first.insert(first.end(), fit.begin(), fit.end());
  fitted(folder, first);
  run({"simulate", folder / "out/fitted.toml", "--set", "serving.step_us=3000", "--out", folder / "truth", "--json"})
      .json();
  Json line = bench_line();
  std::istringstream rows(text_of(folder / "truth/requests.csv"));
  const auto next = [&rows] {
    std::vector<std::string> cells;
    std::string text, cell;
    std::getline(rows, text);
    for (std::istringstream cut(text); std::getline(cut, cell, ',');) cells.push_back(cell);
    return cells;
  };
  const std::vector<std::string> header = next();
  const auto at = [&](const char* name) {
    return static_cast<std::size_t>(std::ranges::find(header, name) - header.begin());
  };
  for (std::size_t i = 0; i < line.at("ttfts").size(); ++i) {
    const std::vector<std::string> row = next();
    const auto request = std::stoul(row[at("request")]);
    line["ttfts"][request] = std::stod(row[at("ttft_s")]);
    const auto tokens = line.at("output_lens").at(request).get<double>();
    line["itls"][request] = Json::array();
    if (tokens > 1) line["itls"][request].push_back(std::stod(row[at("tpot_s")]) * (tokens - 1));
  }
  write_text(folder / "bench.jsonl", line.dump() + "\n");
  std::vector<std::string> second{"--from", folder / "bench.jsonl", "--force"};
  second.insert(second.end(), fit.begin(), fit.end());
  const Json capture = fitted(folder, second).at("capture");
  EXPECT_NEAR(capture.at("serving").at("serving.step_us").at("value").get<double>(), 3000, 60);
  for (const char* figure : {"TTFT", "TPOT"}) {
    const Json& held_out = capture.at("errors").at(figure).at("held_out");
    EXPECT_GT(held_out.at("before").at("mean_abs_error").get<double>(), 0.1) << figure;
    EXPECT_LT(held_out.at("after").at("mean_abs_error").get<double>(), 0.02) << figure;
  }
}

// One run has no hits on the host, and the other one has hardly anything but them: together they tell the products and
// the link.
TEST(CalibrateCapture, FitsCapturesOfSeveralWorkloadsTogether) {
  const Folder folder;
  const std::string server =
      "engine = \"none\"\nsim.world = \"events\"\nmodel.name = \"llama-3.1-8b\"\nhardware.name = \"h100-sxm\"\n"
      "tiers.device.tokens = 40000\ntiers.host.tokens = 160000\n[workload]\nloop = \"closed\"\n[workload.generate]\n"
      "kind = \"groups\"\nconcurrency = 2\noutput_tokens = 8\n";
  write_text(folder / "plain.toml",
             server + "groups = 1\nprompts_per_group = 24\nprefix_tokens = 0\nquestion_tokens = 4096\n");
  write_text(folder / "hits.toml",
             server + "groups = 12\nprompts_per_group = 4\nprefix_tokens = 8192\nquestion_tokens = 32\n");
  const std::vector<std::string> truth{"--set", "hardware.set.gemm_fraction=0.6", "--set",
                                       "hardware.set.host_to_device=40"};
  std::vector<std::string> both{"--fit", "gemm_fraction,host_to_device"};
  for (const std::string name : {"plain", "hits"}) {
    std::vector<std::string> words{"simulate", folder / (name + ".toml"), "--out", folder / name, "--json"};
    words.insert(words.end(), truth.begin(), truth.end());
    run(words).json();
    both.insert(both.end(), {"--from", folder / name, "--experiment", folder / (name + ".toml")});
  }
  const Json file = fitted(folder, both);
  EXPECT_NEAR(file.at("numbers").at("gemm_fraction").at("value").get<double>(), 0.6, 0.01);
  EXPECT_NEAR(file.at("numbers").at("host_to_device").at("value").get<double>(), 40, 0.5);
  EXPECT_EQ(file.at("capture").at("captures").size(), 2U);
  const Json alone = fitted(folder, {"--force", "--fit", "gemm_fraction,host_to_device", "--from", folder / "plain",
                                     "--experiment", folder / "plain.toml"});
  EXPECT_EQ(alone.at("capture").at("kept").at("host_to_device"), "the capture has no hits on the host");
}

// vLLM 0.32.0 on two CPU cores (tests/fixtures/vllm/served.toml), which are faster than the base by far.
TEST(CalibrateCapture, FitsARealVllmServerOnAMachineThatItDoesNotKnow) {
  const Folder folder;
  const fs::path files = fs::path(kFixtures).parent_path() / "vllm";
  const Json file = fitted(folder, {"--from", files / "bench.json", "--experiment", files / "served.toml"});
  for (const char* figure : {"TTFT", "TPOT"}) {
    const Json& held_out = file.at("capture").at("errors").at(figure).at("held_out");
    EXPECT_GT(held_out.at("before").at("median_abs_error").get<double>(), 1) << figure;
    EXPECT_LT(held_out.at("after").at("median_abs_error").get<double>(), 0.25) << figure;
  }
  const Json& numbers = file.at("numbers");
  EXPECT_GT(numbers.at("peak_bf16").at("value").get<double>(), 200) << "the base has 60 GFLOP/s";
  EXPECT_EQ(numbers.at("gemm_fraction").at("value").get<double>(), 1) << "of the peak that was found";
  EXPECT_LT(numbers.at("attention_fraction").at("value").get<double>(), 0.45);
  EXPECT_FALSE(numbers.contains("attention_query_tokens")) << "only if --fit names it";
  const Json report = run({"simulate", folder / "out/fitted.toml", "--out", folder / "run", "--json"}).json();
  EXPECT_EQ(report.at("tokens").at("hit_device").get<int>(), 10'752) << "vllm:prefix_cache_hits of the run";
}

// A fraction that is not fitted keeps its rate when the peak is raised.
TEST(CalibrateCapture, APeakMayRiseWithoutTheOtherFraction) {
  const Folder folder;
  const fs::path files = fs::path(kFixtures).parent_path() / "vllm";
  const Json numbers =
      fitted(folder, {"--from", files / "bench.json", "--experiment", files / "served.toml", "--fit", "gemm_fraction"})
          .at("numbers");
  const double peak = numbers.at("peak_bf16").at("value").get<double>();
  EXPECT_GT(peak, 100);
  EXPECT_NEAR(numbers.at("attention_fraction").at("value").get<double>() * peak, 0.3 * 60, 0.1);
}

TEST(CalibrateCapture, TokensThatReachHalfOfThePeakAreFittedIfNamed) {
  const Folder folder;
  const fs::path files = fs::path(kFixtures).parent_path() / "vllm";
  const Json numbers = fitted(folder, {"--from", files / "bench.json", "--experiment", files / "served.toml", "--fit",
                                       "gemm_fraction,attention_fraction,attention_query_tokens"})
                           .at("numbers");
  EXPECT_GT(numbers.at("attention_query_tokens").at("value").get<double>(), 1);
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
  const Json fit = fitted(folder, {"--published", fs::path(kSourceFolder) / "tests/fidelity/silicon.json", "--fit-on",
                                   "h100_sxm v", "--fit", "serving.step_us", "--rows", "4"});
  EXPECT_EQ(fit.size(), 2U);
  ASSERT_TRUE(fit.contains("vllm") && fit.contains("left_out")) << fit;
  std::map<std::pair<std::string, bool>, int> figures;  // TPOT, by group and whether held out
  for (const Json& error : fit.at("vllm").at("errors")) {
    if (error.at("figure") == "TPOT") figures[{error.at("group"), error.at("held_out")}] = error.at("figures");
  }
  // Four of the six entries of H100 are fitted. The other two and up to four of each other GPU are held out.
  const std::map<std::pair<std::string, bool>, int> expected{
      {{"h100_sxm vllm", false}, 4}, {{"h100_sxm vllm", true}, 2}, {{"h200_sxm vllm", true}, 4},
      {{"b200_sxm vllm", true}, 4},  {{"b300_sxm vllm", true}, 2}, {{"all held out", true}, 12}};
  EXPECT_EQ(figures, expected);
  EXPECT_NE(text_of(folder / "out/serving-vllm.toml").find("engine = \"vllm\""), std::string::npos);
}

TEST(CalibrateCapture, RefusesBadInputInOneSentence) {
  const Folder folder;
  const std::string bench = kFixtures / "bench_random.jsonl", shared = kFixtures / "bench_shared.jsonl";
  const std::string table = fs::path(kSourceFolder) / "tests/fidelity/silicon.json";
  const auto refused = [&](std::vector<std::string> arguments, const std::string& sentence) {
    arguments.insert(arguments.begin(), {"calibrate", "--out", folder / "refused"});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
  };
  refused({"--from", bench, "--from", kFixtures / "served.toml"}, "fit captures and measurements by separate commands");
  refused({"--from", bench, "--from", bench, "--experiment", "a", "--experiment", "b", "--experiment", "c"},
          "3 files, and --from has 2 captures");
  const std::string other = folder / "other.toml", served = folder / "served.toml";
  write_text(served, "model.name = \"llama-3.1-8b\"\nhardware.name = \"h100-sxm\"\n");
  write_text(other, "model.name = \"llama-3.1-8b\"\nhardware.name = \"h200-sxm\"\n");
  refused({"--from", bench, "--from", bench, "--experiment", served, "--experiment", other},
          "is of another server than " + bench + ": hardware.name is ");
  refused({"--from", bench, "--fit", "gemm_fractoin"}, "did you mean \"gemm_fraction\"?");
  refused({"--from", bench, "--fit", "drive_read_latency"}, "the experiment does not use it");
  refused({"--from", bench, "--set", "hardware.set.gemm_fraction=0.5"}, "hides a number that is fitted");
  refused({"--from", bench, "--quick"}, "--from fits earlier measurements");
  refused({"--from", shared}, "does not say which prefixes");
  refused({"--from", kFixtures / "engine_requests.jsonl"}, "needs --experiment");
  refused({"--experiment", kFixtures / "served.toml"}, "are of a capture of a server (--from) or of --published");
  refused({"--jobs", "2"}, "are of a capture of a server (--from) or of --published");
  refused({"--fit-on", "h100"}, "--fit-on requires --published");
  refused({"--rows", "4"}, "--rows requires --published");
  refused({"--published", table}, "needs --fit-on");
  refused({"--published", table, "--fit-on", "h100"}, "needs --fit");
  refused({"--published", table, "--fit-on", "h900", "--fit", "serving.step_us"}, "no group whose name begins so");
  refused({"--published", table, "--fit-on", "h100", "--fit", "gemm_fraction"}, "is a figure of one machine");
  EXPECT_EQ(run({"calibrate", "--from", bench}).exit_code, 2);  // without --out
  EXPECT_FALSE(fs::exists(folder / "refused"));
  const Outcome probe = run({"calibrate", "--probe", folder / "hardware.json", "--quick"});
  EXPECT_EQ(probe.exit_code, 2);
  EXPECT_NE(probe.err.find("--quick excludes --probe"), std::string::npos) << probe.err;
}

TEST(CalibrateCapture, RefusesBadCapturesInOneSentence) {
  const Folder folder;
  const auto refused = [&](const std::string& text, const std::string& sentence,
                           std::vector<std::string> more = {"--base", "h100-sxm"}) {
    write_text(folder / "capture.jsonl", text);
    more.insert(more.begin(), {"calibrate", "--out", folder / "refused", "--from", folder / "capture.jsonl"});
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_FALSE(fs::exists(folder / "refused"));
  };
  const auto changed = [](const auto& change) {
    Json line = bench_line();
    change(line);
    return line.dump() + "\n";
  };
  refused("", "capture.jsonl");
  refused(changed([](Json& line) { line.erase("ttfts"); }), "has no request with a time");
  refused(changed([](Json& line) { line["ttfts"].erase(0); }), "must be lists of one length");
  refused(changed([](Json& line) { line["ttfts"][3] = -0.5; }),
          "ttfts and input_lens: must hold numbers of at least 0");
  refused(changed([](Json& line) { line["itls"][2] = {-3.0}; }), "request 2 has a TPOT of -0.75 s");
  refused(changed([](Json& line) {
            for (Json& error : line["errors"]) error = "refused";
          }),
          "has no request with a time");
  refused(changed([](Json& line) {
            for (std::size_t i = 10; i < line["errors"].size(); ++i) line["errors"][i] = "refused";
          }),
          "has the times of 10 requests; a fit needs 16 or more");
  std::string log = text_of(kFixtures / "engine_requests.jsonl");
  const std::string key = "\"e2e_latency\": ";
  const std::size_t at = log.find(key);
  ASSERT_NE(at, std::string::npos);
  log.insert(at + key.size(), "-");
  refused(log, "e2e_latency", {"--experiment", kFixtures / "served.toml"});
}

// The folder of a run: requests.csv without a column, without an answer, and with a negative time.
TEST(CalibrateCapture, RefusesBadRunFoldersInOneSentence) {
  const Folder folder;
  const Settings settings{"model.name=tiny", "hardware.name=cpu-host", "workload.limit=20"};
  simulate_to(folder, "run", settings, false, "events");
  const std::string rows = text_of(folder / "run/requests.csv");
  const auto refused = [&](const std::string& text, const std::string& sentence) {
    write_text(folder / "run/requests.csv", text);
    std::vector<std::string> arguments{"calibrate",
                                       "--out",
                                       folder / "refused",
                                       "--from",
                                       folder / "run",
                                       "--experiment",
                                       folder / "run/experiment.resolved.toml"};
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_FALSE(fs::exists(folder / "refused"));
  };
  const std::string header = rows.substr(0, rows.find('\n') + 1);
  const auto replaced = [&](std::string text, const std::string& from, const std::string& to) {
    const std::size_t found = text.find(from);
    EXPECT_NE(found, std::string::npos) << from;
    return text.replace(found, from.size(), to);
  };
  refused(replaced(rows, "ttft_s", "first_s"), "has no column ttft_s");
  refused(header, "has the times of 0 requests");
  refused("", "has the times of 0 requests");
  // The column before ttft_s is compute_s.
  std::istringstream first(rows.substr(header.size(), rows.find('\n', header.size()) - header.size()));
  std::istringstream names(header);
  std::string cell, name, line;
  while (std::getline(names, name, ',') && std::getline(first, cell, ',')) {
    line += (line.empty() ? "" : ",") + std::string(name == "ttft_s" ? "-" : "") + cell;
  }
  refused(header + line + "\n", "has a TTFT of -");
}

// A figure that the base does not have is set, and has no ratio by which others could move.
TEST(CalibrateCapture, SetsAFigureThatTheBaseDoesNotHave) {
  HardwareSpec machine;
  machine.pool_bandwidth = 0;
  machine.nic_bandwidth = 2e9;
  set_numbers({&fit_key("pool_bandwidth"), &fit_key("pool_latency")}, {4, 50}, machine);
  EXPECT_DOUBLE_EQ(machine.pool_bandwidth, 4e9);
  EXPECT_DOUBLE_EQ(machine.nic_bandwidth, 2e9);
  EXPECT_DOUBLE_EQ(machine.pool_latency, 50e-6);
  set_numbers({&fit_key("pool_bandwidth")}, {8}, machine);
  EXPECT_DOUBLE_EQ(machine.nic_bandwidth, 4e9);
}

// Entries of a published table that the fit does not use are named, with the reason.
TEST(CalibratePublished, NamesTheEntriesThatItLeavesOut) {
  const Folder folder;
  const auto entry = [](const std::string& name, const std::string& group, const std::string& engine,
                        const std::string& load, const std::string& measured) {
    return R"({"name": ")" + name + R"(", "source": "made up", "group": ")" + group +
           R"(", "model": "llama-3.1-8b", "hardware": "h100-sxm", "set": {"sim.world": "events"}, "serving": {"engine": ")" +
           engine +
           R"("}, "workload": {"groups": 4, "prompts_per_group": 2, "prefix_tokens": 256, "question_tokens": 32, )" +
           R"("output_tokens": 4, )" + load + R"(}, "measured": )" + measured + "}";
  };
  const std::string rate = R"("rate": 5)", mean = R"({"ttft_mean_s": 0.05})";
  write_text(folder / "t.json",
             "[" + entry("a", "h100 x", "sglang", rate, R"({"ttft_mean_s": 0.05, "ttft_p99_s": 0.2})") + "," +
                 entry("b", "h100 x", "sglang", rate, mean) + "," + entry("c", "h100 x", "sglang", rate, mean) + "," +
                 entry("p99", "h100 x", "sglang", rate, R"({"ttft_p99_s": 0.2})") + "," +
                 entry("ladder", "h100 x", "sglang", R"("concurrency": "1x4,2x4")", "[" + mean + "," + mean + "]") +
                 "," + entry("other", "b200", "vllm", rate, mean) + "]");
  const Outcome fit = run({"calibrate", "--published", folder / "t.json", "--fit-on", "h100", "--fit",
                           "serving.step_us", "--rows", "1", "--simulations", "10", "--out", folder / "out"});
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const std::string left_out = Json::parse(text_of(folder / "out/fit.json")).at("left_out").dump();
  for (const char* part :
       {"used in part: the fit takes ttft_mean_s and tpot_mean_s, or e2e_mean_s without these (a)",
        "not used: no ttft_mean_s, tpot_mean_s or e2e_mean_s above 0 (p99)",
        "of stages; give each stage an entry of its own (ladder)",
        "no group of --fit-on has their serving.engine (other)", "1 of 6 entries: not used: more than --rows 1"}) {
    EXPECT_NE(left_out.find(part), std::string::npos) << part << ": " << left_out;
    EXPECT_NE(fit.out.find(part), std::string::npos) << part << ": " << fit.out;
  }
}

}  // namespace
}  // namespace kvtwin::test
