// kvtwin explain gives the same numbers as requests.csv for every request, whether the run is replayed from its journal
// or simulated again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "lab/past_run/request_life.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

class Explain : public testing::Test {
 protected:
  // The requests hit on both tiers, load back, wait, are rejected for both reasons, and are retracted.
  static Settings settings(const Folder& folder) {
    TraceText trace = conversations({.requests = 79, .output = 800, .gap_ms = 15}, 3);
    trace.request(60'000, 1, ids(900'000, 200));
    return trace.save(folder) + tight();
  }
  static Outcome explain(const std::string& path, std::uint64_t request, bool json = true) {
    std::vector<std::string> arguments{"explain", path, "--request", std::to_string(request)};
    if (json) arguments.emplace_back("--json");
    return run(arguments);
  }
  static void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
};

std::int64_t ns(const Json& seconds) { return std::llround(seconds.get<double>() * 1e9); }

void expect_row(const Json& told, const Table& table, std::size_t row) {
  EXPECT_EQ(told.at("outcome").get<std::string>(), table.text(row, "outcome"));
  for (const char* column : {"prompt_tokens", "output_tokens", "hit_device", "hit_host", "hit_disk", "hit_remote",
                             "miss", "recomputed_after_stop", "retracted_recompute", "retractions"}) {
    if (table.text(row, column).empty()) {
      EXPECT_FALSE(told.contains(column)) << column;
    } else {
      EXPECT_EQ(told.at(column).get<std::uint64_t>(), table.integer(row, column)) << column;
    }
  }
  for (const char* column :
       {"arrival_s", "queue_s", "prefetch_wait_s", "load_wait_s", "compute_s", "ttft_s", "tpot_s", "e2e_s"}) {
    if (table.text(row, column).empty()) {
      EXPECT_FALSE(told.contains(column)) << column;
    } else {
      EXPECT_EQ(ns(told.at(column)), std::llround(table.number(row, column) * 1e9)) << column;
    }
  }
}

// With the times of a front end, by the journal and by a second simulation, in an open and in a closed loop.
TEST_F(Explain, CountsTheFrontEndAsRequestsCsvDoes) {
  for (const char* loop : {"open", "closed"}) {
    const Folder folder;
    const Settings work = settings(folder) + Settings{"serving.engine=sglang", std::string("workload.loop=") + loop};
    for (const bool journal : {true, false}) {
      const std::string name = journal ? "recorded" : "plain";
      simulate_to(folder, name, work, journal, kAnyWorld);
      const Table table(text_of(folder / (name + "/requests.csv")));
      for (std::uint64_t request = 0; request < table.size(); request += journal ? 1 : 8) {
        SCOPED_TRACE(std::string(loop) + ", " + name + ", request " + std::to_string(request));
        const Json told = explain(folder / name, request).json();
        EXPECT_EQ(told.at("verdict"), "equal");
        expect_row(told, table, table.row_of("request", request));
      }
    }
  }
}

TEST_F(Explain, TellsTheNumbersOfEveryRequest) {
  for (const std::string& world : worlds()) {
    const Folder folder;
    simulate_to(folder, "recorded", settings(folder), true, world);
    simulate_to(folder, "plain", settings(folder), false, world);
    const Table table(text_of(folder / "recorded/requests.csv"));
    ASSERT_EQ(table.size(), 80U);
    std::set<std::string> outcomes, words;
    std::uint64_t stalls = 0, loads = 0, waits = 0;
    for (std::uint64_t request = 0; request < 80; ++request) {
      SCOPED_TRACE(world + ", request " + std::to_string(request));
      const Json told = explain(folder / "recorded", request).json();
      EXPECT_EQ(told.at("from"), "journal");
      EXPECT_EQ(told.at("verdict"), "equal");
      const std::size_t row = table.row_of("request", request);
      expect_row(told, table, row);
      outcomes.insert(table.text(row, "outcome"));

      // The parts of each number must add up to the number.
      const std::uint64_t before = told.at("found").at("waiting");
      EXPECT_EQ(told.at("found").at("ahead").size(), std::min<std::size_t>(before, 8));
      waits += before;
      if (told.at("outcome") != "completed") continue;
      const std::uint64_t retractions = told.at("retractions");
      EXPECT_EQ(told.at("admissions").size(), retractions + 1);
      EXPECT_EQ(told.at("retracted").size(), retractions);
      EXPECT_EQ(told.at("admissions").at(0).at("at_s"), told.at("admitted_s"));
      std::uint64_t tokens = 0;
      std::int64_t computed = 0, stalled = 0;
      for (const Json& prefill : told.at("prefills")) {
        if (prefill.at("end_s") > told.at("first_token_s")) break;  // computed again after a retraction
        tokens += prefill.at("tokens").get<std::uint64_t>();
        computed += ns(prefill.at("end_s")) - ns(prefill.at("begin_s"));
        stalled += ns(prefill.at("stalled_s"));
      }
      if (retractions == 0) {
        EXPECT_EQ(tokens, told.at("miss"));
      }
      EXPECT_EQ(computed - stalled, ns(told.at("compute_s")));
      EXPECT_EQ(stalled, ns(told.at("load_wait_s")));
      EXPECT_EQ(ns(told.at("ttft_s")), ns(told.at("queue_s")) + ns(told.at("prefetch_wait_s")) +
                                           ns(told.at("load_wait_s")) + ns(told.at("compute_s")));
      stalls += stalled > 0;
      for (const Json& load : told.at("loads")) {
        if (load.at("refused") != "none") continue;
        ++loads;
        EXPECT_GT(load.at("landed_s").get<double>(), load.at("queued_s").get<double>());
      }
      for (const Json& moment : told.at("cache")) {
        words.insert(moment.at("what"));
        EXPECT_GE(moment.at("at_s"), told.at("first_token_s"));
        EXPECT_GE(moment.at("pages"), 1);
        EXPECT_LE(moment.at("first_page").get<std::uint64_t>() + moment.at("pages").get<std::uint64_t>(),
                  told.at("pages_left").get<std::uint64_t>());
      }
      if (request % 10 == 0) {
        Json again = explain(folder / "plain", request).json();
        EXPECT_EQ(again.at("from"), "simulation");
        again["from"] = "journal";
        EXPECT_EQ(again, told);
      }
    }
    // The test is only meaningful if all of this happened.
    EXPECT_EQ(outcomes, (std::set<std::string>{"completed", "rejected:queue_full", "rejected:too_long"}));
    EXPECT_EQ(words, (std::set<std::string>{"backup", "evict_device", "evict_host"}));
    EXPECT_GT(table.sum("retractions"), 0U);
    EXPECT_GT(stalls, 0U);
    EXPECT_GT(loads, 0U);
    EXPECT_GT(waits, 0U);
  }
}

TEST_F(Explain, SaysItInWords) {
  const Folder folder;
  simulate_to(folder, "run", settings(folder), true);
  const Table table(text_of(folder / "run/requests.csv"));
  const auto with = [&](const std::string& column, auto wanted) -> std::uint64_t {
    for (std::size_t row = 0; row < table.size(); ++row) {
      if (wanted(table.text(row, column))) return table.integer(row, "request");
    }
    ADD_FAILURE() << "no request with such a " << column;
    return 0;
  };
  const auto says = [&](std::uint64_t request, const std::vector<std::string>& parts) {
    const Outcome outcome = explain(folder / "run", request, false);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    for (const std::string& part : parts)
      EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  };
  const auto some = [](const std::string& cell) { return !cell.empty() && cell != "0"; };
  says(with("outcome", [](const auto& cell) { return cell == "completed"; }),
       {"arrived", "prompt tokens", "found", "admitted", "prefix", "prefill", "TTFT", "decode", "finished"});
  says(with("hit_host", some), {"load-back", "queued at", "landed at", "stalled"});
  says(with("retractions", some), {"retracted", "the device was full", "admitted again at"});
  says(with("outcome", [](const auto& cell) { return cell == "rejected:too_long"; }),
       {"rejected    too long", "the device holds 12032 tokens", "tiers.device"});
  says(with("outcome", [](const auto& cell) { return cell == "rejected:queue_full"; }),
       {"rejected    the queue was full", "40 requests waited", "scheduler.max_waiting"});
}

TEST_F(Explain, TellsOfPreemptionsAndOfWaitsForLoads) {
  const Folder folder;
  simulate_to(folder, "run", settings(folder) + Settings{"scheduler.style=vllm"}, true);
  const Table table(text_of(folder / "run/requests.csv"));
  std::uint64_t preempted = 0, waited = 0;
  for (std::size_t row = 0; row < table.size(); ++row) {
    const std::uint64_t request = table.integer(row, "request");
    const Json told = explain(folder / "run", request).json();
    EXPECT_EQ(told.at("verdict"), "equal");
    expect_row(told, table, row);
    const bool was_preempted = told.value("retractions", 0) > 0;
    if (was_preempted && preempted++ == 0) {
      const std::string words = explain(folder / "run", request, false).out;
      EXPECT_NE(words.find("preempted   at "), std::string::npos) << words;
      EXPECT_NE(words.find("it was admitted last"), std::string::npos) << words;
      EXPECT_EQ(words.find("retracted"), std::string::npos) << words;
    }
    waited += told.value("load_wait_s", 0.0) > 0;
  }
  EXPECT_GT(preempted, 0U);
  EXPECT_GT(waited, 0U);
}

TEST_F(Explain, TellsWhatThereIsOfACutJournal) {
  const Folder folder;
  simulate_to(folder, "run", settings(folder), true);
  const Taken journal(folder / "run/journal.kvj");
  write_bytes(folder / "cut.kvj", std::span(journal.bytes).first(journal.ends[journal.records.size() / 2]));
  const Outcome words = explain(folder / "cut.kvj", 0, false);
  EXPECT_EQ(words.exit_code, 0) << words.err;
  EXPECT_NE(words.out.find("note        "), std::string::npos) << words.out;
  EXPECT_NE(words.out.find("is truncated: equal up to record"), std::string::npos) << words.out;
  std::set<std::string> outcomes;
  std::uint64_t request = 0;
  for (Outcome outcome = explain(folder / "cut.kvj", 0); outcome.exit_code == 0;
       outcome = explain(folder / "cut.kvj", ++request)) {
    EXPECT_EQ(outcome.json().at("verdict"), "truncated");
    outcomes.insert(outcome.json().at("outcome"));
    if (request % 8 == 0) {
      EXPECT_EQ(explain(folder / "cut.kvj", request, false).exit_code, 0);
    }
  }
  EXPECT_TRUE(outcomes.contains("unfinished") && outcomes.contains("completed"));
  refused({"explain", folder / "cut.kvj", "--request", std::to_string(request)},
          {"there are " + std::to_string(request) + ", 0 to " + std::to_string(request - 1), "as far as"});
}

TEST_F(Explain, RefusesWhatItCantTell) {
  const Folder folder;
  const Json report = simulate_to(folder, "run", conversations({.requests = 5}, 1).save(folder), false);
  refused({"explain", folder / "run"}, {"--request"});
  refused({"explain", folder / "run", "--request", "-1"}, {"--request"});
  refused({"explain", folder / "run", "--request", "x"}, {"--request"});
  refused({"explain", folder / "run", "--request", "5"}, {"request 5 is unknown", "there are 5, 0 to 4"});
  refused({"explain", folder / "nowhere", "--request", "0"}, {"nowhere", "is not there"});
  fs::create_directory(folder / "empty");
  refused({"explain", folder / "empty", "--request", "0"},
          {"empty", "neither journal.kvj nor experiment.resolved.toml"});
  refused({"explain", folder / "trace.jsonl", "--request", "0"}, {"trace.jsonl", "is no journal"});
  // If the report is not from this run, explain still answers, but says that the run is a different one.
  Json other = report;
  other["decisions"]["digest"] = "0123456789abcdef";
  write_text(folder / "run/report.json", other.dump());
  const Outcome outcome = explain(folder / "run", 0, false);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_NE(outcome.out.find("0123456789abcdef"), std::string::npos) << outcome.out;
  other["world"] = "real";
  write_text(folder / "run/report.json", other.dump());
  refused({"explain", folder / "run", "--request", "0"}, {"real run", "journal.kvj"});
  write_text(folder / "run/report.json", report.dump());
  write_text(folder / "run/experiment.resolved.toml", "nonsense");
  refused({"explain", folder / "run", "--request", "0"}, {"experiment.resolved.toml:1"});
  fs::remove(folder / "trace.jsonl");
  simulate_to(folder, "gone", conversations({.requests = 5}, 1).save(folder), false);
  fs::remove(folder / "trace.jsonl");
  refused({"explain", folder / "gone", "--request", "0"}, {"trace.jsonl", "No such file"});
}

// Returns explain's text for a prompt that returns after L1 and L2 have evicted it, and is loaded from drives of the
// given speed.
std::string told_of_return(const Settings& more) {
  const Folder folder;
  const Settings settings{"workload.generate.kind=returning",
                          "workload.generate.prompt_tokens=8320",
                          "workload.generate.question_tokens=128",
                          "workload.generate.working_set_tokens=66560",
                          "workload.generate.requests=9",
                          "workload.generate.prompt_tokens_per_second=400",
                          "tiers.device.tokens=16640",
                          "tiers.host.tokens=24960",
                          "tiers.disk.tokens=1000000",
                          "cache.prefetch_policy=wait_complete"};
  simulate_to(folder, "run", settings + more, false);
  const Outcome outcome = run({"explain", folder / "run", "--request", "8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

void expect_told(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST_F(Explain, SaysWhatL3DidAndWhetherItPaid) {
  expect_told(told_of_return({"hardware.set.disk_read_gbps=0.5"}),
              {"L3          asked for 8,256 tokens at ", "which neither the device nor the host had",
               "found 8,192 tokens on disk at ", "fetched 8,192 tokens to the host in 2.15 s, 0.5 GB/s",
               "8192 on disk, 128 to compute",
               "worth it?   fetching 8,192 tokens took 2.16 s; computing them would have taken about 0.201 s: this L3 "
               "is too slow for this model (see sglang issues 26305 and 12809)"});
  const std::string fast = told_of_return({"hardware.set.disk_read_gbps=50"});
  expect_told(fast, {"49.8 GB/s", "computing them would have taken about 0.201 s: it paid\n"});
}

// A request waits on after a stop. Its next prefetch reads from a nearer tier, and ends first.
TEST(RequestLife, KnowsTheTwoPrefetchesOfARequestByTheirReads) {
  RequestLife life(7, 16);
  const auto at = [&](TimeNs now) {
    Input input;
    input.now = now;
    life.handle(input);
  };
  const auto tell = [&](EventKind kind, TimeNs time, Tier tier, Pages pages, std::uint64_t operation) {
    Event event{.kind = kind, .time = time, .tier = tier, .pages = pages};
    event.operation = OperationId{operation};
    event.request = 7;
    life.on_event(event);
  };
  const auto decide = [&](DecisionKind kind) { life.decided({kind, Reason::none, 7, {}, 4}); };
  for (const auto& [now, tier] : {std::pair{TimeNs{100}, Tier::remote}, {TimeNs{200}, Tier::disk}}) {
    at(now);
    decide(DecisionKind::prefetch);
    tell(EventKind::prefetch_started, now, tier, 4, static_cast<std::uint64_t>(now));
    if (tier == Tier::remote) decide(DecisionKind::stop);
  }
  tell(EventKind::prefetch_done, 300, Tier::host, 4, 200);
  ASSERT_EQ(life.prefetches.size(), 2U);
  EXPECT_EQ(life.prefetches[0].end, -1);
  EXPECT_EQ(life.prefetches[1].end, 300);
  tell(EventKind::prefetch_done, 400, Tier::host, 1, 100);
  EXPECT_EQ(life.prefetches[0].end, 400);
  EXPECT_EQ(life.prefetches[0].arrived, 1U);
  EXPECT_EQ(life.prefetches[1].arrived, 4U);
}

TEST_F(Explain, SaysWhyL3WasNotWaitedFor) {
  expect_told(
      told_of_return({"hardware.set.disk_read_gbps=0.5", "cache.prefetch_policy=timeout",
                      "cache.prefetch_timeout_base_s=0.2", "cache.prefetch_timeout_per_ki_token_s=0",
                      "cache.storage_batch_pages=32"}),
      {"stopped at ",
       "with 0 tokens there, by timeout: its limit was 0.2 s + 0 s per 1,024 tokens x 8,256 tokens asked for = 0.2 s",
       "8,192 tokens of what L3 had were computed after the stop",
       "8320 to compute, of which 8192 are in L3 and the fetch was stopped",
       "worth it?   the request waited 0.2 s for L3, and nothing came of it"});
  expect_told(told_of_return({"cache.prefetch_policy=best_effort"}), {"when best_effort let the request go on"});
  expect_told(told_of_return({"cache.prefetch_min_tokens=10000"}),
              {"not asked for 8,256 tokens at ", ": fewer than cache.prefetch_min_tokens (10000)"});
  expect_told(told_of_return({"cache.path=direct"}),
              {"found 8,192 tokens; loaded straight to the device from ", "it paid\n"});
  const std::string without = told_of_return({"tiers.disk.tokens=0"});
  EXPECT_EQ(without.find("L3"), std::string::npos) << without;
  EXPECT_EQ(without.find("worth it?"), std::string::npos) << without;
}

// Of a model with windows: what a prefix lacked, and that evictions of one step from the tail of a path are one line.
TEST_F(Explain, SaysWhatAPrefixLacked) {
  const Folder folder;
  simulate_to(folder, "run",
              conversations({.requests = 60, .gap_ms = 40}, 1).save(folder) +
                  Settings{"model.name=gpt-oss-20b", "engine=vllm", "cache.page_tokens=16", "tiers.device.gib=2"},
              true);
  std::string all;
  for (int request = 0; request < 60; ++request) {
    all += run({"explain", folder / "run", "--request", std::to_string(request)}).out;
  }
  EXPECT_NE(all.find("tokens of these were in memory, and could not be continued from; the last window is at token "),
            std::string::npos);
  EXPECT_NE(all.find(": windows evicted from the device at "), std::string::npos);
  EXPECT_NE(all.find("pages 0 to "), std::string::npos);
}

TEST_F(Explain, SaysNothingOfCopiesThatVllmsOffloadingMayHave) {
  const Folder folder;
  simulate_to(folder, "run", settings(folder) + Settings{"scheduler.style=vllm", "cache.offload=vllm"}, true);
  std::string all;
  for (int request = 0; request < 30; ++request) {
    all += run({"explain", folder / "run", "--request", std::to_string(request)}).out;
  }
  EXPECT_NE(all.find("evicted from the device at "), std::string::npos);
  EXPECT_EQ(all.find("no copy is left"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
