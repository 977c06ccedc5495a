// metrics.prom has the text format of Prometheus, version 0.0.4. This test parses it by the rules of the format.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

// The metric families with their types, and the samples by name and labels. The test fails if the text breaks a rule of
// the format.
struct Exposition {
  explicit Exposition(const std::string& text) {
    static const std::string kName = "([a-zA-Z_:][a-zA-Z0-9_:]*)";
    static const std::regex kHelp("# HELP " + kName + " (.+)"), kType("# TYPE " + kName + " (counter|gauge)"),
        kSample(kName + R"re((\{[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"(,[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*")*\})? ([0-9]+))re");
    EXPECT_TRUE(text.ends_with("\n"));
    std::istringstream lines(text);
    std::string family, helped;
    for (std::string line; std::getline(lines, line);) {
      SCOPED_TRACE(line);
      std::smatch parts;
      if (std::regex_match(line, parts, kHelp)) {
        helped = parts[1];
      } else if (std::regex_match(line, parts, kType)) {
        family = parts[1];
        EXPECT_EQ(family, helped) << "HELP comes first";
        EXPECT_TRUE(types.emplace(family, parts[2]).second) << "a family comes once, in one piece";
        EXPECT_EQ(family.ends_with("_total"), parts[2] == "counter");
      } else if (std::regex_match(line, parts, kSample)) {
        EXPECT_EQ(parts[1], family) << "a sample belongs to the family above";
        EXPECT_TRUE(samples.emplace(parts[1].str() + parts[2].str(), std::stoull(parts[4])).second) << "a series twice";
        sampled.insert(family);
      } else {
        ADD_FAILURE() << "is neither HELP nor TYPE nor a sample";
      }
    }
    EXPECT_EQ(sampled.size(), types.size()) << "a family without a sample";
  }
  std::uint64_t at(const std::string& series) const { return samples.at("sglang:" + series); }

  std::map<std::string, std::string> types;
  std::map<std::string, std::uint64_t> samples;
  std::set<std::string> sampled;
};

TEST(MetricsFile, IsTakenAndTellsWhatTheReportTells) {
  const Folder folder;
  // The host tier is so small that backups find no space.
  const Settings settings = conversations({.requests = 90, .output = 800, .gap_ms = 15}, 3).save(folder) + tight() +
                            Settings{"tiers.host.tokens=2048"};
  const Json report = simulate_to(folder, "run", settings, false);
  const Exposition metrics(text_of(folder / "run/metrics.prom"));
  const auto tokens = [&](const char* key) { return report.at("tokens").at(key).get<std::uint64_t>(); };
  EXPECT_EQ(metrics.at("num_requests_total"), report.at("requests").at("total"));
  EXPECT_EQ(metrics.at("num_retractions_total"), report.at("requests").at("retractions"));
  EXPECT_EQ(metrics.at("prompt_tokens_total"), tokens("prompt"));
  EXPECT_EQ(metrics.at("generation_tokens_total"), tokens("output"));
  EXPECT_EQ(metrics.at("cached_tokens_total{cache_source=\"device\"}"), tokens("hit_device"));
  EXPECT_EQ(metrics.at("cached_tokens_total{cache_source=\"host\"}"), tokens("hit_host"));
  const Json &device = report.at("tiers").at(0), &host = report.at("tiers").at(1);
  EXPECT_EQ(metrics.at("evicted_tokens_total"), device.at("evicted_pages").get<std::uint64_t>() * 64);
  EXPECT_EQ(metrics.at("hicache_host_total_tokens"), 2048U);
  EXPECT_EQ(metrics.at("hicache_host_used_tokens"), host.at("used_pages_max").get<std::uint64_t>() * 64);
  EXPECT_EQ(metrics.at("hicache_backup_bytes_total"), host.at("written_bytes"));
  EXPECT_GT(host.at("dropped").size(), 0U);
  for (const auto& [reason, pages] : host.at("dropped").items()) {
    EXPECT_EQ(metrics.at("hicache_backup_dropped_tokens_total{reason=\"" + reason + "\"}"),
              pages.get<std::uint64_t>() * 64);
  }
  EXPECT_EQ(metrics.types.at("sglang:hicache_host_used_tokens"), "gauge");
}

TEST(MetricsFile, SaysNothingOfATierThatIsNotThere) {
  const Folder folder;
  simulate_to(folder, "run", conversations({.requests = 20}, 1).save(folder), false);
  const Exposition metrics(text_of(folder / "run/metrics.prom"));
  for (const auto& [series, value] : metrics.samples) {
    EXPECT_EQ(series.find("host"), std::string::npos) << series;
    EXPECT_EQ(series.find("hicache"), std::string::npos) << series;
  }
}

}  // namespace
}  // namespace kvtwin::test
