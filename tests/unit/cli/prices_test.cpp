// Prices and worn drives in the reports of the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/price_list.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

TEST(Prices, AreInTheReportOfARun) {
  const Folder folder;
  write_text(folder.path() / "x.toml", kReturning);
  const std::string list = price_list(folder, "p.toml");
  const Simulated free = simulate_file(folder / "x.toml", {}, kAnyWorld);
  EXPECT_FALSE(free.report.contains("price")) << "the built-in list has no cpu-host";
  const Simulated priced = simulate_file(folder / "x.toml", {"prices.file=" + list, "tiers.disk.gib=1"}, kAnyWorld);
  const Json& price = priced.report.at("price");
  EXPECT_EQ(price.at("currency"), "EUR");
  double sum = 0;
  for (const Json& part : price.at("parts")) sum += part.at("per_month").get<double>();
  EXPECT_DOUBLE_EQ(price.at("per_month").get<double>(), sum);
  const Json& throughput = priced.report.at("throughput");
  const double tokens =
      throughput.at("prompt_tokens_per_second").get<double>() + throughput.at("output_tokens_per_second").get<double>();
  EXPECT_NEAR(price.at("per_million_tokens").get<double>(), sum / (tokens * 730 * 3600 / 1e6), 1e-9);
  const Json& drives = price.at("drives");
  EXPECT_GT(drives.at("written_bytes_per_day").get<double>(), 0);
  EXPECT_NEAR(drives.at("years").get<double>() * drives.at("writes_per_day").get<double>(), 5, 1e-9);

  const Outcome rows = run({"compare", folder / "x.toml", "--world", kAnyWorld, "--set", "prices.file=" + list,
                            "--vary", "tiers.host.tokens=4096,8192", "--goal", "price_per_month=1e9"});
  EXPECT_EQ(rows.exit_code, 0) << rows.err;
  EXPECT_NE(rows.out.find("price/month"), std::string::npos) << rows.out;
}

TEST(Prices, DrivesThatWearOutAreNamed) {
  const Folder folder;
  write_text(folder.path() / "x.toml", kReturning);
  std::string text = price_list_text();
  const std::string tb = "tb = {value = 1.000000";
  text.replace(text.find(tb), tb.size(), "tb = {value = 0.002");
  write_text(folder.path() / "small.toml", text);
  const Settings set{"tiers.disk.gib=1", "prices.file=" + (folder / "small.toml")};
  const Simulated run = simulate_file(folder / "x.toml", set, kAnyWorld);
  const Json warnings = run.report.value("warnings", Json::array());
  EXPECT_NE(std::ranges::find(warnings, "drives_worn_out"), warnings.end()) << warnings << run.report.at("price");
  const Simulated roomy = simulate_file(
      folder / "x.toml", {"tiers.disk.gib=1", "prices.file=" + price_list(folder, "p.toml", 1)}, kAnyWorld);
  EXPECT_GT(roomy.report.at("price").at("drives").at("years").get<double>(),
            100 * run.report.at("price").at("drives").at("years").get<double>());
}

}  // namespace
}  // namespace kvtwin::test
