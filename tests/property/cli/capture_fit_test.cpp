// kvtwin calibrate of a capture: simulated requests of a machine with other numbers than the base's, with noise on
// their times. The fit finds the numbers, and the held-out half confirms them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/hardware_file.hpp"
#include "tests/paths.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

constexpr double kNoise = 0.05;  // of each time, up or down

// Replaces the TTFT and the TPOT of each request by noisy ones.
void add_noise(const fs::path& folder, std::uint64_t seed) {
  std::istringstream lines(text_of(folder / "requests.csv"));
  std::string line, noisy;
  Splitmix random(seed);
  std::vector<std::string> header;
  while (std::getline(lines, line)) {
    std::vector<std::string> cells{""};
    for (const char c : line) c == ',' ? static_cast<void>(cells.emplace_back()) : cells.back().push_back(c);
    if (header.empty()) header = cells;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if ((header[i] == "ttft_s" || header[i] == "tpot_s") && cells[i] != header[i] && !cells[i].empty()) {
        const double unit = static_cast<double>(random.below(2001)) / 1000 - 1;
        char text[40];
        std::snprintf(text, sizeof text, "%.9f", std::stod(cells[i]) * (1 + kNoise * unit));
        cells[i] = text;
      }
      noisy += (i == 0 ? "" : ",") + cells[i];
    }
    noisy += "\n";
  }
  write_text(folder / "requests.csv", noisy);
}

double error(const Json& file, const std::string& figure, const char* half, const char* when) {
  return file.at("capture").at("errors").at(figure).at(half).at(when).at("mean_abs_error");
}

TEST(CaptureFit, FindsTheNumbersOfTheServer) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Folder folder;
    // Prompts that share little, so that products count; conversations whose pages return from the host.
    const Settings settings = conversations({.requests = 160, .gap_ms = 400}, seed).save(folder) +
                              Settings{"hardware.name=h100-sxm", "model.name=llama-3.1-8b", "serving.engine=sglang",
                                       "tiers.device.tokens=6016", "tiers.host.tokens=200000"};
    const std::string machine = hardware_setting(folder, "h100-sxm", "truth.json", [](const auto& key, const auto&) {
      if (key == "gemm_fraction") return 0.6;
      if (key == "host_to_device" || key == "kernel_read" || key == "kernel_block_rate") return 0.1;
      return 1.0;
    });
    simulate_to(folder, "capture", settings + Settings{machine, "serving.step_us=2000"}, false, "events");
    add_noise(folder / "capture", seed);
    std::string experiment;
    std::vector<std::string> arguments{"calibrate",    "--json",
                                       "--from",       folder / "capture",
                                       "--experiment", folder / "experiment.toml",
                                       "--out",        folder / "out",
                                       "--fit",        "gemm_fraction,host_to_device,serving.step_us",
                                       "--set",        "sim.world=events"};
    for (const std::string& set : settings) arguments.insert(arguments.end(), {"--set", set});
    const Json file = run(arguments).json();
    EXPECT_NEAR(file.at("numbers").at("gemm_fraction").at("value").get<double>() / (0.7 * 0.6), 1, 0.1) << seed;
    EXPECT_NEAR(file.at("numbers").at("host_to_device").at("value").get<double>() / 5.5, 1, 0.15) << seed;
    EXPECT_NEAR(file.at("capture").at("serving").at("serving.step_us").at("value").get<double>() / 2000, 1, 0.1)
        << seed;
    for (const char* figure : {"TTFT", "TPOT"}) {
      // The mean size of the noise is half of kNoise. The held-out half is as good as the fitted one.
      EXPECT_LT(error(file, figure, "held_out", "after"), kNoise) << seed << figure;
      EXPECT_LT(2 * error(file, figure, "held_out", "after"), error(file, figure, "held_out", "before"))
          << seed << figure;
      EXPECT_NEAR(error(file, figure, "held_out", "after"), error(file, figure, "fitted", "after"), 0.02)
          << seed << figure;
    }
    // Equal inputs give equal bytes, whatever the number of processes.
    arguments.insert(arguments.end(), {"--force", "--jobs", "1"});
    EXPECT_EQ(run(arguments).json().at("numbers"), file.at("numbers")) << seed;
    // The written experiment simulates the fitted server.
    const Json report = run({"simulate", folder / "out/fitted.toml", "--json"}).json();
    EXPECT_EQ(report.at("requests").at("total"), 160) << seed;
  }
}

// Conversations whose pages return from the disk, because the host has room for few. With a host no larger than the
// device, requests lose their pages while they wait and look them up again: the latencies then jump with the drive's
// rate, which has no effect near the base's.
TEST(CaptureFit, FindsTheTimesOfStorage) {
  for (const auto& [host, seed] : {std::pair{"12032", 1}, {"6016", 1}, {"6016", 2}, {"6016", 3}}) {
    SCOPED_TRACE(std::string(host) + " " + std::to_string(seed));
    const Folder folder;
    const Settings settings =
        conversations({.requests = 160, .gap_ms = 400}, static_cast<std::uint64_t>(seed)).save(folder) +
        Settings{"hardware.name=h100-sxm",
                 "model.name=llama-3.1-8b",
                 "tiers.device.tokens=6016",
                 std::string("tiers.host.tokens=") + host,
                 "tiers.disk.tokens=200000",
                 "cache.write_policy=write_through",
                 "cache.prefetch_policy=wait_complete"};
    const std::string machine = hardware_setting(folder, "h100-sxm", "truth.json", [](const auto& key, const auto&) {
      return key == "drive_read_bandwidth" ? 0.02 : 1.0;
    });
    const double base = Json::parse(text_of(fs::path(kSourceFolder) / "models/presets/hardware/h100-sxm.json"))
                            .at("numbers")
                            .at("drive_read_bandwidth")
                            .at("value");
    simulate_to(folder, "capture", settings + Settings{machine}, false, "events");
    add_noise(folder / "capture", 1);
    std::vector<std::string> arguments{"calibrate",    "--json",
                                       "--from",       folder / "capture",
                                       "--experiment", folder / "experiment.toml",
                                       "--out",        folder / "out",
                                       "--fit",        "gemm_fraction,drive_read_bandwidth",
                                       "--set",        "sim.world=events"};
    for (const std::string& set : settings) arguments.insert(arguments.end(), {"--set", set});
    const Json file = run(arguments).json();
    EXPECT_NEAR(file.at("numbers").at("drive_read_bandwidth").at("value").get<double>() / (0.02 * base), 1, 0.1);
    EXPECT_LT(2 * error(file, "TTFT", "held_out", "after"), error(file, "TTFT", "held_out", "before"));
    // A request that jumps at another rate than the fitted one is off by a large factor.
    const double most = std::string_view(host) == "12032" ? kNoise : 1;
    EXPECT_LT(error(file, "TTFT", "held_out", "after"), most);
  }
}

}  // namespace
}  // namespace kvtwin::test
