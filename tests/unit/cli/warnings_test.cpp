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
        Settings{"cache.write_policy=write_through_selective"}, Settings{"cache.rules.reclaim_shadowed=true"}}) {
    EXPECT_EQ(warnings(setup_of(kSmallHost + fine)).size(), 0U) << fine[0];
  }
  EXPECT_NE(
      sentence(warnings(setup_of(kSmallHost + Settings{"tiers.host.tokens=12032"})), WarningKind::host_not_larger), "")
      << "as large isn't larger";
}

// DeepSeek-V3 on eight ranks: an MLA latent cannot be split between ranks.
TEST(Warnings, CopiesOfRanksAreCounted) {
  expect_parts(sentence(warnings(setup_of({"model.name=deepseek-v3", "hardware.name=h200-sxm", "parallel.tp=8",
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

// Returns the text of the first finding of this kind, a warning or not.
std::string finding(const kvtwin::Setup& setup, const Metrics& m, WarningKind kind) {
  return sentence(findings_of(setup, {m, {}, 1000 * kNsPerSecond}), kind);
}

TEST(Warnings, RevokedPrefetchesSayWhyAndWhatCuresThem) {
  const Settings roomy{"tiers.device.tokens=12032", "tiers.host.tokens=64000", "tiers.disk.tokens=640000"};
  const kvtwin::Setup setup = setup_of(roomy);
  const auto told = [&](const Metrics& m) { return sentence(warnings(setup, m), WarningKind::prefetches_revoked); };
  EXPECT_EQ(told(*revoked("miss")), "") << "without the pages' history, a miss is no evidence of a fault";
  expect_parts(finding(setup, *revoked("miss"), WarningKind::prefetches_revoked),
               {"11 of 20 prefetches (55 %) were revoked: 11 found nothing in storage"});
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

// A counter of the report, and the reasons that the policy gives (the events of the same name).
struct CountedReasons {
  const char* counter;
  WarningKind kind;
  std::vector<std::string_view> reasons;
  void (*count)(Metrics& m, std::string_view reason);
};

TEST(Warnings, EachReasonOfEachCounterHasItsSentence) {
  const auto names = [](const std::initializer_list<Reason> reasons) {
    std::vector<std::string_view> list;
    for (const Reason reason : reasons) list.push_back(name_of(reason));
    return list;
  };
  using enum Reason;
  const CountedReasons all[] = {
      {"requests.rejected_reasons", WarningKind::requests_rejected, names({too_long, queue_full}),
       [](Metrics& m, std::string_view reason) { m.rejected[reason] = 7; }},
      {"tiers.device.dropped", WarningKind::backups_dropped, names({host_pressure, transfer_failed}),
       [](Metrics& m, std::string_view reason) { m.tier(Tier::device).dropped[reason] = 7; }},
      {"tiers.host.dropped", WarningKind::backups_dropped, names({capacity, host_pressure, transfer_failed}),
       [](Metrics& m, std::string_view reason) { m.tier(Tier::host).dropped[reason] = 7; }},
      {"tiers.disk.dropped", WarningKind::backups_dropped, names({backlog, capacity, transfer_failed}),
       [](Metrics& m, std::string_view reason) { m.tier(Tier::disk).dropped[reason] = 7; }},
      {"prefetch.revoked_reasons", WarningKind::prefetches_revoked,
       names({miss, capacity, too_short, too_slow, stopped, duplicate, transfer_failed, anchor_lost}),
       [](Metrics& m, std::string_view reason) {
         m.prefetches.issued = m.prefetches.revoked = m.prefetches.revoked_reasons[reason] = 7;
       }},
      {"prefetch.declined", WarningKind::prefetches_declined, names({too_short, rate_limited, not_backed_up, too_slow}),
       [](Metrics& m, std::string_view reason) { m.prefetches.declined[reason] = 7; }},
      {"loads.declined_pages", WarningKind::loads_declined, names({below_threshold, quota, too_slow}),
       [](Metrics& m, std::string_view reason) { m.loads.declined[reason] = 7; }},
      {"loads.failed_pages", WarningKind::loads_declined, names({transfer_failed}),
       [](Metrics& m, std::string_view) { m.loads.failed = 7; }},
      {"prefetch.failed", WarningKind::prefetches_failed, names({transfer_failed}),
       [](Metrics& m, std::string_view) { m.prefetches.issued = m.prefetches.failed = 7; }},
      {"requests.failed", WarningKind::requests_failed, names({aborted}),
       [](Metrics& m, std::string_view) { m.arrived = m.aborted = 7; }},
      {"storage.fell_short",
       WarningKind::storage_fell_short,
       {name_of(Cause::missing), name_of(Cause::corrupt), name_of(Cause::io_error), name_of(Cause::unreachable),
        name_of(Cause::full), name_of(Cause::lease)},
       [](Metrics& m, std::string_view cause) {
         m.fell_short[Tier::disk][cause] = {7, kNsPerSecond};
       }},
  };
  const kvtwin::Setup setup = setup_of({"tiers.host.tokens=64000", "tiers.disk.tokens=640000"});
  for (const CountedReasons& one : all) {
    std::vector<std::string> sentences;
    for (const std::string_view reason : one.reasons) {
      SCOPED_TRACE(std::string(one.counter) + " " + std::string(reason));
      EXPECT_EQ(finding(setup, Metrics(), one.kind), "") << "the counter is 0";
      Metrics m;
      one.count(m, reason);
      const std::string text = finding(setup, m, one.kind);
      expect_parts(text, {"7"});
      EXPECT_EQ(text.find("with the reason"), std::string::npos) << "the table lacks the reason: " << text;
      EXPECT_EQ(std::ranges::count(sentences, text), 0) << "two reasons have one sentence: " << text;
      sentences.push_back(text);
    }
  }
}

TEST(Warnings, WritesOfPrefillEnginesThatFailedAreNamed) {
  const kvtwin::Setup setup = setup_of({});
  const Metrics m;
  HandOverFigures figures{.hand_overs = 90, .writes = 100};
  const auto told = [&] {
    return sentence(findings_of(setup, {.metrics = m, .lanes = {}, .hand_overs = &figures}),
                    WarningKind::hand_overs_failed);
  };
  EXPECT_EQ(told(), "");
  figures.failed_writes = 8;
  figures.fell_back = 5;
  expect_parts(told(), {"8 of 100 writes", "5 requests were computed by their decode engine"});
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
               {"1,023 of 1,033", "12 because pages above them, on the device, were not on the host"});
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
  const auto names = report.value("warnings", Json::array()).get<std::vector<std::string>>();
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

// Returns the first sentence that has `part`; "" if there is none.
std::string note_with(const Json& report, const std::string& part) {
  for (const Json& note : report.at("notes")) {
    if (note.get<std::string>().find(part) != std::string::npos) return note;
  }
  return "";
}

// Returns the number after `says` and, behind it, `before`.
std::optional<double> named_size(const std::string& text, const std::string& says, const std::string& before) {
  const std::size_t from = text.find(says);
  const std::size_t at = from == std::string::npos ? from : text.find(before, from);
  if (at == std::string::npos) return std::nullopt;
  std::string digits = text.substr(at + before.size(), 20);
  std::erase(digits, ',');
  return std::stod(digits);
}

// A run with a condition, the sentence about it, the settings that the sentence names, and the counter that they bring
// to 0. The cured run is the nearest one without the condition: it has no such sentence.
struct Cure {
  const char* name;
  Settings work;
  std::string says, before;  // the sentence has `says`, and behind it the size after `before`; empty: it names no size
  std::string cure;          // key=, for the size; key=value without a size
  std::uint64_t (*counter)(const Json& report);
  std::string with = {};  // key=value that the sentence names too; empty: nothing else
};

std::uint64_t at_or_0(const Json& object, const char* key) { return object.value(key, std::uint64_t{0}); }
std::uint64_t declined(const Json& report, const char* reason) {
  return at_or_0(report.at("prefetch").at("declined"), reason);
}
std::uint64_t revoked(const Json& report, const char* reason) {
  return at_or_0(report.at("prefetch").at("revoked_reasons"), reason);
}
std::uint64_t not_loaded(const Json& report, const char* reason) {
  return at_or_0(report.at("loads").at("declined_pages"), reason);
}
std::uint64_t dropped(const Json& report, const char* reason) {
  std::uint64_t pages = 0;
  for (const Json& tier : report.at("tiers")) pages += at_or_0(tier.at("dropped"), reason);
  return pages;
}
std::uint64_t fell_short(const Json& report, const char* cause) {
  return at_or_0(report.at("storage").at("fell_short"), cause);
}

void expect_cured(const Cure& cure) {
  SCOPED_TRACE(cure.name);
  const Simulated ill = simulate(cure.work);
  EXPECT_GT(cure.counter(ill.report), 0U) << ill.report.at("notes");
  const std::string text = note_with(ill.report, cure.says);
  ASSERT_NE(text, "") << ill.report.at("notes");
  std::string setting = cure.cure;
  if (!cure.before.empty()) {
    const std::optional<double> size = named_size(text, cure.says, cure.before);
    ASSERT_TRUE(size) << text;
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.10g", *size);
    setting += digits;
  } else {
    EXPECT_NE(text.find(setting.substr(0, setting.find('='))), std::string::npos) << "it names the key: " << text;
  }
  Settings named{setting};
  if (!cure.with.empty()) {
    const std::size_t equals = cure.with.find('=');
    EXPECT_NE(text.find(cure.with.substr(0, equals) + " = " + cure.with.substr(equals + 1)), std::string::npos) << text;
    named.push_back(cure.with);
  }
  const Simulated cured = simulate(cure.work + named);
  EXPECT_EQ(cure.counter(cured.report), 0U) << setting << ": " << cured.report.at("notes");
  EXPECT_EQ(note_with(cured.report, cure.says), "") << setting;
}

TEST(Warnings, ANamedSizeEndsTheCondition) {
  const Folder folder;
  const Settings work = conversations({}, 1).save(folder);
  const Settings groups{"workload.generate.kind=groups",           "workload.generate.groups=1",
                        "workload.generate.prompts_per_group=40",  "workload.generate.prefix_tokens=240",
                        "workload.generate.question_tokens=400",   "workload.generate.output_tokens=16",
                        "workload.generate.requests_per_second=4", "tiers.device.tokens=120000"};
  const Cure cures[] = {
      {"too long", work + Settings{"tiers.device.tokens=256"}, "do not fit into", "tiers.device must hold at least ",
       "tiers.device.tokens=",
       [](const Json& report) { return report.at("requests").at("rejected").get<std::uint64_t>(); }},
      {"full queue", work + Settings{"scheduler.max_waiting=1", "workload.time_scale=0.01"}, "requests waited already",
       "", "scheduler.max_waiting=0",
       [](const Json& report) { return report.at("requests").at("rejected").get<std::uint64_t>(); }},
      {"below a page", groups + Settings{"cache.page_tokens=784"}, "lie below one page",
       "the largest page that hits is ",
       "cache.page_tokens=", [](const Json& report) { return std::uint64_t{has(report, "prompts_below_page")}; }},
      {"evicted from memory", work + Settings{"tiers.device.tokens=12032"}, "without a copy below", "tiers.host of ",
       "tiers.host.gib=",
       [](const Json& report) {
         const Json& missed = report.at("missed_pages");
         return at_or_0(missed, "evicted_device") + at_or_0(missed, "evicted_host") +
                at_or_0(missed, "lost_while_waiting");
       }},
      {"over memory", work + Settings{"tiers.host.gib=3", "tiers.host.memory_gib=2"}, "more than the host has",
       "tiers.host.gib may be ",
       "tiers.host.gib=", [](const Json& report) { return std::uint64_t{has(report, "host_over_memory")}; }},
      {"over the memory of the machine", work + Settings{"hardware.name=h100-sxm", "tiers.host.gib=3000"},
       "more than the 2048 GiB of the host", "tiers.host.gib may be ",
       "tiers.host.gib=", [](const Json& report) { return std::uint64_t{has(report, "host_over_memory")}; }},
  };
  for (const Cure& cure : cures) expect_cured(cure);
}

TEST(Warnings, ANamedSizeEndsLostWrites) {
  const Folder folder;
  const Settings work = conversations({}, 1).save(folder) + Settings{"tiers.device.tokens=12032"};
  const Settings disk{"tiers.disk.tokens=400000"};
  const Cure cures[] = {
      {"copies to a small host", work + Settings{"tiers.host.tokens=6016"}, "page copies to the host",
       "in transfers: ", "tiers.host.gib=", [](const Json& report) { return dropped(report, "capacity"); }},
      {"write-back to a small host", work + Settings{"tiers.host.tokens=6016", "cache.write_policy=write_back"},
       "that write_back owes them", "tiers.host of ",
       "tiers.host.gib=", [](const Json& report) { return dropped(report, "host_pressure"); }},
      {"writes in flight", work + disk + Settings{"tiers.host.tokens=24064", "hardware.set.disk_write_gbps=0.05"},
       "writes in flight held", "tiers.host of ",
       "tiers.host.gib=", [](const Json& report) { return dropped(report, "backlog"); }},
      {"a small disk tier", work + Settings{"tiers.host.tokens=24064", "tiers.disk.tokens=512"},
       "as all its pages were in use", "tiers.disk of ",
       "tiers.disk.gib=", [](const Json& report) { return dropped(report, "capacity"); }},
      {"a full remote tier",
       work + Settings{"tiers.host.tokens=24064", "tiers.remote.tokens=64000", "tiers.remote.store=simm",
                       "cluster.engines=2"},
       "The remote tier was full", "tiers.remote of ",
       "tiers.remote.gib=", [](const Json& report) { return fell_short(report, "full"); }},
  };
  for (const Cure& cure : cures) expect_cured(cure);
}

TEST(Warnings, ANamedSizeEndsRefusedPrefetches) {
  const Folder folder;
  const Settings work = conversations({}, 1).save(folder) +
                        Settings{"tiers.device.tokens=12032", "tiers.host.tokens=24064", "tiers.disk.tokens=400000"};
  const Settings slow{"hardware.set.disk_read_gbps=0.5"};
  const Cure cures[] = {
      {"others in flight", work + slow + Settings{"cache.rules.prefetch_host_share=0.05"}, "others in flight took",
       "tiers.host of ", "tiers.host.gib=", [](const Json& report) { return declined(report, "rate_limited"); }},
      {"not on the host", work + Settings{"cache.write_policy=write_through_selective"},
       "copies pages at their first visit", "", "cache.write_policy=write_through",
       [](const Json& report) { return std::uint64_t{note_with(report, "copies pages at their first visit") != ""}; }},
      {"not on the host for dropped copies", work + Settings{"tiers.host.tokens=6016"}, "as copies were dropped", ": ",
       "tiers.host.gib=",
       [](const Json& report) { return std::uint64_t{note_with(report, "as copies were dropped") != ""}; }},
      {"asked for too little", work + Settings{"cache.prefetch_min_tokens=2048"}, "for fewer tokens than",
       "cache.prefetch_min_tokens = 2048: ", "cache.prefetch_min_tokens=",
       [](const Json& report) { return declined(report, "too_short"); }},
      {"found too little", work + Settings{"cache.prefetch_min_tokens=2048"}, "found fewer tokens than",
       "cache.prefetch_min_tokens = 2048: ", "cache.prefetch_min_tokens=",
       [](const Json& report) { return revoked(report, "too_short"); }},
      {"no room on the host", work + slow + Settings{"cache.rules.prefetch_host_share=1", "tiers.host.tokens=12096"},
       "found no room on the host", "tiers.host of ",
       "tiers.host.gib=", [](const Json& report) { return revoked(report, "capacity"); }},
      {"too slow", work + slow + Settings{"cache.prefetch_admission=cost"}, "reading would take longer", "",
       "cache.prefetch_admission=threshold", [](const Json& report) { return declined(report, "too_slow"); }},
      {"stopped", work + slow + Settings{"cache.prefetch_policy=best_effort"}, "had no answer from storage when", "",
       "cache.prefetch_policy=wait_complete", [](const Json& report) { return revoked(report, "stopped"); }},
      {"no room on the host for many",
       work + slow + Settings{"cache.rules.prefetch_host_share=0.05", "tiers.host.tokens=12800"},
       "found no room on the host", "tiers.host of ",
       "tiers.host.gib=", [](const Json& report) { return revoked(report, "capacity"); }},
      {"never copied", work + Settings{"cache.write_policy=write_through_selective"}, "before they were stored",
       "tiers.host of ", "tiers.host.gib=",
       [](const Json& report) { return std::uint64_t{note_with(report, "before they were stored") != ""}; },
       "cache.write_policy=write_through"},
      {"evicted while the request waited", work + Settings{"cache.write_policy=write_through_selective"},
       "had been evicted since", "tiers.host of ", "tiers.host.gib=",
       [](const Json& report) { return std::uint64_t{note_with(report, "had been evicted since") != ""}; },
       "cache.write_policy=write_through"},
      {"evicted from storage", work + Settings{"tiers.disk.tokens=40000"}, "storage had evicted", "tiers.disk of ",
       "tiers.disk.gib=",
       [](const Json& report) { return std::uint64_t{note_with(report, "storage had evicted") != ""}; }},
  };
  for (const Cure& cure : cures) expect_cured(cure);
}

TEST(Warnings, ANamedSizeEndsRefusedLoads) {
  const Folder folder;
  const Settings work =
      conversations({}, 1).save(folder) + Settings{"tiers.device.tokens=12032", "tiers.host.tokens=240000"};
  const Cure cures[] = {
      {"short hits", work + Settings{"cache.load_back_min_tokens=2048"}, "shorter than cache.load_back_min_tokens", "",
       "cache.load_back_min_tokens=0", [](const Json& report) { return not_loaded(report, "below_threshold"); }},
      {"long hits", work + Settings{"cache.load_back_quota_tokens=1024"}, "above cache.load_back_quota_tokens", "",
       "cache.load_back_quota_tokens=0", [](const Json& report) { return not_loaded(report, "quota"); }},
      {"slow link", work + Settings{"cache.load_back_admission=cost", "hardware.set.host_link_gbps=0.05"},
       "because computing them takes less time", "", "cache.load_back_admission=threshold",
       [](const Json& report) { return not_loaded(report, "too_slow"); }},
  };
  for (const Cure& cure : cures) expect_cured(cure);
}

// Prompts that come once have no pages in storage. The same prompts, twice, and a disk that keeps few pages: a fault.
TEST(Warnings, NewPromptsAreNoFaultOfAPrefetch) {
  const auto prompts = [](const Folder& folder, std::uint64_t rounds) {
    TraceText trace(64);
    for (std::uint64_t i = 0; i < 40 * rounds; ++i) trace.request(400 * i, 8, ids(1000 * (1 + i % 40), 16));
    return trace.save(folder) + Settings{"tiers.device.tokens=2048", "tiers.host.tokens=4096"};
  };
  const Folder folder;
  const Settings once = prompts(folder, 1);
  const Simulated fresh = simulate(once + Settings{"tiers.disk.tokens=400000"});
  EXPECT_EQ(revoked(fresh.report, "miss"), 40U);
  EXPECT_FALSE(has(fresh.report, "prefetches_revoked")) << fresh.report.at("notes");
  EXPECT_NE(note_with(fresh.report, "40 of 40 prefetches were for pages that no earlier request had"), "")
      << fresh.report.at("notes");
  const Settings twice = prompts(folder, 2);
  const Simulated lost = simulate(twice + Settings{"tiers.disk.tokens=4096"});
  EXPECT_TRUE(has(lost.report, "prefetches_revoked")) << lost.report.at("notes");
  EXPECT_NE(note_with(lost.report, "storage had evicted (tiers.disk of "), "") << lost.report.at("notes");
  const Simulated found = simulate(twice + Settings{"tiers.disk.tokens=400000"});
  EXPECT_EQ(revoked(found.report, "miss"), 40U) << "the first round";
  EXPECT_FALSE(has(found.report, "prefetches_revoked")) << found.report.at("notes");
  EXPECT_EQ(note_with(found.report, "storage had evicted"), "") << found.report.at("notes");
}

// Four engines of two GPUs share the memory of a host of eight.
TEST(Warnings, HostTiersOfAHostShareItsMemory) {
  const Settings engine{"hardware.name=h100-sxm", "parallel.tp=2"};
  const auto told = [&](const Settings& more, bool warns) {
    const kvtwin::Setup setup = setup_of(engine + more);
    const Metrics metrics;
    const std::vector<LaneUse> lanes;
    const std::vector<Finding> found = findings_of(setup, {metrics, lanes, kNsPerSecond, true});
    const std::string text = sentence(found, WarningKind::host_over_memory);
    EXPECT_EQ(sentence(only_warnings(found), WarningKind::host_over_memory), warns ? text : "") << text;
    return text;
  };
  expect_parts(told({"tiers.host.gib=600", "cluster.engines=4"}, true),
               {"600 GiB of DRAM an engine (2 ranks of 300 GiB), 2400 GiB on a host of 8 GPUs",
                "more than the 2048 GiB of the host: tiers.host.gib may be 512 at most"});
  told({"tiers.host.gib=512", "cluster.engines=4"}, false);
  told({"tiers.host.gib=600", "cluster.engines=3"}, false);
  expect_parts(told({"tiers.host.gib=600", "cluster.engines=3", "tiers.host.memory_gib=500"}, true),
               {"tiers.host.gib may be 500 at most (tiers.host.memory_gib)"});
  EXPECT_EQ(told({"tiers.host.gib=512"}, false).find("not known"), std::string::npos);
  expect_parts(told({"tiers.host.gib=50000", "hardware.name=h20"}, false),
               {"the memory of this host is not known (tiers.host.memory_gib)"});
}

// Each role has a host tier of its own. Of two equal ones, one sentence is enough.
TEST(Warnings, HostTiersOfBothRolesAreJudged) {
  const auto host_sentences = [](const Settings& more) {
    std::vector<std::string> list;
    for (const Finding& finding :
         warnings(setup_of(kSmallHost + Settings{"cluster.prefill=2", "cluster.decode=2"} + more))) {
      list.push_back(finding.sentence);
    }
    return list;
  };
  const std::vector<std::string> both = host_sentences({});
  ASSERT_EQ(both.size(), 1U);
  EXPECT_TRUE(both[0].starts_with("The host tier's 94 pages")) << both[0];
  const std::vector<std::string> decode =
      host_sentences({"tiers.host.tokens=24064", "cluster.decode_set=tiers.host.tokens=6016"});
  ASSERT_EQ(decode.size(), 1U);
  EXPECT_TRUE(decode[0].starts_with("decode engines: The host tier's 94 pages")) << decode[0];
  const std::vector<std::string> prefill = host_sentences({"cluster.decode_set=tiers.host.tokens=24064"});
  ASSERT_EQ(prefill.size(), 1U);
  EXPECT_TRUE(prefill[0].starts_with("prefill engines: The host tier's 94 pages")) << prefill[0];
  EXPECT_TRUE(host_sentences({"tiers.host.tokens=24064"}).empty());
  const std::vector<std::string> memory =
      host_sentences({"tiers.host.tokens=24064", "cluster.decode_set=tiers.host.tokens=48128,tiers.host.memory_gib=5"});
  ASSERT_EQ(memory.size(), 1U);
  expect_parts(memory[0], {"decode engines: The host tier takes 5.9 GiB", "tiers.host.gib may be 5 at most"});
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
