// kvtwin calibrate, as a user runs it. It measures the machine that runs the test, so no test checks a speed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/folder.hpp"
#include "tests/paths.hpp"
#include "tests/program.hpp"
#include "tests/simulation.hpp"
#if KVTWIN_TEST_REAL
#include "tests/real_run.hpp"
#endif

namespace kvtwin::test {
namespace {

constexpr const char* kMachine =
    "{\"what\":\"machine\",\"cpu\":\"a processor\",\"cores\":2,\"kernel\":\"Linux 6\",\"device\":\"host\"}\n";

// Returns measurements, without noise, of a disk with 1 GB/s and a latency of 100 us.
std::string disk_measurements() {
  std::string text = kMachine;
  for (const int pages : {1, 4, 16, 32}) {
    for (const int bytes : {65536, 1048576}) {
      const double seconds = 100e-6 + pages * bytes / 1e9;
      text += "{\"what\":\"disk\",\"verb\":\"get\",\"memory\":\"host\",\"pages\":" + std::to_string(pages) +
              ",\"page_bytes\":" + std::to_string(bytes) + ",\"seconds\":" + std::to_string(seconds) + "}\n";
    }
  }
  return text;
}

Outcome calibrate(const Folder& folder, const std::vector<std::string>& from, const std::string& out = "out") {
  std::vector<std::string> arguments{"calibrate", "--json", "--out", folder / out, "--from"};
  arguments.insert(arguments.end(), from.begin(), from.end());
  return run(arguments);
}

TEST(Calibrate, FitsWhatWasMeasuredBefore) {
  const Folder folder;
  write_text(folder / "measured.jsonl", disk_measurements());
  const Json file = calibrate(folder, {folder / "measured.jsonl"}).json();
  EXPECT_NEAR(file.at("numbers").at("drive_read_bandwidth").at("value").get<double>(), 1, 0.02);
  EXPECT_NEAR(file.at("numbers").at("drive_read_latency").at("value").get<double>(), 100, 5);
  EXPECT_EQ(file.at("calibration").at("machine").at("cpu"), "a processor");
  EXPECT_EQ(file.at("calibration").at("fits").at("disk").at("measurements"), 8);
  EXPECT_EQ(file.at("calibration").at("ranges").at("disk_read").at("pages"), Json::parse("[1, 32]"));
  EXPECT_EQ(Json::parse(text_of(folder / "out/hardware.json")), file);
  // A calibration from the files that it wrote gives the same numbers.
  const Json again = calibrate(folder, {folder / "out"}, "again").json();
  EXPECT_EQ(again.at("numbers"), file.at("numbers"));
}

TEST(Calibrate, SimulationsSayWhatTheyExtrapolate) {
  const Folder folder;
  write_text(folder / "measured.jsonl", disk_measurements());
  ASSERT_EQ(calibrate(folder, {folder / "measured.jsonl"}).exit_code, 0);
  write_text(folder / "experiment.toml", "");
  const Json report =
      run({"simulate", folder / "experiment.toml", "--json", "--set", "sim.world=events", "--set", "model.name=tiny",
           "--set", "workload.limit=5", "--set", "hardware.file=" + (folder / "out/hardware.json")})
          .json();
  EXPECT_NE(report.at("notes").dump().find("prefill: nothing of it was measured"), std::string::npos)
      << report.at("notes").dump(2);
}

// The measurements record the machine's load and CPU steal time, and repeated measurements that disagree are reported.
TEST(Calibrate, SaysWhyNotToTrustIt) {
  const Folder folder;
  std::string text = disk_measurements();
  text.replace(text.find("}\n"), 1, ",\"load_average\":[8.5,9],\"steal_share\":0.05}");
  const std::string work = R"({"what":"disk","verb":"get","memory":"host","pages":2,"page_bytes":65536,"seconds":)";
  for (const char* seconds : {"0.0002", "0.0003", "0.0004", "0.0006"}) text += work + seconds + "}\n";
  write_text(folder / "measured.jsonl", text);
  const Outcome words = run({"calibrate", "--out", folder / "words", "--from", folder / "measured.jsonl"});
  const Json file = Json::parse(text_of(folder / "words/hardware.json"));
  EXPECT_EQ(file.at("calibration").at("machine").at("load_average"), Json::parse("[8.5, 9.0]"));
  EXPECT_EQ(file.at("calibration").at("machine").at("steal_share"), 0.05);
  EXPECT_GT(file.at("calibration").at("fits").at("disk").at("repeat_spread"), 0.2);
  for (const char* part : {"the load average was 8.5 on 2 cores", "Repeats of equal work disagree (disk)"}) {
    EXPECT_NE(words.out.find(part), std::string::npos) << words.out;
    EXPECT_NE(file.at("calibration").at("notes").dump().find(part), std::string::npos) << file.at("calibration");
  }
  // The notes stay with the measurements.
  EXPECT_EQ(calibrate(folder, {folder / "words"}).json().at("calibration").at("notes"),
            file.at("calibration").at("notes"));
  write_text(folder / "measured.jsonl", disk_measurements());
  EXPECT_FALSE(calibrate(folder, {folder / "measured.jsonl"}, "quiet").json().at("calibration").contains("notes"));
}

// Probes repeat equal work while the machine is measured. If they disagree, the intervals are wider by the same ratio.
TEST(Calibrate, WidensIntervalsWhenProbesDisagree) {
  const Folder folder;
  std::string noisy = disk_measurements();
  const std::string work = R"({"what":"disk","verb":"get","memory":"host","pages":8,"page_bytes":65536,"seconds":)";
  noisy += work + "0.0007}\n";  // intervals of exact measurements are empty
  const auto with_probes = [&](const std::string& name, const std::vector<const char*>& seconds) {
    std::string text = noisy;
    for (const char* one : seconds) text += std::string(R"({"what":"probe","of":"disk","seconds":)") + one + "}\n";
    write_text(folder / (name + ".jsonl"), text);
    return calibrate(folder, {folder / (name + ".jsonl")}, name).json();
  };
  const Json steady = with_probes("steady", {"0.010", "0.0105", "0.0102"});
  const Json changed = with_probes("changed", {"0.010", "0.0105", "0.018"});
  const Json& narrow = steady.at("numbers").at("drive_read_bandwidth");
  const Json& wide = changed.at("numbers").at("drive_read_bandwidth");
  EXPECT_EQ(wide.at("value"), narrow.at("value"));
  EXPECT_NEAR(narrow.at("low").get<double>() / wide.at("low").get<double>(), 1.8, 0.01);
  EXPECT_NEAR(wide.at("high").get<double>() / narrow.at("high").get<double>(), 1.8, 0.01);
  EXPECT_FALSE(steady.at("calibration").contains("notes"));
  EXPECT_NE(changed.at("calibration").at("notes").dump().find("The machine changed while it was measured"),
            std::string::npos);
  EXPECT_EQ(changed.at("calibration").at("probes").at("disk"), Json::parse("[0.01, 0.0105, 0.018]"));
  // The probes stay with the measurements.
  EXPECT_EQ(calibrate(folder, {folder / "changed/measurements.jsonl"}, "again").json().at("numbers"),
            changed.at("numbers"));
}

// Passes of a small model on a machine with fast memory leave memory_fraction without a lower bound. With and without
// probes that disagree, the interval stays in the range of a hardware file.
TEST(Calibrate, AnIntervalWithoutALowerBoundStaysInTheRange) {
  const Folder folder;
  const std::string config = text_of(fs::path(kSourceFolder) / "models/presets/models/tiny.json");
  std::string passes =
      std::string(kMachine) + R"({"what":"model","name":"tiny","config":)" + Json::parse(config).dump() + "}\n";
  const auto add = [&passes](const Json& more) {
    Json line{{"what", "forward"},
              {"model", "tiny"},
              {"tp", 1},
              {"steps", 1},
              {"prefill_tokens", 0},
              {"prefill_pairs", 0},
              {"prefill_sequences", 0},
              {"decode_sequences", 0},
              {"prefill_context_tokens", 0},
              {"decode_context_tokens", 0}};
    line.update(more);
    passes += line.dump() + "\n";
  };
  add({{"decode_sequences", 1}, {"decode_context_tokens", 16}, {"seconds", 0.000112}});
  add({{"steps", 8}, {"decode_sequences", 4}, {"decode_context_tokens", 512}, {"seconds", 0.00236}});
  add({{"prefill_tokens", 16},
       {"prefill_pairs", 4232},
       {"prefill_sequences", 1},
       {"prefill_context_tokens", 256},
       {"seconds", 0.000853}});
  for (const char* probes : {"",
                             "{\"what\":\"probe\",\"of\":\"forward\",\"seconds\":0.04}\n"
                             "{\"what\":\"probe\",\"of\":\"forward\",\"seconds\":0.52}\n"}) {
    write_text(folder / "measured.jsonl", passes + probes);
    const Json file = calibrate(folder, {folder / "measured.jsonl"}, *probes == 0 ? "alone" : "probed").json();
    EXPECT_GE(file.at("numbers").at("memory_fraction").at("low").get<double>(), 1e-6) << probes;
  }
}

TEST(Calibrate, RefusesToProbeWithoutProbes) {
  const Folder folder;
  write_text(folder / "measured.jsonl", disk_measurements());
  ASSERT_EQ(calibrate(folder, {folder / "measured.jsonl"}).exit_code, 0);
  const Outcome outcome = run({"calibrate", "--probe", folder / "out/hardware.json"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("hardware.json: has no probes"), std::string::npos) << outcome.err;
}

TEST(Calibrate, RefusesBadInputInOneSentence) {
  const Folder folder;
  write_text(folder / "measured.jsonl", disk_measurements());
  std::string elsewhere = disk_measurements();
  elsewhere.replace(elsewhere.find("a processor"), 11, "another one");
  write_text(folder / "elsewhere.jsonl", elsewhere);
  write_text(folder / "cut.jsonl", disk_measurements() + "{\"what\":\"disk\",");
  write_text(folder / "table.csv", "# date: today\nkind,direction,bytes,us\ncopy,up,1,1\n");
  std::filesystem::create_directories(folder / "empty");
  const auto refused = [&](const std::vector<std::string>& from, const std::string& sentence) {
    const Outcome outcome = calibrate(folder, from, "refused");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_NE(outcome.err.find(sentence), std::string::npos) << outcome.err;
  };
  refused({folder / "no"}, "no: is not there");
  refused({folder / "empty"}, "holds neither measurements.jsonl");
  refused({folder / "measured.jsonl", folder / "elsewhere.jsonl"},
          "elsewhere.jsonl: was measured on another machine (another one, 2 cores");
  refused({folder / "cut.jsonl"}, "cut.jsonl:10: is no JSON object");
  refused({folder / "table.csv"}, "table.csv:3: direction `up`; there are h2d and d2h");
  refused({folder / "measured.jsonl", "--base", "h900"}, "unknown hardware");
  refused({folder / "measured.jsonl", "--quick"}, "--from fits earlier measurements");
  std::filesystem::create_directories(folder / "refused");
  write_text(folder / "refused/there", "");
  refused({folder / "measured.jsonl"}, "is not empty; give another, or --force");
}

TEST(Calibrate, TakesTablesOfGpuCheck) {
  const Folder folder;
  std::string link = "# machine: a processor, 16 cores\n# gpu: NVIDIA H200, 132 SMs\nkind,direction,bytes,us\n";
  for (const std::uint64_t bytes : {65536u, 1048576u, 16777216u, 268435456u}) {
    for (const char* direction : {"h2d", "d2h"}) {
      link += std::string("copy,") + direction + "," + std::to_string(bytes) + "," +
              std::to_string(10 + static_cast<double>(bytes) / 50e3) + "\n";
    }
  }
  write_text(folder / "link.csv", link);
  const Json file = calibrate(folder, {folder / "link.csv"}).json();
  EXPECT_EQ(file.at("calibration").at("base"), "h200-sxm");
  EXPECT_NEAR(file.at("numbers").at("host_to_device").at("value").get<double>(), 50, 1);
  EXPECT_EQ(file.at("calibration").at("machine").at("cores"), 16);
  EXPECT_EQ(file.at("numbers").at("kernel_blocks").at("value"), 4) << "the base's";
}

// The sizes of the copy kernels and of staged copies, which real runs and gpu_bench take from the hardware file.
TEST(Calibrate, TakesTheSizesOfCopiesFromTheTableOfTheLink) {
  const Folder folder;
  std::string link =
      "# machine: a processor, 16 cores\n# gpu: NVIDIA H200, 132 SMs\n"
      "kind,direction,bytes,ctas,stages,portion_bytes,node,gbps,p10,p90,samples,us\n";
  for (const char* direction : {"h2d", "d2h"}) {
    const auto row = [&](const std::string& kind, const std::string& varied, int gbps) {
      link += kind + "," + direction + ",67108864," + varied + ",0," + std::to_string(gbps) + ",1,1,7,1300\n";
    };
    row("copy", "0,0,0", 50);
    for (const int ctas : {1, 2, 4, 8, 16}) {
      row("kernel", std::to_string(ctas) + ",0,0", std::min(48, 6 * ctas));
      row("ring", std::to_string(ctas) + ",0,0", std::min(48, 24 * ctas));
    }
    for (const int stages : {2, 3, 4}) row("ring_stages", "4," + std::to_string(stages) + ",0", 47 + stages / 4);
    for (const int mib : {1, 2, 4, 8}) row("staged", "4,0," + std::to_string(mib << 20), std::min(47, 25 * mib));
  }
  write_text(folder / "link.csv", link);
  const Json numbers = calibrate(folder, {folder / "link.csv"}).json().at("numbers");
  EXPECT_EQ(numbers.at("kernel_blocks").at("value"), 8);
  EXPECT_EQ(numbers.at("ring_blocks").at("value"), 2);
  EXPECT_EQ(numbers.at("ring_stages").at("value"), 2);
  EXPECT_EQ(numbers.at("staging_bytes").at("value"), 2 << 20);
  EXPECT_NE(numbers.at("ring_blocks").at("source").get<std::string>().find("measured: "), std::string::npos);
}

#if KVTWIN_TEST_REAL

TEST(Calibrate, MeasuresThisMachineForSimulations) {
  const Folder folder;
  ASSERT_EQ(run({"calibrate", "--device", "host", "--quick", "--out", folder / "out"}).exit_code, 0);
  const Json file = Json::parse(text_of(folder / "out/hardware.json"));
  for (const char* group : {"copies", "disk", "forward"}) {
    EXPECT_GT(file.at("calibration").at("fits").at(group).at("measurements"), 0) << group;
  }
  EXPECT_EQ(file.at("calibration").at("machine").at("device"), "host");
  EXPECT_EQ(file.at("calibration").at("machine").at("load_average").size(), 2U);
  EXPECT_GE(file.at("calibration").at("machine").at("steal_share"), 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "out/measured-disk"));
  write_text(folder / "experiment.toml", "");
  EXPECT_EQ(run({"simulate", folder / "experiment.toml", "--set", "sim.world=events", "--set", "model.name=tiny",
                 "--set", "workload.limit=5", "--set", "hardware.file=" + (folder / "out/hardware.json")})
                .exit_code,
            0);
  // A short form of the build target `validation`: calibrate, predict and run. The error of the times depends on the
  // machine, so it isn't checked. The test checks that the times are from this machine, and the hits, which are exact
  // as long as nothing is late.
  const std::string held_out = folder / "held_out.toml";
  write_text(held_out, R"(model.name = "tiny"
hardware.name = "cpu-host"
cache.page_tokens = 16
tiers = { device.tokens = 2_048, host.tokens = 8_192 }
[workload]
loop = "closed"
[workload.generate]
kind = "groups"
groups = 16
prompts_per_group = 3
prefix_tokens = 256
question_tokens = 32
output_tokens = 2
concurrency = 1
)");
  const Outcome validated = run({"validate", "--experiments", held_out, "--repeats", "2", "--device", "host",
                                 "--hardware", folder / "out/hardware.json", "--json"});
  ASSERT_EQ(validated.exit_code, 0) << validated.err;
  const Json validation = Json::parse(validated.out);
  EXPECT_EQ(validation.at("machine").at("load_average").size(), 2U);
  EXPECT_EQ(validation.at("machine").at("cpu"), file.at("calibration").at("machine").at("cpu"));
  EXPECT_EQ(validation.at("notes").dump().find("never calibrated"), std::string::npos) << validation.at("notes");
  const Json figures = validation.at("cells").at(0).at("figures");
  const auto error_of = [&](const char* name) {
    const auto found =
        std::ranges::find(figures, name, [](const Json& it) { return it.at("figure").get<std::string>(); });
    return found->at("error").get<double>();
  };
  EXPECT_LT(std::abs(error_of("hit_ratio")), 0.001) << validated.out;
  EXPECT_GT(error_of("ttft_mean_s"), -0.95) << validated.out;
  EXPECT_LT(error_of("ttft_mean_s"), 20) << validated.out;
}

TEST(Calibrate, TakesRecordedRuns) {
  const Folder folder;
  Settings settings = small_model(folder);
  for (const char* more :
       {"workload.generate.kind=returning", "workload.generate.prompt_tokens=256",
        "workload.generate.working_set_tokens=8192", "workload.generate.visits=3", "workload.generate.output_tokens=4",
        "cache.page_tokens=16", "tiers.device.tokens=4096", "tiers.host.tokens=16384"}) {
    settings.emplace_back(more);
  }
  run_for_real(folder, settings);
  const Json file = calibrate(folder, {folder / "run"}).json();
  EXPECT_GT(file.at("calibration").at("fits").at("forward").at("measurements"), 0);
  EXPECT_GT(file.at("calibration").at("fits").at("copies").at("measurements"), 0);
}

#endif

}  // namespace
}  // namespace kvtwin::test
