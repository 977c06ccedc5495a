// kvtwin trace convert: a converted trace holds the same requests as the original, for every format.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/json.hpp"
#include "policy/seam/journal.hpp"
#include "tests/simulation.hpp"
#include "tests/splitmix.hpp"
#include "tests/trace_files.hpp"
#include "traces/trace.hpp"

namespace kvtwin::test {
namespace {

struct Kind {
  std::string name, text;
  std::string block;  // tokens
};

std::vector<Kind> kinds() {
  return {
      {"mooncake",
       R"({"timestamp": 0.5, "input_length": 600, "output_length": 2, "hash_ids": [1, 2], "session": 0, "turn": 3})"
       "\n"
       R"({"timestamp": 1, "hint": "pin", "session": 0, "value": 2000})"
       "\n",
       "512"},
      {"qwen",
       R"({"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.1, "input_length": 20, "output_length": 7, "hash_ids": [1]})"
       "\n",
       "16"},
      {"agentic",
       R"({"block_size": 64, "requests": [{"t": 0, "in": 200, "out": 0, "hash_runs": [[1, 3]]},)"
       R"( {"t": 1.5, "think_time": 0.25, "in": 264, "out": 9, "hash_ids": [1, 2, 3, 4]}]})"
       "\n",
       "64"},
      {"azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,480,10\n", "64"},
      {"burstgpt", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,M,472,18,490,API log\n",
       "64"},
      {"token_ids",
       R"({"input_ids": [1, 2, 3], "output_length": 3, "tenant": "t", "priority": -1})"
       "\n",
       "64"},
      {"sglang",
       R"({"timestamp": "2026-01-02T10:00:01.5", "event": "request.finished", "rid": "b", "obj": {"input_ids": [1, 2]},)"
       R"( "out": {"meta_info": {"completion_tokens": 3, "e2e_latency": 0.25}}})"
       "\n",
       "64"},
      {"lmcache",
       R"({"timestamp": 1711929600.5, "request_id": "a", "model_name": "m", "chunk_size": 256, "seq_len": 300,)"
       R"( "chunk_hashes": ["0x1f"]})"
       "\n",
       "256"},
  };
}

std::vector<TraceRequest> all_of(const std::string& path, Tokens block_tokens) {
  TraceOptions options;
  options.block_tokens = block_tokens;
  TraceReader reader(path, options);
  std::vector<TraceRequest> all;
  TraceRequest request;
  while (reader.next(request)) all.push_back(request);
  return all;
}

void expect_equal(const std::vector<TraceRequest>& a, const std::vector<TraceRequest>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].arrival, b[i].arrival);
    EXPECT_EQ(a[i].input, b[i].input);
    EXPECT_EQ(a[i].output, b[i].output);
    EXPECT_EQ(a[i].blocks, b[i].blocks);
    EXPECT_EQ(a[i].session, b[i].session);
    EXPECT_EQ(a[i].turn, b[i].turn);
    EXPECT_EQ(a[i].tenant, b[i].tenant);
    EXPECT_EQ(a[i].type, b[i].type);
    EXPECT_EQ(a[i].think, b[i].think);
    EXPECT_EQ(a[i].priority, b[i].priority);
    EXPECT_EQ(a[i].is_hint, b[i].is_hint);
    EXPECT_EQ(a[i].hint.subject, b[i].hint.subject);
    EXPECT_EQ(a[i].hint.value, b[i].hint.value);
  }
}

TEST(TraceConvert, WritesWhatItReads) {
  const Folder folder;
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    write_text(folder / "in", kind.text);
    for (const std::string& out : {folder / (kind.name + ".jsonl"), folder / (kind.name + ".jsonl.zst")}) {
      const Outcome outcome = run({"trace", "convert", folder / "in", out});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_EQ(outcome.out, "");
      EXPECT_NE(outcome.err.find("from " + kind.name + "; its blocks are of " + kind.block), std::string::npos)
          << outcome.err;
      expect_equal(all_of(folder / "in", 0), all_of(out, std::stoull(kind.block)));
    }
    const Outcome info = run({"trace", "info", folder / "in"});
    EXPECT_TRUE(info.out.starts_with("format       " + kind.name + "\n")) << info.out << info.err;
    const Outcome rates = run({"hitrate", "--trace", folder / "in", "--capacity", "10", "--json"});
    EXPECT_EQ(rates.json().at("requests"), kind.name == "agentic" ? 2 : 1);
  }
}

// The options of earlier versions are parameters of --eviction.
TEST(HitRateOptions, OfEarlierVersionsAreParameters) {
  const std::vector<std::string> replay{"hitrate",    "--trace", bundled_trace(), "--limit",   "300",
                                        "--capacity", "100",     "--json",        "--eviction"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = replay;
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  EXPECT_EQ(with({"slru", "--slru-protected-touches", "3"}).json(), with({"slru(protected=3)"}).json());
  EXPECT_EQ(with({"tlru", "--tlru-threshold", "900", "--tlru-next-prompt", "60"}).json(),
            with({"tlru(threshold=900, next_prompt=60)"}).json());
  const Outcome both = with({"slru(protected=3)", "--slru-protected-touches", "4"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(
      both.err.find("--slru-protected-touches: --eviction slru(protected=3) has parameters; give protected there"),
      std::string::npos)
      << both.err;
}

TEST(TraceConvert, KeepsTheBundledTrace) {
  const Folder folder;
  const std::string out = folder / "chat.jsonl.gz";
  ASSERT_EQ(run({"trace", "convert", bundled_trace(), out, "--limit", "2000"}).exit_code, 0);
  std::vector<TraceRequest> wanted = all_of(bundled_trace(), 0);
  wanted.resize(2'000);
  expect_equal(wanted, all_of(out, 0));
}

TEST(TraceConvert, LeavesNothingHalf) {
  const Folder folder;
  write_text(folder / "in", kinds()[0].text + "{}\n");
  const std::string out = folder / "out.jsonl";
  const Outcome refused = run({"trace", "convert", folder / "in", out});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("line 3"), std::string::npos) << refused.err;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator{}), 1) << "the input";
  write_text(out, "mine");
  write_text(folder / "in", kinds()[0].text);
  EXPECT_EQ(run({"trace", "convert", folder / "in", out}).exit_code, 2) << "it exists";
  EXPECT_EQ(text_of(out), "mine");
  EXPECT_EQ(run({"trace", "convert", folder / "in", out, "--force"}).exit_code, 0);
  EXPECT_EQ(all_of(out, 0).size(), 2U);
  EXPECT_EQ(run({"trace", "convert", folder / "in", folder / "nowhere/out.jsonl"}).exit_code, 1);
}

// If the command is killed halfway, there is no file with the output name.
TEST(TraceConvert, EndedHalfwayItHasNoName) {
  const Folder folder;
  const std::string pipe = folder / "pipe", out = folder / "out.jsonl";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Process process({"trace", "convert", pipe, out});
  {
    std::ofstream in(pipe, std::ios::binary);  // waits until the program opens the pipe
    for (int i = 0; i < 2'000; ++i) in << kinds()[0].text.substr(0, kinds()[0].text.find('\n') + 1);
    in.flush();
    ASSERT_EQ(::kill(process.id(), SIGINT), 0);
    EXPECT_EQ(process.wait().signal, SIGINT);
  }
  EXPECT_FALSE(fs::exists(out));
}

TEST(TraceConvert, SaltsPrompts) {
  const Folder folder;
  write_text(folder / "in", kinds()[5].text);
  const auto blocks = [&](const std::vector<std::string>& salt) {
    std::vector<std::string> arguments = {"trace", "convert", folder / "in", folder / "out", "--force"};
    arguments.insert(arguments.end(), salt.begin(), salt.end());
    EXPECT_EQ(run(arguments).exit_code, 0);
    return all_of(folder / "out", 64).front().blocks;
  };
  EXPECT_EQ(blocks({}), blocks({}));
  EXPECT_EQ(blocks({"--salt", "a"}), blocks({"--salt", "a"}));
  EXPECT_NE(blocks({"--salt", "a"}), blocks({"--salt", "b"}));
  EXPECT_NE(blocks({"--salt", "a"}), blocks({}));
}

TEST(SglangLog, EveryCommandReadsIt) {
  const Folder folder;
  for (const std::string name : {"request_log.jsonl", "server_output.log"}) {
    SCOPED_TRACE(name);
    const std::string log = sglang_fixture(name);
    const Json info = run({"trace", "info", log, "--json"}).json();
    EXPECT_EQ(info.at("requests"), 11);
    EXPECT_EQ(info.at("tenants"), 5);
    const Json rates = run({"hitrate", "--trace", log, "--capacity", "1000", "--json"}).json();
    EXPECT_EQ(rates.at("requests"), 11);
    EXPECT_EQ(rates.at("hit_blocks"), info.at("ideal_hit_blocks"));
    const Settings settings{"workload.trace=" + log, "cache.page_tokens=64"};
    const Simulated simulated = simulate(settings);
    EXPECT_EQ(simulated.requests("completed"), 11U);
    ASSERT_EQ(run({"trace", "convert", log, folder / (name + ".gz")}).exit_code, 0);
    const Json converted = run({"trace", "info", folder / (name + ".gz"), "--block-tokens", "64", "--json"}).json();
    for (const char* key : {"requests", "tenants", "sessions", "ideal_hit_blocks", "unique_blocks"}) {
      EXPECT_EQ(converted.at(key), info.at(key)) << key;
    }
  }
  // A rotated log, and a compressed one.
  const Outcome packed = run({"trace", "info", sglang_fixture("request_log.jsonl"), "--json"});
  write_text(folder / "host_0.log.2026-11-24_04", text_of(sglang_fixture("request_log.jsonl")));
  EXPECT_EQ(run({"trace", "info", folder / "host_0.log.2026-11-24_04", "--json"}).out, packed.out);
}

TEST(SglangLog, WithoutARequestIsBadInput) {
  const Folder folder;
  write_text(folder / "log", "[2026-11-24 04:42:12] Receive: obj=GenerateReqInput(rid='a')\n");
  write_text(folder / "experiment.toml", "");
  const std::vector<std::vector<std::string>> commands = {
      {"trace", "info", folder / "log"},
      {"trace", "convert", folder / "log", folder / "out"},
      {"hitrate", "--trace", folder / "log", "--capacity", "10"},
      {"simulate", folder / "experiment.toml", "--set", "workload.trace=" + folder / "log", "--world", kAnyWorld}};
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit_code, 2) << command[0];
    EXPECT_NE(outcome.err.find("holds no request: none of its 1 lines"), std::string::npos) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// Simulates two requests that are `days` apart, with time stamps that count from 1970.
Simulated days_apart(const Folder& folder, double days) {
  const auto request = [](double ms, int block) {
    return R"({"timestamp": )" + std::to_string(static_cast<std::int64_t>(ms)) +
           R"(, "input_length": 512, "output_length": 5, "hash_ids": [)" + std::to_string(block) + "]}\n";
  };
  constexpr double kNow = 1'763'959'332'000;
  write_text(folder / "trace", request(kNow, 1) + request(kNow + days * 86'400'000, 2));
  return simulate({"workload.trace=" + folder / "trace"});
}

TEST(IdleTime, CostsNeitherMemoryNorFiles) {
  const Folder folder;
  const Simulated close = days_apart(folder, 1e-4), far = days_apart(folder, 11.6);
  EXPECT_EQ(far.requests("completed"), 2U);
  EXPECT_NEAR(far.report.at("simulated_seconds").get<double>(), 11.6 * 86'400, 60);
  EXPECT_EQ(far.mean_ttft(), close.mean_ttft());
  EXPECT_EQ(far.tokens("miss"), close.tokens("miss"));
  EXPECT_LT(far.lanes_csv.size(), 4'096U);
  const auto rss = [](const Simulated& run) { return run.report.at("peak_rss_bytes").get<std::uint64_t>(); };
  EXPECT_LT(rss(far), rss(close) + (std::uint64_t{8} << 20));
  // The rows of each lane still cover the whole run.
  const Table rows(far.lanes_csv);
  std::map<std::string, double> ends;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    double& end = ends[rows.text(row, "lane")];
    EXPECT_DOUBLE_EQ(rows.number(row, "window_start_s"), end);
    end += rows.number(row, "window_s");
  }
  EXPECT_EQ(ends.size(), far.report.at("lanes").size());
  for (const auto& [lane, end] : ends) EXPECT_GE(end, far.report.at("simulated_seconds").get<double>() - 1e-3) << lane;
}

// Returns the first key of the first request in the journal.
PageKey first_key(const std::string& journal) {
  JournalReader reader(std::as_bytes(std::span(journal)));
  JournalRecord record;
  while (reader.next(record) == JournalStatus::record) {
    const auto* const arrival = std::get_if<Arrival>(&record.input.what);
    if (arrival != nullptr && !arrival->keys.empty()) return arrival->keys[0];
  }
  throw std::runtime_error("no request with a page in the journal");
}

TEST(Salt, IsInThePageKeysAndNowhereElse) {
  const Folder folder;
  const std::vector<std::string> secrets = {"", "correct horse battery staple", "another secret of mine"};
  std::set<PageKey> keys;
  Json tokens;
  for (const std::string& secret : secrets) {
    SCOPED_TRACE(secret);
    Settings settings{"workload.trace=" + sglang_fixture("request_log.jsonl")};
    if (!secret.empty()) {
      write_text(folder / "salt", secret + "\n");
      settings.push_back("workload.salt_file=" + folder / "salt");
    }
    write_text(folder / "experiment.toml", "");
    std::vector<std::string> arguments =
        simulate_arguments(folder / "experiment.toml", settings, folder / "run", kAnyWorld);
    arguments.insert(arguments.end(), {"--journal", "--force"});
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    keys.insert(first_key(text_of(folder / "run/journal.kvj")));
    // Requests stay in the same namespaces, so the hits are the same.
    if (tokens.is_null()) tokens = outcome.json().at("tokens");
    EXPECT_EQ(outcome.json().at("tokens"), tokens);
    const std::string notes = outcome.json().at("notes").dump();
    EXPECT_EQ(notes.find("default salt") == std::string::npos, !secret.empty()) << notes;
    if (secret.empty()) continue;
    EXPECT_EQ((outcome.out + outcome.err).find(secret), std::string::npos);
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder / "run")) {
      EXPECT_EQ(text_of(entry.path()).find(secret), std::string::npos) << entry.path();
      ++files;
    }
    EXPECT_EQ(files, 6U);
    EXPECT_NE(text_of(folder / "run/experiment.resolved.toml").find(folder / "salt"), std::string::npos);
    // The run can be repeated from the files that its folder names.
    fs::remove(folder / "run/journal.kvj");
    const Outcome explained = run({"explain", folder / "run", "--request", "0"});
    EXPECT_EQ(explained.exit_code, 0) << explained.err;
  }
  EXPECT_EQ(keys.size(), 3U);
}

TEST(Salt, FileIsChecked) {
  const Folder folder;
  write_text(folder / "short", "15 bytes here..\n\n");
  write_text(folder / "long", std::string(4'097, 'x'));
  write_text(folder / "longest", std::string(4'096, 'x') + "\n");
  write_text(folder / "experiment.toml", "");
  const auto outcome = [&](const std::string& path) {
    return run({"simulate", folder / "experiment.toml", "--world", kAnyWorld, "--set", "workload.salt_file=" + path,
                "--set", "workload.generate.requests=1"});
  };
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {folder / "short", "holds 15 bytes"}, {folder / "long", "more than 4096 bytes"},
      {folder / "none", "is no file that"}, {folder.path().string(), "is no file that"},
      {"/dev/zero", "is no file that"},
  };
  for (const auto& [path, part] : wrong) {
    const Outcome refused = outcome(path);
    EXPECT_EQ(refused.exit_code, 2) << path;
    EXPECT_NE(refused.err.find("workload.salt_file"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  }
  EXPECT_EQ(outcome(folder / "longest").exit_code, 0);
}

// A slow machine and two sessions: the second turn of one session waits for the previous answer, the second turn of the
// other one waits for its time in the trace.
TEST(ClosedLoop, IsServed) {
  const Folder folder;
  const auto request = [](int ms, int session, int first) {
    return R"({"timestamp": )" + std::to_string(ms) + R"(, "input_length": 1024, "output_length": 500, "hash_ids": [)" +
           std::to_string(first) + ", " + std::to_string(first + 1) + R"(], "session": )" + std::to_string(session) +
           "}\n";
  };
  write_text(folder / "trace", request(0, 1, 10) + request(10, 1, 20) + request(20, 2, 30) + request(900'000, 2, 40));
  for (const std::string world : {"events", kAnyWorld}) {
    const Simulated run = simulate({"workload.trace=" + folder / "trace", "workload.loop=closed"}, world);
    EXPECT_EQ(run.requests("completed"), 4U);
    const Table rows(run.requests_csv);
    std::map<std::uint64_t, double> arrived, answered;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::uint64_t number = rows.integer(row, "request");
      arrived[number] = rows.number(row, "arrival_s");
      answered[number] = arrived[number] + rows.number(row, "e2e_s");
    }
    EXPECT_EQ(arrived[1], 0.02) << "session 2 comes in between";
    EXPECT_NEAR(arrived[2], answered[0] + 0.01, 1e-6);
    EXPECT_GT(answered[0], 0.5);
    EXPECT_NEAR(arrived[3], answered[1] + 899.98, 1e-6);
  }
}

TEST(TraceGenerate, MakesEveryKind) {
  const Folder folder;
  for (const std::string kind : {"chat", "agentic", "tools"}) {
    const std::string out = folder / (kind + ".jsonl");
    const std::vector<std::string> arguments = {"trace", "generate", "--kind", kind, "--requests", "300", "--out", out};
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Tokens block = kind == "agentic" ? 64 : 512;
    EXPECT_NE(outcome.err.find("its blocks are of " + std::to_string(block)), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("--trace-block-tokens 64") != std::string::npos, block == 64) << outcome.err;
    const std::vector<std::string> as_it_is = {"hitrate", "--trace", out, "--capacity", "10"};
    const Outcome read = run(as_it_is);
    EXPECT_EQ(read.exit_code, block == 512 ? 0 : 2) << read.err;
    EXPECT_EQ(read.err.find("the file does not say their size") != std::string::npos, block != 512) << read.err;
    EXPECT_EQ(all_of(out, block).size(), 300U);
    EXPECT_EQ(run(arguments).exit_code, 2) << "it exists";
  }
  const std::string groups = folder / "groups.jsonl";
  const Outcome outcome =
      run({"trace", "generate", "--kind", "groups", "--groups", "5", "--prompts-per-group", "4", "--prefix-tokens",
           "160", "--question-tokens", "8", "--concurrency", "3", "--out", groups});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("its blocks are of 16"), std::string::npos) << outcome.err;
  EXPECT_EQ(all_of(groups, 16).size(), 20U);
  EXPECT_EQ(run({"trace", "generate", "--kind", "groups", "--groups", "0", "--out", folder / "none"}).exit_code, 2);
  const Outcome endless = run({"trace", "generate", "--duration", "0", "--out", folder / "endless"});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_NE(endless.err.find("without an end"), std::string::npos) << endless.err;
}

// The same option as in hitrate, where --block-tokens is the size of the cache's blocks.
TEST(TraceInfo, TakesTheBlockSizeUnderBothNames) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 3; ++i) {
    lines += R"({"timestamp": )" + std::to_string(100 * i) + R"(, "input_length": 60, "output_length": 1, )" +
             R"("hash_ids": [0, 1, 2, )" + std::to_string(10 + i) + "]}\n";
  }
  write_text(folder / "t.jsonl", lines);
  const Outcome unsized = run({"trace", "info", folder / "t.jsonl"});
  EXPECT_EQ(unsized.exit_code, 2);
  EXPECT_NE(unsized.err.find("--block-tokens 16"), std::string::npos) << unsized.err;
  for (const std::string option : {"--block-tokens", "--trace-block-tokens"}) {
    const Outcome info = run({"trace", "info", folder / "t.jsonl", option, "16", "--json"});
    ASSERT_EQ(info.exit_code, 0) << info.err;
    EXPECT_EQ(Json::parse(info.out).at("unique_blocks"), 6) << info.out;
    EXPECT_EQ(run({"trace", "info", folder / "t.jsonl", option, "32"}).exit_code, 2);
    EXPECT_EQ(run({"trace", "convert", folder / "t.jsonl", folder / "c.jsonl", option, "16", "--force"}).exit_code, 0);
  }
}

// LMCache's rule (LMCache/LMCache, lmcache/tools/cache_simulator/simulator.py, simulate()): a chunk of the log is an
// entry of an LRU list, the tokens behind the last whole chunk are misses and no entry.
TEST(LmcacheHits, AreThoseOfItsOwnSimulator) {
  const Folder folder;
  constexpr std::uint64_t kChunk = 256;
  constexpr std::size_t kCapacity = 40;
  std::string log;
  std::list<std::uint64_t> lru;  // newest first
  std::uint64_t hit_tokens = 0, all_tokens = 0, entries = 0;
  Splitmix random(7);
  for (int i = 0; i < 2'000; ++i) {
    const std::uint64_t chunk = random.below(60), tail = random.below(3) * 100;
    log += R"({"timestamp": )" + std::to_string(i) + R"(, "request_id": "r)" + std::to_string(i) +
           R"(", "model_name": "m", "chunk_size": 256, "seq_len": )" + std::to_string(kChunk + tail) +
           R"(, "chunk_hashes": ["0x)" + std::to_string(chunk + 1) + "\"]}\n";
    all_tokens += kChunk + tail;
    ++entries;
    if (const auto at = std::find(lru.begin(), lru.end(), chunk); at != lru.end()) {
      hit_tokens += kChunk;
      lru.erase(at);
    }
    lru.push_front(chunk);
    if (lru.size() > kCapacity) lru.pop_back();
  }
  write_text(folder / "lookup_hashes_1.jsonl", log);
  const Outcome rates = run({"hitrate", "--trace", folder / "lookup_hashes_1.jsonl", "--capacity",
                             std::to_string(kCapacity), "--eviction", "lru", "--json"});
  ASSERT_EQ(rates.exit_code, 0) << rates.err;
  const Json lru_row = Json::parse(rates.out);
  EXPECT_EQ(lru_row.at("hit_tokens"), hit_tokens);
  EXPECT_EQ(lru_row.at("lookup_tokens"), all_tokens);
  EXPECT_EQ(lru_row.at("lookup_blocks"), entries);
  EXPECT_NE(rates.err.find("misses that take no room"), std::string::npos) << rates.err;
  const Outcome info = run({"trace", "info", folder / "lookup_hashes_1.jsonl", "--json"});
  EXPECT_EQ(Json::parse(info.out).at("unique_blocks"), 60) << info.out;
  EXPECT_EQ(Json::parse(info.out).at("blocks"), entries) << info.out;
}

// A prompt without a whole chunk has no block at all.
TEST(LmcacheHits, OfPromptsWithoutAChunkAreNone) {
  const Folder folder;
  std::string log;
  for (int i = 0; i < 6; ++i) {
    log += R"({"timestamp": )" + std::to_string(i) + R"(, "request_id": "r)" + std::to_string(i) +
           R"(", "model_name": "m", "chunk_size": 256, "seq_len": )" + (i % 2 == 0 ? "700" : "90") +
           R"(, "chunk_hashes": )" + (i % 2 == 0 ? R"(["0x1", "0x2"])" : "[]") + "}\n";
  }
  write_text(folder / "log.jsonl", log);
  const Outcome rates = run({"hitrate", "--trace", folder / "log.jsonl", "--capacity", "2", "--eviction",
                             "lru,fifo,lfu,mru,slru,tide,opt,opt-no-bypass,opt-bit,opt-cost,opt-cost-plan,infinite",
                             "--end-hints", "100", "--json"});
  ASSERT_EQ(rates.exit_code, 0) << rates.err;
  std::istringstream rows(rates.out);
  int number = 0;
  for (std::string row; std::getline(rows, row); ++number) {
    EXPECT_EQ(Json::parse(row).at("lookup_blocks"), 6) << row;
    EXPECT_EQ(Json::parse(row).at("hit_tokens"), 1024) << row;
  }
  EXPECT_EQ(number, 12);
  const Outcome tiers = run({"hitrate", "--trace", folder / "log.jsonl", "--capacity", "2", "--eviction", "lru,tide",
                             "--host-capacity", "4", "--write-policy", "write_through", "--json"});
  EXPECT_EQ(tiers.exit_code, 0) << tiers.err;
}

TEST(TraceFormats, AreServed) {
  const Folder folder;
  write_text(folder / "in.csv", kinds()[3].text + "2023-11-16 18:17:04.9799600,480,10\n");
  const Simulated run = simulate({"workload.trace=" + folder / "in.csv", "workload.shared_tokens=256"});
  EXPECT_EQ(run.requests("completed"), 2U);
  EXPECT_EQ(run.report.at("tokens").at("hit_device"), 256U);
  EXPECT_NE(run.report.at("notes").dump().find("the same 256 tokens"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
