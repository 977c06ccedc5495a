// Warnings: if a tier is too small for its task, or a machine cannot keep up, the run prints a warning with the reason
// and the size that would be enough. Otherwise it prints none.
#include "lab/report/warnings.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

kvtwin::Setup setup_of(const Settings& settings) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

std::vector<Finding> only_warnings(std::vector<Finding> found) {
  std::erase_if(found, [](const Finding& finding) { return !finding.is_warning; });
  return found;
}

std::vector<Finding> warnings(const kvtwin::Setup& setup, const Metrics& metrics = Metrics(),
                              const std::vector<LaneUse>& lanes = {}, bool open_loop = true) {
  return only_warnings(findings_of(setup, {metrics, lanes, 1000 * kNsPerSecond, open_loop}));
}

// Returns the text of the warning of this kind, or "" if there is none.
std::string sentence(const std::vector<Finding>& list, WarningKind kind) {
  const auto found = std::ranges::find(list, kind, &Finding::kind);
  return found == list.end() ? "" : found->sentence;
}

void expect_parts(const std::string& sentence, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(sentence.find(part), std::string::npos) << part << ": " << sentence;
}

// A page has 8 MiB.
const Settings kSmallHost{"tiers.device.tokens=12032", "tiers.host.tokens=6016"};

TEST(Warnings, AHostNoLargerThanTheDevice) {
  expect_parts(sentence(warnings(setup_of(kSmallHost)), WarningKind::host_not_larger),
               {"host tier's 94 pages (0.7344 GiB an engine, all ranks together)", "device tier's 188",
                "give tiers.host more than 1.5 GiB, or 3.0 GiB for as much again"});
  for (const Settings& fine :
       {Settings{"tiers.host.tokens=12096"}, Settings{"tiers.host.tokens=0"}, Settings{"cache.write_policy=write_back"},
        Settings{"cache.write_policy=write_through_selective"}, Settings{"cache.reclaim_shadowed=true"}}) {
    EXPECT_EQ(warnings(setup_of(kSmallHost + fine)).size(), 0U) << fine[0];
  }
  EXPECT_NE(
      sentence(warnings(setup_of(kSmallHost + Settings{"tiers.host.tokens=12032"})), WarningKind::host_not_larger), "")
      << "as large isn't larger";
}

// DeepSeek-V3 on eight ranks: an MLA latent cannot be split between ranks.
TEST(Warnings, CopiesOfRanksAreCounted) {
  expect_parts(sentence(warnings(setup_of({"model.name=deepseek-v3", "hardware.name=h200-pcie5", "parallel.tp=8",
                                           "tiers.host.gib=256"})),
                        WarningKind::host_not_larger),
               {"7,639 pages (256 GiB", "each of the 8 ranks keeps its own copy of KV that an MLA model has once",
                "8 x 70,272 = 562,176 bytes"});
  const std::string split =
      sentence(warnings(setup_of({"parallel.tp=8", "tiers.host.gib=1"})), WarningKind::host_not_larger);
  EXPECT_NE(split, "");
  EXPECT_EQ(split.find("copy of KV"), std::string::npos) << split;
}

std::unique_ptr<Metrics> revoked(std::string_view reason) {
  auto m = std::make_unique<Metrics>();
  m->prefetches.issued = 20;
  m->prefetches.revoked = 11;
  m->prefetches.revoked_reasons[reason] = 11;
  return m;
}

TEST(Warnings, RevokedPrefetchesSayWhyAndWhatCuresThem) {
  const Settings roomy{"tiers.device.tokens=12032", "tiers.host.tokens=64000", "tiers.disk.tokens=640000"};
  const kvtwin::Setup setup = setup_of(roomy);
  const auto told = [&](const Metrics& m) { return sentence(warnings(setup, m), WarningKind::prefetches_revoked); };
  const std::string nothing = told(*revoked("miss"));
  expect_parts(nothing, {"11 of 20 prefetches (55 %) were revoked: 11 found nothing in storage"});
  EXPECT_EQ(nothing.find("new"), std::string::npos) << "the pages' history is not known: " << nothing;
  const auto dropped = revoked("miss");
  dropped->tier(Tier::host).dropped["capacity"] = 900;
  dropped->tier(Tier::host).written = 100;
  expect_parts(
      sentence(warnings(setup_of(roomy + Settings{"tiers.host.tokens=12096"}), *dropped), WarningKind::backups_dropped),
      {"900 of 1,000", "(90 %)", "3.0 GiB an engine", "share of 0.50 that prefetches may take"});
  expect_parts(told(*revoked("capacity")), {"found no room on the host"});
  expect_parts(told(*revoked("too_short")), {"cache.prefetch_min_tokens = 256"});
  expect_parts(told(*revoked("too_slow")), {"cache.prefetch_admission = threshold"});
  expect_parts(told(*revoked("stopped")), {"when timeout let the request go on"});
  const auto half = revoked("miss");
  half->prefetches.revoked = 10;
  EXPECT_EQ(told(*half), "") << "not more than half";
  const auto few = revoked("miss");
  few->prefetches.issued = few->prefetches.revoked = 9;
  EXPECT_EQ(told(*few), "") << "too few";
}

TEST(Warnings, DeclinedPrefetchesSayWhy) {
  const kvtwin::Setup setup = setup_of({"tiers.host.tokens=64000", "tiers.disk.tokens=640000"});
  Metrics m;
  m.prefetches.issued = 10;
  m.prefetches.declined["too_short"] = 1000;
  EXPECT_EQ(sentence(warnings(setup, m), WarningKind::prefetches_declined), "") << "there was next to nothing to fetch";
  m.prefetches.declined["rate_limited"] = 11;
  expect_parts(sentence(warnings(setup, m), WarningKind::prefetches_declined),
               {"1,011 of 1,021 prefetches", "11 because others in flight took the share of 0.50 of the host"});
  m.prefetches.declined["not_backed_up"] = 12;
  expect_parts(sentence(warnings(setup, m), WarningKind::prefetches_declined),
               {"1,023 of 1,033", "12 because what lies above on the device was not on the host"});
}

// Returns the warning for 90 requests, one per second, of which the i-th waits wait(i) seconds, on a GPU that is busy
// for the share `busy` of the time.
template <typename Wait>
std::string saturation(Wait wait, double busy, bool open_loop = true) {
  Metrics m;
  for (RequestId i = 0; i < 90; ++i) {
    RequestRecord record;
    record.request = i;
    record.arrival = static_cast<TimeNs>(i) * kNsPerSecond;
    Event event;
    event.time = record.arrival;
    event.record = &record;
    m.on_event(event);
    record.compute_ns = kNsPerSecond;
    record.queue_ns = static_cast<TimeNs>(wait(i) * 1e9);
    record.first_token = record.arrival + record.queue_ns + record.compute_ns;
    record.finished = record.first_token;
    record.output_tokens = 1;
    event.kind = EventKind::finished;
    m.on_event(event);
  }
  LaneUse lane;
  lane.name = "compute";
  lane.window_busy_ns.assign(180, static_cast<TimeNs>(busy * 1e9));
  return sentence(only_warnings(findings_of(setup_of({}), {m, {lane}, 180 * kNsPerSecond, open_loop})),
                  WarningKind::saturated);
}

TEST(Warnings, AQueueThatGrowsOnABusyMachine) {
  const auto grows = [](RequestId i) { return static_cast<double>(i); };
  expect_parts(saturation(grows, 0.98),
               {"waited 14.5 s on average in the first third of the run and 74.5 s in the last",
                "compute was busy 98 % of the time", "1.01 requests/s arrive and 0.5 are served",
                "about 3 engines (cluster.engines), or arrivals 2.1 times as far apart"});
  EXPECT_EQ(saturation(grows, 0.94), "") << "not busy";
  EXPECT_EQ(saturation(grows, 0.98, false), "") << "clients wait for their answers";
  EXPECT_EQ(saturation([](RequestId) { return 50.0; }, 1), "") << "long, but no longer";
  EXPECT_EQ(saturation([](RequestId i) { return i < 60 ? 0.1 : 0.9; }, 1), "") << "ups and downs";
  EXPECT_EQ(saturation([](RequestId i) { return 90.0 - static_cast<double>(i); }, 1), "") << "falls";
}

TEST(WaitTrend, OfManyRequestsIsThatOfTheirThirds) {
  for (const RequestId count : {3U, 768U, 769U, 5000U, 100'000U}) {
    WaitTrend trend;
    // Not in the order of arrival, because requests don't finish in this order.
    for (RequestId i = 0; i < count; ++i) trend.add(i ^ 1U, static_cast<TimeNs>(i ^ 1U) * kNsPerSecond);
    const auto thirds = trend.thirds();
    ASSERT_TRUE(thirds);
    EXPECT_EQ(trend.count(), count);
    const double all = static_cast<double>(count);
    EXPECT_NEAR(thirds->first_s, all / 6, 1 + all / 300);
    EXPECT_NEAR(thirds->last_s, all * 5 / 6, 1 + all / 300);
  }
  EXPECT_FALSE(WaitTrend().thirds());
}

TEST(Warnings, OfRowsAreCountedByName) {
  for (const WarningKind kind : kWarningKinds) {
    expect_parts(warnings_text({std::string(name_of(kind))}), {std::string(name_of(kind)) + " in 1 of 1"});
    EXPECT_NE(meaning_of(kind), "unknown");
  }
  EXPECT_EQ(warnings_text({"", "", ""}), "");
  const std::string text = warnings_text({"saturated", "host_not_larger saturated", ""});
  expect_parts(text, {"warning    host_not_larger in 1 of 3: ", "warning    saturated in 2 of 3: "});
  EXPECT_EQ(std::ranges::count(text, '\n'), 2);
}

// ---- the program ---------------------------------------------------------------------------------------

bool has(const Json& report, const std::string& name) {
  const auto names = report.value("warnings", std::vector<std::string>());
  return std::ranges::find(names, name) != names.end();
}

// Storage (L3) below a host tier that is smaller than the device tier gets few pages. The warning names a host size,
// and with this size the problem must be gone.
TEST(Warnings, AStarvedTierIsNamedAndCured) {
  const Folder folder;
  const Settings work = conversations({}, 1).save(folder) + kSmallHost + Settings{"tiers.disk.tokens=400000"};
  const Simulated starved = simulate(work);
  EXPECT_TRUE(has(starved.report, "host_not_larger")) << starved.report.at("notes");
  EXPECT_TRUE(has(starved.report, "backups_dropped")) << starved.report.at("notes");
  const std::string notes = starved.report.at("notes").dump();
  const std::string before = " page copies to the host";
  ASSERT_NE(notes.find(before), std::string::npos) << notes;
  const std::string after = "is not stored either: ";
  const std::size_t at = notes.find(after, notes.find(before));
  ASSERT_NE(at, std::string::npos) << notes;
  const double gib = std::stod(notes.substr(at + after.size()));
  const Simulated cured = simulate(work + Settings{"tiers.host.gib=" + std::to_string(gib)});
  EXPECT_FALSE(has(cured.report, "host_not_larger")) << cured.report.at("notes");
  EXPECT_FALSE(has(cured.report, "backups_dropped")) << cured.report.at("notes");
  EXPECT_GT(cured.tokens("hit_disk"), 2 * starved.tokens("hit_disk"));
}

// Returns the number after `before` in the first sentence that has it; nothing if no sentence has it.
std::optional<double> named_size(const Json& report, const std::string& before) {
  for (const Json& note : report.at("notes")) {
    const std::string text = note;
    const std::size_t at = text.find(before);
    if (at == std::string::npos) continue;
    std::string digits = text.substr(at + before.size(), 20);
    std::erase(digits, ',');
    return std::stod(digits);
  }
  return std::nullopt;
}

// A run with a condition, the sentence that names a size, the key that takes the size, and the counter that this size
// brings to 0.
struct Cure {
  const char* name;
  Settings work;
  std::string before, key;
  std::uint64_t (*counter)(const Json& report);
};

std::uint64_t at_or_0(const Json& object, const char* key) { return object.value(key, std::uint64_t{0}); }

TEST(Warnings, ANamedSizeEndsTheCondition) {
  const Folder folder;
  const Settings work = conversations({}, 1).save(folder);
  const Settings groups{"workload.generate.kind=groups",           "workload.generate.groups=1",
                        "workload.generate.prompts_per_group=40",  "workload.generate.prefix_tokens=240",
                        "workload.generate.question_tokens=400",   "workload.generate.output_tokens=16",
                        "workload.generate.requests_per_second=4", "tiers.device.tokens=120000"};
  const Cure cures[] = {
      {"too long", work + Settings{"tiers.device.tokens=256"}, "tiers.device must hold at least ",
       "tiers.device.tokens",
       [](const Json& report) { return report.at("requests").at("rejected").get<std::uint64_t>(); }},
      {"below a page", groups + Settings{"cache.page_tokens=784"}, "the largest page that hits is ",
       "cache.page_tokens", [](const Json& report) { return std::uint64_t{has(report, "prompts_below_page")}; }},
      {"evicted from memory", work + Settings{"tiers.device.tokens=12032"}, "tiers.host of ", "tiers.host.gib",
       [](const Json& report) {
         const Json& missed = report.at("missed_pages");
         return at_or_0(missed, "evicted_device") + at_or_0(missed, "evicted_host") +
                at_or_0(missed, "lost_while_waiting");
       }},
      {"over memory", work + Settings{"tiers.host.gib=3", "tiers.host.memory_gib=2"}, "tiers.host.gib may be ",
       "tiers.host.gib", [](const Json& report) { return std::uint64_t{has(report, "host_over_memory")}; }},
  };
  for (const Cure& cure : cures) {
    SCOPED_TRACE(cure.name);
    const Simulated ill = simulate(cure.work);
    EXPECT_GT(cure.counter(ill.report), 0U) << ill.report.at("notes");
    const std::optional<double> size = named_size(ill.report, cure.before);
    ASSERT_TRUE(size) << ill.report.at("notes");
    char text[40];
    std::snprintf(text, sizeof text, "%.10g", *size);
    const Simulated cured = simulate(cure.work + Settings{cure.key + "=" + text});
    EXPECT_EQ(cure.counter(cured.report), 0U) << cured.report.at("notes");
    EXPECT_FALSE(named_size(cured.report, cure.before)) << cured.report.at("notes");
  }
}

// The counts of a run whose gets take 7 times as long as the lease.
TEST(Warnings, AGetThatOutlastsItsLeaseIsNamed) {
  const kvtwin::Setup setup =
      setup_of({"tiers.host.tokens=64000", "tiers.remote.tokens=640000", "tiers.remote.store=mooncake"});
  Metrics m;
  EXPECT_EQ(sentence(warnings(setup, m), WarningKind::storage_fell_short), "");
  m.fell_short[Tier::remote]["lease"] = {1520, 34 * kNsPerSecond};
  m.prefetches.issued = 311;
  m.prefetches.failed = 221;
  expect_parts(sentence(warnings(setup, m), WarningKind::storage_fell_short),
               {"1,520 pages were not read from the remote tier", "lease of 5 s: the longest took 34 s", "7 times"});
  expect_parts(sentence(warnings(setup, m), WarningKind::prefetches_failed),
               {"221 of 311 prefetches (71 %)", "(lease)"});
}

TEST(Warnings, SaturationIsSaidInEveryWorldAndOnlyThen) {
  const Folder folder;
  const Settings work =
      conversations({.requests = 600, .gap_ms = 50}, 2).save(folder) +
      Settings{"tiers.device.tokens=40064", "hardware.name=cpu-host", "model.name=tiny", "scheduler.max_running=4"};
  for (const char* world : {kAnyWorld, "events"}) {
    EXPECT_TRUE(has(simulate(work + Settings{"workload.time_scale=0.02"}, world).report, "saturated")) << world;
    EXPECT_FALSE(has(simulate(work + Settings{"workload.time_scale=20"}, world).report, "saturated")) << world;
  }
}

TEST(Warnings, RowsOfSweepAndCompareHaveThem) {
  const Folder folder;
  const Settings work = conversations({.requests = 40}, 1).save(folder);
  write_text(folder / "x.toml", "[tiers]\ndevice.tokens = 12032\n");
  for (const char* command : {"sweep", "compare"}) {
    std::vector<std::string> words{command,   folder / "x.toml", "--world",
                                   kAnyWorld, "--vary",          "tiers.host.tokens=6016,64000"};
    for (const std::string& setting : work) words.insert(words.end(), {"--set", setting});
    const Outcome screen = run(words);
    EXPECT_NE(screen.out.find("warning    host_not_larger in 1 of 2: "), std::string::npos) << screen.out << screen.err;
    words.emplace_back("--json");
    const Outcome rows = run(words);
    EXPECT_NE(rows.out.find("\"warnings\":\"host_not_larger"), std::string::npos) << rows.out;
    EXPECT_NE(rows.out.find("\"warnings\":\"\""), std::string::npos) << rows.out;
  }
}

}  // namespace
}  // namespace kvtwin::test
