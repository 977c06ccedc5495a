// metrics.prom has the text format of Prometheus, version 0.0.4. This test parses it by the rules of the format.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "lab/report/metrics.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

// The metric families with their types, and the samples by name and labels. The test fails if the text breaks a rule of
// the format.
struct Exposition {
  explicit Exposition(const std::string& text) {
    static const std::string kName = "([a-zA-Z_:][a-zA-Z0-9_:]*)";
    static const std::regex kHelp("# HELP " + kName + " (.+)"), kType("# TYPE " + kName + " (counter|gauge|histogram)"),
        kSample(
            kName +
            R"re((\{[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"(,[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*")*\})? ([0-9]+(\.[0-9]+)?(e[-+][0-9]+)?))re"),
        kPart("_(bucket|sum|count)$");
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
        const bool is_histogram = types.at(family) == "histogram";
        EXPECT_EQ(is_histogram ? std::regex_replace(parts[1].str(), kPart, "") : parts[1].str(), family)
            << "a sample belongs to the family above";
        const std::string series = parts[1].str() + parts[2].str();
        EXPECT_TRUE(values.emplace(series, std::stod(parts[4])).second) << "a series twice";
        if (parts[5].length() + parts[6].length() == 0) samples.emplace(series, std::stoull(parts[4]));
        EXPECT_TRUE(samples.contains(series) || series.ends_with("_sum")) << "a count is whole";
        sampled.insert(family);
      } else {
        ADD_FAILURE() << "is neither HELP nor TYPE nor a sample";
      }
    }
    EXPECT_EQ(sampled.size(), types.size()) << "a family without a sample";
  }
  std::uint64_t at(const std::string& series) const { return samples.at("sglang:" + series); }
  // Returns the cumulative counts of a histogram, by ascending bound. The test fails if they break the format's rules.
  std::vector<std::uint64_t> buckets(const std::string& name) const {
    std::map<double, std::uint64_t> found;
    const std::string begin = "sglang:" + name + "_bucket{le=\"";
    for (const auto& [series, count] : samples) {
      if (!series.starts_with(begin)) continue;
      const std::string bound = series.substr(begin.size(), series.size() - begin.size() - 2);
      found[bound == "+Inf" ? 1e300 : std::stod(bound)] = count;
    }
    std::vector<std::uint64_t> counts;
    for (const auto& [bound, count] : found) counts.push_back(count);
    EXPECT_TRUE(std::ranges::is_sorted(counts)) << name;
    EXPECT_EQ(counts.empty() ? 0 : counts.back(), at(name + "_count")) << name;
    return counts;
  }
  double sum(const std::string& name) const { return values.at("sglang:" + name + "_sum"); }

  std::map<std::string, std::string> types;
  std::map<std::string, double> values;  // of all series; samples has those that are whole
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

TEST(MetricsFile, HistogramsCountTheTransfersOfTheLanes) {
  const Folder folder;
  const Settings settings = conversations({.requests = 120, .output = 40, .gap_ms = 15}, 3).save(folder) + tight() +
                            Settings{"tiers.host.tokens=8192", "tiers.disk.tokens=262144", "parallel.tp=2"};
  const Json report = simulate_to(folder, "run", settings, false);
  const Exposition metrics(text_of(folder / "run/metrics.prom"));
  const auto lane = [&](const char* name) {
    for (const Json& one : report.at("lanes")) {
      if (one.at("name") == name) return one;
    }
    throw std::logic_error(name);
  };
  for (const auto& [histogram, name, buckets] :
       {std::tuple{"prefetch_pgs", "disk_read", 6u}, std::tuple{"backup_pgs", "disk_write", 6u},
        std::tuple{"prefetch_bandwidth", "disk_read", 8u}, std::tuple{"backup_bandwidth", "disk_write", 8u},
        std::tuple{"load_back_duration_seconds", "gpu0.h2d", 19u},
        std::tuple{"hicache_backup_duration_seconds", "gpu0.d2h", 14u}}) {
    EXPECT_EQ(metrics.types.at("sglang:" + std::string(histogram)), "histogram");
    const std::vector<std::uint64_t> counts = metrics.buckets(histogram);
    EXPECT_EQ(counts.size(), buckets) << histogram;
    EXPECT_GT(counts.back(), 0u) << histogram;
    EXPECT_EQ(counts.back(), lane(name).at("transfers")) << histogram;
    EXPECT_GT(metrics.sum(histogram), 0) << histogram;
  }
  const double page_bytes = lane("disk_write").at("bytes").get<double>() / metrics.sum("backup_pgs");
  EXPECT_EQ(lane("disk_read").at("bytes").get<double>() / metrics.sum("prefetch_pgs"), page_bytes);
  EXPECT_EQ(static_cast<double>(metrics.at("backuped_tokens_total")), metrics.sum("backup_pgs") * 64);
  // The lane is busy exactly while it copies.
  EXPECT_NEAR(metrics.sum("load_back_duration_seconds"),
              lane("gpu0.h2d").at("busy_fraction").get<double>() * report.at("simulated_seconds").get<double>(), 1e-6);
}

// Each token that a look-up found is used, or was brought by another request, or has a reason.
TEST(MetricsFile, TellsWhatBecameOfStorageHits) {
  const Folder folder;
  const Settings base = conversations({.requests = 120, .output = 40, .gap_ms = 15}, 3).save(folder) + tight() +
                        Settings{"tiers.disk.tokens=262144", "cache.prefetch_min_tokens=64"};
  const auto metrics_of = [&](const char* name, const Settings& more) {
    const Json report = simulate_to(folder, name, base + more, false);
    const Exposition metrics(text_of(folder / (std::string(name) + "/metrics.prom")));
    const std::uint64_t hit = metrics.at("storage_prefetch_hit_tokens_total");
    EXPECT_GE(hit, metrics.at("prefetched_tokens_total")) << name;
    EXPECT_GE(hit, report.at("tokens").at("hit_disk").get<std::uint64_t>()) << name;
    std::uint64_t unfulfilled = 0;
    for (const auto& [series, value] : metrics.samples) {
      if (series.starts_with("sglang:storage_prefetch_unfulfilled_tokens_total{")) unfulfilled += value;
    }
    EXPECT_GT(hit, 0U) << name;
    EXPECT_LE(unfulfilled + report.at("tokens").at("hit_disk").get<std::uint64_t>(), hit) << name;
    return metrics;
  };
  const auto unfulfilled = [](const Exposition& metrics, const std::string& reason) {
    return metrics.at("storage_prefetch_unfulfilled_tokens_total{reason=\"" + reason + "\"}");
  };
  const Exposition waits = metrics_of("waits", {"tiers.host.tokens=32768", "cache.prefetch_policy=wait_complete"});
  for (const char* reason : {"host_capacity", "storage_transfer", "deadline", "dropped"}) {
    EXPECT_EQ(unfulfilled(waits, reason), 0U) << reason;
  }
  EXPECT_EQ(waits.at("storage_prefetch_deferred_tokens_total{reason=\"host_capacity\"}"), 0U);
  const Exposition hasty = metrics_of(
      "hasty", {"tiers.host.tokens=32768", "cache.prefetch_policy=best_effort", "hardware.set.disk_read_gbps=0.05"});
  EXPECT_GT(unfulfilled(hasty, "deadline"), 0U);
  const Exposition narrow = metrics_of("narrow", {"tiers.host.tokens=2048", "cache.prefetch_policy=wait_complete"});
  EXPECT_GT(unfulfilled(narrow, "host_capacity"), 0U);
  const Exposition longer = metrics_of("longer", {"tiers.host.tokens=8192", "cache.prefetch_min_tokens=1024"});
  EXPECT_GT(unfulfilled(longer, "below_threshold"), 0U);
}

// Of 8 pages of a read, 2 arrive before the stop and 3 after it. SGLang drops the 3 pages, and counts them as missed.
TEST(MetricsFile, PagesAfterAStopMissedTheDeadline) {
  for (const bool aborted : {false, true}) {
    Metrics metrics;
    const auto tell = [&](EventKind kind, Pages pages, Reason reason = Reason::none) {
      Event event{.kind = kind, .tier = Tier::host, .reason = reason, .pages = pages};
      event.operation = OperationId{1};
      event.request = 7;
      metrics.on_event(event);
    };
    tell(EventKind::prefetch_issued, 8);
    tell(EventKind::prefetch_hit, 8);
    tell(EventKind::prefetch_started, 8);
    tell(EventKind::prefetch_stopped, 6, aborted ? Reason::aborted : Reason::stopped);
    tell(EventKind::prefetch_wasted, 3, Reason::stopped);
    tell(EventKind::prefetch_done, 5, Reason::stopped);
    tell(EventKind::prefetch_used, 2);
    EXPECT_EQ(metrics.prefetches.arrived, 5U);
    EXPECT_EQ(metrics.prefetches.arrived_in_time(), 2U);
    EXPECT_EQ(metrics.server.unfulfilled.at(aborted ? "dropped" : "deadline"), 6U);
    EXPECT_EQ(metrics.server.unfulfilled.at("cache_admission_shortfall"), 0U);
  }
}

// A request waits on after a stop. Its next prefetch reads from a nearer tier, and ends first.
TEST(MetricsFile, EachOfTwoPrefetchesHasItsOwnPages) {
  Metrics metrics;
  const auto tell = [&](EventKind kind, Pages pages, OperationId operation, Reason reason = Reason::none) {
    Event event{.kind = kind, .tier = Tier::host, .reason = reason, .pages = pages};
    event.operation = operation;
    event.request = 7;
    metrics.on_event(event);
  };
  for (const std::uint64_t first : {10U, 20U}) {
    tell(EventKind::prefetch_issued, 8, OperationId::none);
    tell(EventKind::prefetch_hit, 8, OperationId::none);
    tell(EventKind::prefetch_started, 4, OperationId{first});
    tell(EventKind::prefetch_started, 4, OperationId{first + 1});
    if (first == 10) tell(EventKind::prefetch_stopped, 8, OperationId{10}, Reason::aborted);
  }
  tell(EventKind::prefetch_done, 8, OperationId{20});
  EXPECT_EQ(metrics.server.unfulfilled.at("dropped") + metrics.server.unfulfilled.at("deadline"), 0U);
  tell(EventKind::prefetch_done, 3, OperationId{10}, Reason::stopped);
  EXPECT_EQ(metrics.server.unfulfilled.at("dropped"), 5U);
  EXPECT_EQ(metrics.server.unfulfilled.at("deadline"), 0U);
}

// A client goes while its prefetch reads. The pages that arrive after that are in the report.
TEST(MetricsFile, PagesAfterAStopAreNotKept) {
  const Folder folder;
  const Settings base = conversations({.requests = 120, .output = 40, .gap_ms = 15}, 3).save(folder) + tight() +
                        Settings{"tiers.disk.tokens=262144", "cache.prefetch_min_tokens=64", "tiers.host.tokens=32768",
                                 "cache.prefetch_policy=best_effort", "hardware.set.disk_read_gbps=0.05"};
  for (const char* style : {"kvtwin", "sglang"}) {
    const Json report =
        simulate_to(folder, style, base + Settings{std::string("cache.rules.prefetch_style=") + style}, false);
    const Json& prefetch = report.at("prefetch");
    const Exposition metrics(text_of(folder / (std::string(style) + "/metrics.prom")));
    const std::uint64_t late = prefetch.at("pages_not_kept").value("stopped", 0U);
    EXPECT_EQ(late > 0, std::string_view(style) == "sglang") << prefetch;
    EXPECT_EQ(metrics.at("prefetched_tokens_total"), (prefetch.at("pages_arrived").get<std::uint64_t>() - late) * 64);
  }
}

// A decision takes no simulated time, so an eviction takes the time in which a request waits for write-backs.
TEST(MetricsFile, EvictionsTakeTheTimeOfTheirWriteBacks) {
  const Folder folder;
  const Settings base = conversations({.requests = 120, .output = 40, .gap_ms = 15}, 3).save(folder) + tight() +
                        Settings{"tiers.host.tokens=65536"};
  const auto metrics_of = [&](const char* policy) {
    const Json report =
        simulate_to(folder, policy, base + Settings{std::string("cache.write_policy=") + policy}, false);
    EXPECT_GT(report.at("tiers").at(0).at("evicted_pages"), 0);
    return Exposition(text_of(folder / (std::string(policy) + "/metrics.prom")));
  };
  const Exposition through = metrics_of("write_through"), back = metrics_of("write_back");
  for (const Exposition* metrics : {&through, &back}) {
    const std::vector<std::uint64_t> counts = metrics->buckets("eviction_duration_seconds");
    EXPECT_EQ(counts.size(), 19U);
    EXPECT_GT(counts.back(), 0U);
    EXPECT_LE(counts.back(), metrics->at("evicted_tokens_total") / 64);
  }
  EXPECT_EQ(through.sum("eviction_duration_seconds"), 0);
  EXPECT_GT(back.sum("eviction_duration_seconds"), 0);
}

// SGLang counts the draft's bytes with the target's.
TEST(MetricsFile, HasThePartsOfTheTargetAndTheDraft) {
  const Folder folder;
  const Settings settings = conversations({.requests = 60, .output = 40, .gap_ms = 15}, 3).save(folder) + tight() +
                            Settings{"tiers.host.tokens=65536", "model.draft.kind=side_pool", "model.draft.config=tiny",
                                     "model.draft.accept_length=2.5"};
  const Json report = simulate_to(folder, "run", settings, false);
  const Exposition metrics(text_of(folder / "run/metrics.prom"));
  std::uint64_t bytes = 0;
  for (const Json& part : report.at("components")) {
    const std::string of = "{component=\"" + part.at("name").get<std::string>() + "\"}";
    EXPECT_GT(part.at("bytes"), 0);
    EXPECT_EQ(metrics.samples.at("kvtwin:component_bytes_total" + of), part.at("bytes"));
    EXPECT_EQ(metrics.samples.at("kvtwin:component_cached_tokens_total" + of),
              part.at("hit_pages").get<std::uint64_t>() * 64);
    bytes += part.at("bytes").get<std::uint64_t>();
  }
  EXPECT_EQ(report.at("components").size(), 2U);
  EXPECT_EQ(bytes, metrics.at("hicache_backup_bytes_total") + metrics.at("load_back_bytes_total"));
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
