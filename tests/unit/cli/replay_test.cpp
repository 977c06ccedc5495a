// kvtwin replay: its results for a complete journal, a truncated one, an altered one, and a file that is no journal.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "policy/base/parameters.hpp"
#include "tests/paths.hpp"
#include "tests/recorded_run.hpp"

namespace kvtwin::test {
namespace {

class Replay : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new Folder;
    report_ =
        simulate_to(*folder_, "run", conversations({.requests = 60, .gap_ms = 40}, 1).save(*folder_) + tight(), true);
    journal_ = new Taken(*folder_ / "run/journal.kvj");
  }
  static void TearDownTestSuite() {
    delete journal_;
    delete folder_;
  }

  static Outcome replay(const std::string& path, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"replay", path};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  // Replays a journal of these bytes, in a folder of its own.
  static Outcome replay_bytes(std::span<const std::byte> bytes, const std::vector<std::string>& more = {}) {
    const Folder folder;
    write_bytes(folder / "some.kvj", bytes);
    return replay(folder / "some.kvj", more);
  }
  static Outcome replay_records(const std::vector<KeptRecord>& records) {
    return replay_bytes(write_all(records, journal_->text).bytes);
  }

  static void expect(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(outcome.exit_code, code) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out.empty(), code == 2) << "what is refused is said in a sentence";
    if (code == 2) {
      EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    }
    for (const std::string& part : parts) {
      EXPECT_NE((outcome.out + outcome.err).find(part), std::string::npos)
          << "no \"" << part << "\" in " << outcome.out << outcome.err;
    }
  }

  static Folder* folder_;
  static Json report_;
  static Taken* journal_;
};
Folder* Replay::folder_ = nullptr;
Json Replay::report_;
Taken* Replay::journal_ = nullptr;

std::string record_text(std::size_t index, const std::string& kind, std::size_t byte) {
  return "record " + std::to_string(index + 1) + ", a " + kind + " at byte " + std::to_string(byte);
}

TEST_F(Replay, OfAWholeRunIsEqualAndSaysWhatItCost) {
  const std::string digest = report_.at("decisions").at("digest").get<std::string>();
  const std::string count = report_.at("decisions").at("count").dump();
  for (const char* name : {"run", "run/", "run/journal.kvj"}) {
    expect(
        replay(*folder_ / name), 0,
        {std::to_string(journal_->records.size()) + " inputs, " + count + " decisions, digest " + digest + ": equal (",
         "us an input)"});
  }
  const Json json = replay(*folder_ / "run", {"--json"}).json();
  EXPECT_EQ(json.at("verdict"), "equal");
  EXPECT_EQ(json.at("inputs"), journal_->records.size());
  EXPECT_EQ(json.at("decisions"), report_.at("decisions"));
}

TEST_F(Replay, InEveryWorldNeedsNeitherTraceNorWorld) {
  for (const std::string& world : worlds()) {
    const Folder folder;
    simulate_to(folder, "run", conversations({.requests = 30}, 2).save(folder) + tight(), true, world);
    fs::remove(folder / "trace.jsonl");
    fs::remove(folder / "experiment.toml");
    fs::remove(folder / "run/experiment.resolved.toml");
    expect(replay(folder / "run"), 0, {": equal ("});
    fs::remove(folder / "run/report.json");
    expect(replay(folder / "run"), 0, {": equal ("});
  }
}

TEST_F(Replay, ByAnotherEvictionNamesTheFirstInputThatIsDecidedDifferently) {
  const std::vector<std::string> fifo{"--set", "cache.eviction=fifo"};
  const Outcome outcome = replay(*folder_ / "run", fifo);
  expect(outcome, 3, {"is decided differently", "with       cache.eviction=fifo", "expected", "got", "decided "});
  std::vector<std::string> as_json = fifo;
  as_json.emplace_back("--json");
  const Outcome told = replay(*folder_ / "run", as_json);
  EXPECT_EQ(told.exit_code, 3);
  const Json json = Json::parse(told.out);
  EXPECT_EQ(json.at("verdict"), "diverged");
  const std::size_t number = json.at("record").at("number").get<std::size_t>();
  ASSERT_GT(number, 1U);
  ASSERT_LE(number, journal_->records.size());
  EXPECT_EQ(json.at("inputs"), number - 1);
  EXPECT_EQ(json.at("record").at("kind"), std::string(name_of(kind_of(journal_->records[number - 1].input))));
  EXPECT_EQ(json.at("record").at("byte"), journal_->ends[number - 1]);
  EXPECT_EQ(json.at("decisions").at("count"), journal_->records[number - 2].after.count);
  EXPECT_EQ(json.at("expected").at("count"), journal_->records[number - 1].after.count);
  EXPECT_NE(json.at("expected"), json.at("got"));
  EXPECT_GT(json.at("decided").size(), 0U);
  EXPECT_NE(outcome.out.find(record_text(number - 1, "reduction", journal_->ends[number - 1])), std::string::npos)
      << outcome.out;
  // All decisions before this record are equal: cut before the record, the journal is only truncated. Cut after the
  // record, it differs like the complete journal.
  expect(replay_bytes(std::span(journal_->bytes).first(journal_->ends[number - 1]), fifo), 2, {"is truncated"});
  expect(replay_bytes(std::span(journal_->bytes).first(journal_->ends[number]), fifo), 3, {"is decided differently"});
}

TEST_F(Replay, WithSettingsThatChangeNothingIsEqual) {
  expect(replay(*folder_ / "run", {"--set", "sim.world=events", "--set", "workload.trace=nowhere.jsonl"}), 0,
         {": equal ("});
}

TEST_F(Replay, OfAnAlteredCompletionNamesItEvenIfEveryCheckHolds) {
  std::size_t altered = 0;
  for (std::size_t i = 0; i < journal_->records.size() && altered < 5; ++i) {
    std::vector<KeptRecord> records = journal_->records;
    auto* completion = std::get_if<Completion>(&records[i].input.what);
    // A burst that was ended early could also have ended one step later, so it is skipped.
    if (completion == nullptr || completion->steps == 0 || completion->status != Status::done) continue;
    ++altered;
    ++completion->steps;
    const Outcome outcome = replay_records(records);
    expect(outcome, 3, {record_text(i, "completion", journal_->ends[i]), "nothing that a world could have told"});
  }
  EXPECT_EQ(altered, 5U);
}

TEST_F(Replay, OfTwoSwappedRecordsNamesTheFirst) {
  const std::size_t i = journal_->records.size() / 2;
  const std::span<const std::byte> all(journal_->bytes);
  const std::size_t first = journal_->ends[i], second = journal_->ends[i + 1], behind = journal_->ends[i + 2];
  std::vector<std::byte> bytes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  for (const auto piece :
       {all.subspan(second, behind - second), all.subspan(first, second - first), all.subspan(behind)}) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  }
  expect(replay_bytes(bytes), 3, {"record " + std::to_string(i + 1) + ", ", "is corrupt"});
  const Json json = Json::parse(replay_bytes(bytes, {"--json"}).out);
  EXPECT_EQ(json.at("verdict"), "corrupt");
  EXPECT_EQ(json.at("record").at("number"), i + 1);
  EXPECT_EQ(json.at("record").at("byte"), first);

  // The swapped records get valid numbers, times and checksums: an answer before its question is still noticed.
  for (std::size_t at = 0; at + 1 < journal_->records.size(); ++at) {
    if (!std::holds_alternative<Reduction>(journal_->records[at + 1].input.what)) continue;
    std::vector<KeptRecord> records = journal_->records;
    std::swap(records[at].input.what, records[at + 1].input.what);
    std::swap(records[at].keys, records[at + 1].keys);
    expect(replay_records(records), 3, {"record " + std::to_string(at + 1) + ", a reduction"});
    return;
  }
  FAIL() << "no reduction";
}

TEST_F(Replay, OfATruncatedJournalSaysHowFarItIsEqual) {
  const std::span<const std::byte> all(journal_->bytes);
  const auto at_end = [&](std::size_t records) {
    expect(replay_bytes(all.first(journal_->ends[records])), 2,
           {"is truncated", "equal up to record " + std::to_string(records) + " (",
            "begins at byte " + std::to_string(journal_->ends[records])});
  };
  // Cuts between two records, and a cut where only the end record is missing.
  for (const std::size_t records : {std::size_t{0}, std::size_t{1}, std::size_t{2}, journal_->records.size() / 2,
                                    journal_->records.size() - 1, journal_->records.size()}) {
    at_end(records);
  }
  for (const std::size_t records : {std::size_t{3}, journal_->records.size()}) {
    const std::size_t begin = journal_->ends[records];
    for (const std::size_t more : {1U, 15U, 16U, 19U, 20U, 21U, 30U, 43U, 47U}) {
      expect(replay_bytes(all.first(begin + more)), 2, {"equal up to record " + std::to_string(records) + " ("});
    }
  }
  for (const std::size_t size : {0U, 1U, 8U, 12U, 48U, 52U, 200U}) {
    expect(replay_bytes(all.first(size)), 2, {"is truncated within its header"});
  }
  const Outcome told = replay_bytes(all.first(journal_->ends[5] + 3), {"--json"});
  EXPECT_EQ(told.exit_code, 2);
  EXPECT_EQ(Json::parse(told.out).at("verdict"), "truncated");
}

TEST_F(Replay, OfAJournalWithMoreBehindItsEndIsCorrupt) {
  std::vector<std::byte> bytes = journal_->bytes;
  bytes.push_back(std::byte{0});
  expect(replay_bytes(bytes), 3, {"is corrupt"});
}

TEST_F(Replay, HoldsTheReportAgainstTheJournal) {
  const Folder folder;
  fs::copy(*folder_ / "run", folder / "run");
  Json report = report_;
  report["decisions"]["digest"] = "0123456789abcdef";
  write_text(folder / "run/report.json", report.dump());
  expect(replay(folder / "run"), 3, {"report.json", "0123456789abcdef", report_["decisions"]["digest"]});
  report = report_;
  report["decisions"]["count"] = 7;
  write_text(folder / "run/report.json", report.dump());
  expect(replay(folder / "run"), 3, {"report.json", "7 decisions"});
  for (const char* garbage : {"", "{", "[]", "{}", "{\"decisions\": {\"count\": 7, \"digest\": \"xyz\"}}"}) {
    write_text(folder / "run/report.json", garbage);
    expect(replay(folder / "run"), 2, {"report.json", "is no report"});
  }
}

// The journal was recorded by an older program that wrote format version 2: 48 requests; a device, a host, a disk and a
// remote tier.
TEST_F(Replay, OfAJournalOfVersion2IsEqual) {
  expect(replay(in_source("tests/fixtures/journals/version_2.kvj")), 0,
         {"651 inputs, 629 decisions, digest 5ab0e9aaa463cce9: equal ("});
}

// Earlier programs recorded the parameters of policies as keys of their own.
TEST_F(Replay, KeepsParametersThatWereRecordedAsKeys) {
  const Folder folder;
  const Json report = simulate_to(folder, "run",
                                  conversations({.requests = 60, .gap_ms = 40}, 1).save(folder) + tight() +
                                      Settings{"cache.eviction=slru(protected=4)", "tiers.disk.tokens=400000",
                                               "cache.prefetch_policy=timeout(base=1ms, per_ki_token=0s)"},
                                  true);
  const Taken taken(folder / "run/journal.kvj");
  std::string text = taken.text;
  const auto replace = [&](const std::string& key, const std::string& with) {
    const std::size_t at = text.find(key + " = ");
    ASSERT_NE(at, std::string::npos) << key;
    text.replace(at, text.find('\n', at) - at, with);
  };
  replace("cache.eviction",
          "cache.eviction = 'slru'  # --set\ncache.slru_protected_touches = 4  # --set\n"
          "cache.tlru_threshold_tokens = 0  # default");
  replace("cache.prefetch_policy",
          "cache.prefetch_policy = 'timeout'  # --set\ncache.prefetch_timeout_base_s = 0.001  # --set\n"
          "cache.prefetch_timeout_per_ki_token_s = 0.0  # --set\ncache.prefetch_timeout_most_s = 0.0  # default");
  replace("cluster.route", "cluster.route = 'round_robin'  # default\ncluster.route_queue_weight = 2.0  # default");
  const std::string digest = report.at("decisions").at("digest").get<std::string>();
  expect(replay_bytes(write_all(taken.records, text).bytes), 0, {"digest " + digest + ": equal ("});
}

// The journal is of a program without SGLang's rules for waiting requests, although its engine is SGLang.
TEST_F(Replay, KeepsTheRulesOfTheProgramThatRecorded) {
  const Folder folder;
  simulate_to(folder, "run",
              conversations({.requests = 60, .gap_ms = 40}, 1).save(folder) + tight() +
                  Settings{"engine=sglang", "tiers.disk.tokens=400000", "cache.rules.look_ups_refresh=false",
                           "cache.rules.prefetch_style=kvtwin"},
              true);
  const Taken taken(folder / "run/journal.kvj");
  std::string text = taken.text;
  const std::string key = "\ncache.rules = ";
  const std::size_t at = text.find(key), end = text.find("  #", at);
  ASSERT_NE(at, std::string::npos);
  const std::string rules = text.substr(at + key.size() + 1, end - 1 - (at + key.size() + 1));
  EXPECT_EQ(rules.find("look_ups_refresh"), std::string::npos);  // the default
  // Each rule has a line, as that program wrote them.
  std::string earlier;
  for (const std::string_view rule : split_list(rules)) {
    const std::string one(rule.substr(rule.find_first_not_of(' ')));
    const std::size_t equals = one.find('=');
    const std::string value = one.substr(equals + 1);
    const bool is_text = value[0] >= 'a' && value[0] <= 'z' && value != "true" && value != "false";
    earlier += "\ncache." + one.substr(0, equals) + " = " + (is_text ? "'" + value + "'" : value) + "  # engine sglang";
  }
  text.replace(at, text.find('\n', end) - at, earlier);
  const std::vector<std::byte> bytes = write_all(taken.records, text).bytes;
  expect(replay_bytes(bytes), 0, {": equal ("});
  expect(
      replay_bytes(bytes, {"--set", "cache.rules.look_ups_refresh=true", "--set", "cache.rules.prefetch_style=sglang"}),
      3, {"is decided differently"});
}

TEST_F(Replay, OfWhatIsNoJournalIsRefused) {
  const Folder folder;
  fs::create_directory(folder / "empty");
  simulate_to(folder, "plain", conversations({.requests = 3}, 1).save(folder), false);
  fs::create_directories(folder / "odd/journal.kvj");
  expect(run({"replay"}), 2, {"run_dir"});
  expect(replay(folder / "nowhere"), 2, {"nowhere", "is not there", "run folder"});
  expect(replay(folder / "empty"), 2, {"empty", "journal.kvj"});
  expect(replay(folder / "plain"), 2, {"plain", "holds no journal.kvj", "--journal"});
  expect(replay(folder / "odd"), 2, {"journal.kvj", "can't be read"});
  expect(replay(folder / "trace.jsonl"), 2, {"trace.jsonl", "is no journal"});
  std::vector<std::byte> bytes = journal_->bytes;
  store_le32(bytes.data() + 8, kJournalVersion + 1);
  expect(replay_bytes(bytes), 2, {"another version", "version " + std::to_string(kJournalVersion)});
  bytes = journal_->bytes;
  bytes[60] ^= std::byte{1};
  expect(replay_bytes(bytes), 2, {"header is damaged"});
  expect(replay_bytes(write_all({}, "[cache]\nevictio = 3\n").bytes), 2, {"its experiment", "cache.evictio"});
  expect(replay_bytes(write_all({}, "\x01\x02").bytes), 2, {"its experiment", "TOML"});
  expect(replay(*folder_ / "run", {"--set", "cache.evictio=fifo"}), 2, {"cache.evictio", "cache.eviction"});
  expect(replay(*folder_ / "run", {"--set", "cache.eviction=opt"}), 2, {"opt", "hitrate"});
}

TEST_F(Replay, OfNoRequestsAtAllIsEqual) {
  expect(replay_bytes(write_all({}, "").bytes), 0, {"0 inputs, 0 decisions", ": equal ("});
}

// If the result cannot be printed, the command fails.
TEST_F(Replay, SaysThatStdoutCannotBeWritten) {
  Surroundings around;
  around.out_file = "/dev/full";
  const Outcome outcome = run({"replay", *folder_ / "run", "--set", "cache.eviction=fifo"}, around);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("stdout"), std::string::npos) << outcome.err;
}

// The journal holds the settings of the run, but not the files that the settings name.
TEST_F(Replay, SaysWhoseFileIsMissing) {
  const Folder folder;
  const std::string config = folder / "model.json";
  fs::copy_file(in_source("models/presets/models/tiny.json"), config);
  simulate_to(folder, "run",
              conversations({.requests = 5, .gap_ms = 40}, 1).save(folder) + Settings{"model.config=" + config}, true);
  EXPECT_EQ(replay(folder / "run").exit_code, 0);
  fs::remove(config);
  expect(replay(folder / "run"), 2, {config, "--set model.config"});
}

TEST_F(Replay, DoesNotWaitForAPipe) {
  const Folder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect(replay(folder / "pipe"), 2, {"can't be read"});
  expect(run({"explain", folder / "pipe", "--request", "0"}), 2, {"pipe"});
  expect(run({"calibrate", "--from", folder / "pipe", "--out", folder / "hardware.toml"}), 2, {"pipe"});
}

}  // namespace
}  // namespace kvtwin::test
