// kvtwin compare: equal runs, runs that differ from some decision on, and folders that cannot be compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

class Compare : public testing::Test {
 protected:
  Compare() : settings_(conversations({.requests = 60, .gap_ms = 40}, 1).save(folder_) + tight()) {}

  Json make(const std::string& name, const Settings& more = {}, bool journal = false,
            const std::string& world = kAnyWorld) {
    return simulate_to(folder_, name, settings_ + more, journal, world);
  }
  Outcome compare(const std::string& a, const std::string& b, bool json = true) {
    std::vector<std::string> arguments{"compare", folder_ / a, folder_ / b};
    if (json) arguments.emplace_back("--json");
    return run(arguments);
  }
  void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << part << outcome.err;
  }
  static Json figure(const Json& json, const std::string& name) {
    for (const Json& figure : json.at("figures")) {
      if (figure.at("name") == name) return figure;
    }
    throw std::runtime_error("no figure " + name);
  }

  Folder folder_;
  Settings settings_;
};

TEST_F(Compare, OfOneWorkIsEqualRecordedOrNot) {
  const Json report = make("plain");
  make("recorded", {}, true);
  const Outcome words = compare("plain", "recorded", false);
  EXPECT_EQ(words.exit_code, 0) << words.err;
  EXPECT_NE(words.out.find("decisions  equal (" + report.at("decisions").at("count").dump() + ")"), std::string::npos)
      << words.out;
  EXPECT_EQ(words.out.find("key  "), std::string::npos) << words.out;
  const Json json = compare("recorded", "plain").json();
  EXPECT_TRUE(json.at("equal"));
  EXPECT_EQ(json.at("equal_decisions"), report.at("decisions").at("count"));
  EXPECT_EQ(json.at("keys").size(), 0U);
  EXPECT_EQ(json.at("a").at("from"), "journal");
  EXPECT_EQ(json.at("b").at("from"), "simulation");
  for (const Json& figure : json.at("figures")) EXPECT_EQ(figure.at("a"), figure.at("b")) << figure;
  // Compares a folder with itself, and folders without a report.
  EXPECT_EQ(compare("plain", "plain").exit_code, 0);
  fs::remove(folder_ / "plain/report.json");
  fs::remove(folder_ / "recorded/report.json");
  EXPECT_EQ(compare("plain", "recorded").exit_code, 0);
}

TEST_F(Compare, TellsTheFiguresOfTheReports) {
  const Json a = make("a"), b = make("b", {"tiers.host.tokens=0", "model.kv_dtype=fp8"}, true);
  const Outcome outcome = compare("a", "b");
  EXPECT_EQ(outcome.exit_code, 3);
  const Json json = Json::parse(outcome.out);
  const auto expect = [&](const char* name, const char* section, const char* key) {
    EXPECT_EQ(figure(json, name).at("a").get<double>(), a.at(section).at(key).get<double>()) << name;
    EXPECT_EQ(figure(json, name).at("b").get<double>(), b.at(section).at(key).get<double>()) << name;
  };
  expect("hit on the device", "tokens", "hit_device");
  expect("hit on the host", "tokens", "hit_host");
  expect("miss", "tokens", "miss");
  expect("TTFT mean, s", "ttft_seconds", "mean");
  expect("TTFT p99, s", "ttft_seconds", "p99");
  expect("queue, s", "ttft_parts_seconds", "queue");
  expect("load wait, s", "ttft_parts_seconds", "load_wait");
  expect("compute, s", "ttft_parts_seconds", "compute");
  expect("requests/s", "throughput", "requests_per_second");
  expect("requests rejected", "requests", "rejected");
  EXPECT_EQ(figure(json, "evicted from device").at("a"), a.at("tiers").at(0).at("evicted_pages").get<double>());
  EXPECT_EQ(figure(json, "evicted from host").at("b"), b.at("tiers").at(1).at("evicted_pages").get<double>());
  EXPECT_EQ(figure(json, "gpu0.h2d, bytes").at("a"), a.at("lanes").at(0).at("bytes").get<double>());
  EXPECT_EQ(figure(json, "gpu0.h2d, bytes").at("b"), Json()) << "nothing moved there";
  ASSERT_EQ(json.at("keys").size(), 2U);
  EXPECT_EQ(json.at("keys").at(0).at("key"), "model.kv_dtype");
  EXPECT_EQ(json.at("keys").at(1), (Json{{"key", "tiers.host.tokens"}, {"a", "40064"}, {"b", "0"}}));
}

// Deciding again does not know when a user had nothing to send.
TEST_F(Compare, TakesTheRatesOfUsersFromTheReports) {
  settings_ = tight() + Settings{"workload.loop=closed",
                                 "workload.generate.kind=sessions",
                                 "workload.generate.users=8",
                                 "workload.generate.requests=40",
                                 "workload.generate.prompt_tokens=300",
                                 "workload.generate.output_tokens=8",
                                 "workload.generate.turns=3",
                                 "workload.generate.prefix_tokens=0",
                                 "workload.generate.think_s=5",
                                 "workload.generate.start_spread_s=5"};
  const Json report = make("simulated");
  make("recorded", {}, true);
  const Json json = compare("simulated", "recorded").json();
  for (const char* run : {"a", "b"}) {
    EXPECT_EQ(figure(json, "requests/s").at(run), report.at("throughput").at("requests_per_second")) << run;
  }
}

// The front end of an engine delays requests in simulations; the decisions know nothing of it.
TEST_F(Compare, CountsTheTimesOfTheFrontEnd) {
  const Json report = make("simulated", {"engine=sglang"});
  make("recorded", {"engine=sglang"}, true);
  const Json json = compare("simulated", "recorded").json();
  for (const char* run : {"a", "b"}) {
    EXPECT_EQ(figure(json, "TTFT mean, s").at(run), report.at("ttft_seconds").at("mean")) << run;
    EXPECT_EQ(figure(json, "queue, s").at(run), report.at("ttft_parts_seconds").at("queue")) << run;
  }
}

TEST_F(Compare, NamesTheFirstDecisionThatDiffers) {
  for (const std::string& world : worlds()) {
    SCOPED_TRACE(world);
    make("lru-" + world, {}, true, world);
    make("fifo-" + world, {"cache.eviction=fifo"}, false, world);
    const Outcome words = compare("lru-" + world, "fifo-" + world, false);
    EXPECT_EQ(words.exit_code, 3) << words.err;
    for (const char* part : {"cache.eviction: 'lru' | 'fifo'", "decisions  differ from the ", "both       ",
                             "a          evict_", "b          evict_"}) {
      EXPECT_NE(words.out.find(part), std::string::npos) << part << words.out;
    }
    const Outcome outcome = compare("lru-" + world, "fifo-" + world);
    EXPECT_EQ(outcome.exit_code, 3);
    const Json json = Json::parse(outcome.out);
    EXPECT_FALSE(json.at("equal"));
    const Json& first = json.at("first_difference");
    EXPECT_EQ(first.at("ordinal").get<std::uint64_t>(), json.at("equal_decisions").get<std::uint64_t>() + 1);
    EXPECT_NE(first.at("a"), first.at("b"));
    EXPECT_EQ(json.at("before").size(), 2U);
    // A replay of the journal with the other policy differs first at the same input.
    const Json replayed =
        Json::parse(run({"replay", folder_ / ("lru-" + world), "--set", "cache.eviction=fifo", "--json"}).out);
    EXPECT_LT(replayed.at("decisions").at("count"), first.at("ordinal"));
    EXPECT_GE(replayed.at("got").at("count"), first.at("ordinal"));
    const std::size_t within =
        first.at("ordinal").get<std::size_t>() - replayed.at("decisions").at("count").get<std::size_t>() - 1;
    if (within < replayed.at("decided").size()) {
      Json told = first.at("b");
      told.erase("at_s");
      EXPECT_EQ(told, replayed.at("decided").at(within));
    }
  }
}

TEST_F(Compare, OfARunThatGoesOnSaysWhereTheOtherEnded) {
  make("whole", {}, true);
  make("fewer", {"workload.limit=59"}, true);
  const Json json = Json::parse(compare("whole", "fewer").out);
  EXPECT_FALSE(json.at("equal"));
  const Json& first = json.at("first_difference");
  EXPECT_TRUE(first.at("a").is_object());
}

TEST_F(Compare, OfACutJournalHoldsAsFarAsItGoes) {
  make("whole", {}, true);
  make("other", {"cache.eviction=fifo"}, true);
  const Taken journal(folder_ / "whole/journal.kvj");
  for (const std::size_t records : {std::size_t{10}, journal.records.size()}) {
    write_bytes(folder_ / "cut.kvj", std::span(journal.bytes).first(journal.ends[records]));
    for (const bool first : {true, false}) {
      const Outcome outcome = first ? compare("cut.kvj", "whole", false) : compare("whole", "cut.kvj", false);
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_NE(outcome.err.find("is truncated: equal up to record " + std::to_string(records)), std::string::npos)
          << outcome.err;
    }
  }
  EXPECT_EQ(compare("cut.kvj", "other", false).exit_code, 3) << "parts before the cut";
}

TEST_F(Compare, OfARunThatIsNoLongerDecidedAsItWasDiffers) {
  Json report = make("run");
  report["decisions"]["digest"] = "0123456789abcdef";
  write_text(folder_ / "run/report.json", report.dump());
  const Outcome outcome = compare("run", "run", false);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.out.find("0123456789abcdef"), std::string::npos) << outcome.out;
}

TEST_F(Compare, RefusesWhatItCantCompare) {
  make("run");
  const std::string whole = folder_ / "run";
  refused({"compare"}, {"runs"});
  refused({"compare", whole}, {"two run folders"});
  refused({"compare", whole, whole, whole}, {"two run folders"});
  refused({"compare", whole, whole, "--vary", "cache.eviction=lru,fifo"}, {"needs one experiment file"});
  refused({"compare", whole, whole, "--seeds", "3"}, {"--seeds requires --vary"});
  refused({"compare", folder_ / "nowhere", whole}, {"nowhere", "is not there"});
  refused({"compare", whole, folder_ / "trace.jsonl"}, {"trace.jsonl", "is no journal"});
  fs::create_directory(folder_ / "empty");
  refused({"compare", whole, folder_ / "empty"}, {"empty", "neither journal.kvj nor experiment.resolved.toml"});
  // Only a child process finds this error.
  fs::remove(folder_ / "trace.jsonl");
  refused({"compare", whole, whole}, {"trace.jsonl", "No such file"});
}

}  // namespace
}  // namespace kvtwin::test
