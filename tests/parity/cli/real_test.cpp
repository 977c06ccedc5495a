// Tests `kvtwin run`: the run folder, the results, the errors; and the cases in which the decisions must equal those of
// `kvtwin simulate`.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "lab/report/warm_window.hpp"
#include "tests/real_run.hpp"

#if KVTWIN_TEST_REAL
namespace kvtwin::test {
namespace {

std::string key(const std::string& name, std::uint64_t value) { return name + "=" + std::to_string(value); }

// Tiers that hold a few prompts, so that both evict pages and load pages again.
Settings busy(const Folder& folder, std::uint64_t seed) {
  const Conversations c{
      .requests = 80, .block_tokens = 16, .first_blocks = 6, .growth_blocks = 2, .live = 8, .output = 12, .gap_ms = 2};
  return small_model(folder) + conversations(c, seed).save(folder) +
         Settings{"cache.page_tokens=4",       "tiers.device.tokens=800",      "tiers.host.tokens=2400",
                  "scheduler.chunk_tokens=96", "cache.load_back_min_tokens=4", "workload.time_scale=0.1"};
}

const Json& verified(const Simulated& real) { return real.report.at("real").at("verified"); }

TEST(Real, LeavesAWholeRunFolderAndAReportThatAddsUp) {
  for (const char* layout : {"layer_first", "page_first", "page_first_direct", "page_head"}) {
    SCOPED_TRACE(layout);
    const Folder folder;
    const Simulated real = run_for_real(folder, busy(folder, 1) + Settings{std::string("cache.layout=") + layout});
    EXPECT_EQ(real.report.at("world"), "real");
    EXPECT_EQ(real.report.at("device"), KVTWIN_TEST_DEVICE);
    EXPECT_EQ(real.requests("total"), 80U);
    EXPECT_EQ(real.requests("total"), real.requests("completed") + real.requests("rejected") + real.requests("failed"));
    EXPECT_EQ(real.requests("failed"), 0U);
    EXPECT_EQ(real.tokens("prompt"), real.tokens("hit_device") + real.tokens("hit_host") + real.tokens("hit_disk") +
                                         real.tokens("hit_remote") + real.tokens("recomputed_after_stop") +
                                         real.tokens("miss"));
    EXPECT_GT(real.tokens("hit_device"), 0U);
    EXPECT_GT(real.tokens("hit_host"), 0U);
    EXPECT_GE(real.tokens("miss"), real.requests("completed"));
    EXPECT_EQ(verified(real).at("wrong_reads"), 0);
    EXPECT_GT(verified(real).at("pages_read").get<std::uint64_t>(), 0U);
    EXPECT_GT(verified(real).at("pages_audited").get<std::uint64_t>(), 0U);
    EXPECT_GT(real.tier("device").at("evicted_pages").get<std::uint64_t>(), 0U);
    EXPECT_GT(real.tier("host").at("evicted_pages").get<std::uint64_t>(), 0U);

    // A token has 64 bytes.
    EXPECT_EQ(real.lane_bytes("gpu0.d2h"), 64 * real.counter("sglang:hicache_backup_tokens_total"));
    EXPECT_EQ(real.lane_bytes("gpu0.h2d"), 64 * real.counter("sglang:load_back_tokens_total"));
    EXPECT_EQ(Table(real.requests_csv).size(), 80U);
    const Json parts = real.report.at("ttft_parts_seconds");
    const double sum = parts.at("queue").get<double>() + parts.at("prefetch_wait").get<double>() +
                       parts.at("load_wait").get<double>() + parts.at("compute").get<double>();
    EXPECT_NEAR(sum, real.mean_ttft(), 1e-8);
    for (const char* file :
         {"report.json", "experiment.resolved.toml", "requests.csv", "lanes.csv", "metrics.prom", "journal.kvj"}) {
      EXPECT_TRUE(fs::exists(folder.path() / "run" / file)) << file;
    }
    EXPECT_EQ(Json::parse(text_of(folder / "run/report.json")), real.report);
  }
}

TEST(Real, HitsNoMoreThanTheBound) {
  const Folder folder;
  const Simulated real = run_for_real(folder, busy(folder, 1) + Settings{"report.bounds=true"});
  const Json& bounds = real.report.at("bounds");
  EXPECT_LE(real.tokens("hit_device") + real.tokens("hit_host"), bounds.at("eviction_opt_hit_tokens"));
  EXPECT_LE(bounds.at("lru_hit_tokens"), bounds.at("eviction_opt_hit_tokens"));
}

// The window of report.warm is found by the same rule as that of a simulation, from the times of the run.
TEST(Real, CountsTheRequestsOfTheWarmWindow) {
  const Folder folder;
  const Conversations c{
      .requests = 300, .block_tokens = 16, .first_blocks = 6, .growth_blocks = 2, .live = 8, .output = 4, .gap_ms = 2};
  const Settings settings = small_model(folder) + conversations(c, 3).save(folder) +
                            Settings{"cache.page_tokens=4", "tiers.device.tokens=8000", "tiers.host.tokens=16000",
                                     "workload.time_scale=0.5", "report.warm=true"};
  for (const Simulated& run : {run_for_real(folder, settings), simulate(settings)}) {
    SCOPED_TRACE(run.report.at("world"));
    const Table rows(run.requests_csv);
    const auto nanoseconds = [&](std::size_t row, const char* column) {
      return static_cast<TimeNs>(std::llround(rows.number(row, column) * 1e9));
    };
    std::vector<WarmSample> samples;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Tokens hit = rows.integer(row, "hit_device") + rows.integer(row, "hit_host");
      const TimeNs wait = nanoseconds(row, "queue_s") + nanoseconds(row, "load_wait_s");
      samples.push_back({nanoseconds(row, "arrival_s"), wait, rows.integer(row, "prompt_tokens"), hit});
    }
    const WarmWindow window = warm_window(samples, 0);
    const Json& warm = run.report.at("warm");
    EXPECT_NEAR(warm.at("from_s").get<double>(), static_cast<double>(window.from) / 1e9, 1e-8);
    EXPECT_NEAR(warm.at("to_s").get<double>(), static_cast<double>(window.to) / 1e9, 1e-8);
    EXPECT_EQ(warm.at("flat"), window.not_flat.empty());
    EXPECT_EQ(warm.at("times_as_long"), 1) << "clients of a real run are not kept waiting";
    std::uint64_t arrived = 0, ended = 0, hits = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const TimeNs end = samples[row].arrival + nanoseconds(row, "e2e_s");
      ended += window.has(end) ? 1 : 0;
      if (!window.has(samples[row].arrival)) continue;
      ++arrived;
      hits += samples[row].hit;
    }
    EXPECT_EQ(warm.at("requests").at("total"), arrived);
    EXPECT_EQ(warm.at("requests").at("completed"), arrived);
    EXPECT_EQ(
        warm.at("tokens").at("hit_device").get<std::uint64_t>() + warm.at("tokens").at("hit_host").get<std::uint64_t>(),
        hits);
    const double span = static_cast<double>(window.to - window.from) / 1e9;
    EXPECT_NEAR(warm.at("throughput").at("requests_per_second").get<double>() * span, static_cast<double>(ended), 1);
    EXPECT_EQ(run.report.at("throughput"), warm.at("throughput"));
  }
}

TEST(Real, NeedsNoFolder) {
  const Folder folder;
  const Outcome outcome = run(run_arguments(folder, busy(folder, 1), ""));
  EXPECT_EQ(outcome.json().at("world"), "real");
  EXPECT_EQ(outcome.err, "");
}

// ---- equal decisions of both modes -----------------------------------------------------------------------------
//
// Decisions depend on the order of inputs, and this order depends on times. In two cases the order does not depend on
// times:
//  * One request at a time (max_running = 1, fcfs), with tiers so large that nothing is evicted. A request is admitted
//    when the previous one has ended. A backup may end before or after, because no request waits for backups.
//  * Requests so far apart that each one, with its backups, ends before the next arrival. Then the tiers may be small.

void expect_equal_decisions(const Simulated& real, const Simulated& simulated) {
  for (const char* tier : {"hit_device", "hit_host", "miss", "prompt", "output"}) {
    EXPECT_EQ(real.tokens(tier), simulated.tokens(tier)) << tier;
  }
  EXPECT_EQ(real.report.at("decisions"), simulated.report.at("decisions"));
}

TEST(Real, DecidesWhatASimulationDecidesWhenRequestsAreServedOneByOne) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Folder folder;
    const Conversations c{
        .requests = 60, .block_tokens = 16, .first_blocks = 6, .growth_blocks = 2, .gap_ms = seed - 1};
    static constexpr std::uint64_t kPages[] = {1, 4, 16};
    const Settings settings = small_model(folder) + conversations(c, seed).save(folder) +
                              Settings{"scheduler.max_running=1",  "tiers.device.tokens=100000",
                                       "tiers.host.tokens=100000", key("cache.page_tokens", kPages[seed % 3]),
                                       "workload.time_scale=0.1",  "scheduler.chunk_tokens=100"};
    expect_equal_decisions(run_for_real(folder, settings), simulate(settings));
  }
}

// Tries increasing gaps between requests. Uses the first gap at which no request was late on this machine, whatever its
// load.
TEST(Real, DecidesWhatASimulationDecidesWhenRequestsAreFarApart) {
  std::uint64_t evicted = 0, evicted_on_host = 0, loaded = 0, rejected = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Folder folder;
    const Conversations c{.requests = 25,
                          .block_tokens = 16,
                          .first_blocks = 4,
                          .growth_blocks = 2,
                          .live = 4,
                          .output = 10,
                          .least_gap_ms = 1000,
                          .gap_ms = 0};
    const Settings settings = small_model(folder) + conversations(c, seed).save(folder) +
                              Settings{"cache.page_tokens=4",
                                       key("tiers.device.tokens", 280 + 20 * seed),
                                       key("tiers.host.tokens", 400 + 40 * seed),
                                       "cache.load_back_min_tokens=4",
                                       std::string("cache.evict_unit=") + (seed % 2 == 0 ? "page" : "node"),
                                       std::string("cache.io=") + (seed % 3 == 0   ? "auto"
                                                                   : seed % 3 == 1 ? "kernel"
                                                                                   : "direct")};
    const Simulated simulated = simulate(settings);
    Simulated real;
    for (const char* scale : {"0.01", "0.04", "0.16", "0.64"}) {
      real = run_for_real(folder, settings + Settings{std::string("workload.time_scale=") + scale},
                          std::string("run") + scale);
      if (real.digest() == simulated.digest()) break;
    }
    expect_equal_decisions(real, simulated);
    EXPECT_EQ(verified(real).at("wrong_reads"), 0);
    evicted += real.tier("device").at("evicted_pages").get<std::uint64_t>();
    evicted_on_host += real.tier("host").at("evicted_pages").get<std::uint64_t>();
    loaded += real.tokens("hit_host");
    rejected += real.requests("rejected");
  }
  EXPECT_GT(evicted, 0U);
  EXPECT_GT(evicted_on_host, 0U);
  EXPECT_GT(loaded, 0U);
  EXPECT_GT(rejected, 0U);
}

// ---- wrong bytes -----------------------------------------------------------------------------------------------

void expect_flip_found(const char* tier) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Folder folder;
    const Outcome outcome =
        run(run_arguments(folder, busy(folder, seed) + Settings{std::string("real.flip=") + tier, key("seed", seed)}));
    EXPECT_EQ(outcome.exit_code, 1);
    for (const std::string& part :
         {std::string("wrong bytes: page "), std::string(" in the ") + tier + " tier (slot ", std::string("): layer "),
          std::string(", token "), std::string(" wrong reads in all)")}) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    }
    const std::size_t page = outcome.err.find("page ") + 5;
    for (std::size_t i = page; i < page + 32; ++i) EXPECT_TRUE(std::isxdigit(outcome.err.at(i)) != 0) << outcome.err;
    const Json report = Json::parse(text_of(folder / "run/report.json"));
    const Json& seen = report.at("real").at("verified");
    EXPECT_GT(seen.at("wrong_reads").get<std::uint64_t>(), 0U);
    ASSERT_FALSE(seen.at("wrong").empty());
    EXPECT_NE(outcome.err.find(seen.at("wrong").front().get<std::string>()), std::string::npos) << outcome.err;
  }
}

TEST(Real, FindsAFlippedBitOnTheDevice) { expect_flip_found("device"); }
TEST(Real, FindsAFlippedBitOnTheHost) { expect_flip_found("host"); }

// ---- what is refused -------------------------------------------------------------------------------------------

struct Refusal {
  Settings settings;
  std::vector<std::string> arguments;
  std::string says;
};

TEST(Real, RefusesWhatItCantServe) {
  const Folder folder;
  const Settings good = busy(folder, 1);
  const std::vector<Refusal> refusals{
      {{"parallel.tp=2", "tiers.device.tokens=800"}, {}, "parallel.tp"},
      {{}, {"--device", "gpu"}, "--device"},
      {{"real.flip=everything"}, {}, "real.flip"},
      {{"cache.page_tokens=4096", "tiers.host.gib=50000"}, {}, "smaller"},
      {{"cache.page_tokens=4096", "tiers.device.gib=50000"}, {}, "smaller"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.says);
    std::vector<std::string> arguments = run_arguments(folder, good + refusal.settings);
    if (!refusal.arguments.empty()) {
      std::erase(arguments, "--device");
      std::erase(arguments, KVTWIN_TEST_DEVICE);
      arguments.insert(arguments.end(), refusal.arguments.begin(), refusal.arguments.end());
    }
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(refusal.says), std::string::npos) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_FALSE(fs::exists(folder / "run"));
  }
}

// The error names the model and the reason.
TEST(Real, RefusesModelsWhoseCacheItCantCarry) {
  const Folder folder;
  const Settings trace = conversations({.requests = 5}, 1).save(folder);
  const Outcome outcome = run(run_arguments(folder, trace + Settings{"model.name=gpt-oss-120b", "engine=vllm"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("gpt-oss-120b"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("sliding window"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("With engine = sglang"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(Real, LeavesAnEarlierRunAloneUnlessForced) {
  const Folder folder;
  const Settings settings = busy(folder, 1);
  run_for_real(folder, settings);
  const std::string before = text_of(folder / "run/report.json");
  const Outcome refused = run(run_arguments(folder, settings));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--force"), std::string::npos) << refused.err;
  EXPECT_EQ(text_of(folder / "run/report.json"), before);

  write_text(folder.path() / "run" / "left.over", "");
  const Outcome forced = run(run_arguments(folder, settings, "run", {"--force"}));
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_NE(text_of(folder / "run/report.json"), before) << "wall_seconds alone differs";
  EXPECT_FALSE(fs::exists(folder / "run/left.over"));

  // A folder that is not a run folder is never replaced.
  fs::create_directory(folder.path() / "other");
  write_text(folder.path() / "other" / "letter.txt", "dear");
  const Outcome other = run(run_arguments(folder, settings, "other", {"--force"}));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_EQ(text_of(folder / "other/letter.txt"), "dear");

  // An invalid experiment replaces no folder.
  const std::string whole = text_of(folder / "run/report.json");
  EXPECT_EQ(run(run_arguments(folder, settings + Settings{"parallel.tp=2"}, "run", {"--force"})).exit_code, 2);
  EXPECT_EQ(text_of(folder / "run/report.json"), whole);
  // A run that ends before its first request has completed replaces no folder.
  write_text(folder.path() / "bad.jsonl", "no request\n");
  const Settings bad{"workload.trace=" + (folder / "bad.jsonl")};
  EXPECT_EQ(run(run_arguments(folder, settings + bad, "run", {"--force"})).exit_code, 2);
  EXPECT_EQ(text_of(folder / "run/report.json"), whole);
  EXPECT_EQ(run(run_arguments(folder, settings + bad, "new")).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder / "new"));
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
  }
}

// An existing folder may be a mount point, which cannot be renamed. So the program uses the same folder.
TEST(Real, FillsAnEmptyFolder) {
  const Folder folder;
  const Settings settings = busy(folder, 1);
  for (const char* name : {"run", "simulation"}) {
    fs::create_directory(folder.path() / name);
    struct stat before {
    }, after{};
    ASSERT_EQ(stat((folder / name).c_str(), &before), 0);
    if (std::string_view(name) == "run") {
      run_for_real(folder, settings);
    } else {
      write_text(folder.path() / "experiment.toml", "");
      const Outcome outcome = run(simulate_arguments(folder / "experiment.toml", settings, folder / name, kAnyWorld));
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    ASSERT_EQ(stat((folder / name).c_str(), &after), 0);
    EXPECT_EQ(before.st_ino, after.st_ino);
    EXPECT_TRUE(fs::exists(folder.path() / name / "report.json"));
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.path() / name)) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
    }
  }
}

// If no bit was flipped, the drill did not take place, and the report must say so.
TEST(Real, SaysThatNothingWasFlipped) {
  const Folder folder;
  const Outcome outcome =
      run(run_arguments(folder, busy(folder, 1) + Settings{"tiers.host.tokens=0", "real.flip=host"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("nothing was flipped"), std::string::npos) << outcome.err;
}

// An error in the middle of the trace ends the run: exit code 2, a message with the line of the trace, and no report.
TEST(Real, ARunThatBreaksOffLeavesNoReport) {
  const Folder folder;
  TraceText trace(16);
  for (std::uint64_t i = 0; i < 10; ++i) trace.request(i, 3, ids(10 * i, 4));
  const Settings settings = small_model(folder) + trace.save(folder) +
                            Settings{"cache.page_tokens=4", "tiers.device.tokens=800", "tiers.host.tokens=800"};
  write_text(folder / "trace.jsonl", trace.text() + "{\"timestamp\": 11, \"input_length\": \n");
  const Outcome outcome = run(run_arguments(folder, settings));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("trace.jsonl"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder / "run/report.json"));
  write_text(folder / "trace.jsonl", trace.text());
  EXPECT_EQ(run(run_arguments(folder, settings, "run", {"--force"})).exit_code, 0);
  EXPECT_TRUE(fs::exists(folder / "run/report.json"));
}

}  // namespace
}  // namespace kvtwin::test
#endif
