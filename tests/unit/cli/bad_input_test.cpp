// Tests wrong input: the exit code is 2, and one line on stderr has the error, the place, and a correct value. stdout
// is empty, and the folder has no new files. If the machine fails, the exit code is 1, and the rest is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kTwoRequests =
    R"({"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
{"timestamp": 10, "input_length": 600, "output_length": 2, "hash_ids": [1, 3]}
)";

class BadInput : public testing::Test {
 protected:
  BadInput() {
    around_.folder = folder_.path();
    write_text(folder_ / "trace.jsonl", kTwoRequests);
    write_text(folder_ / "good.toml", "[workload]\ntrace = \"trace.jsonl\"\n");
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_.path())) {
      names.push_back(entry.path().lexically_relative(folder_.path()).string());
    }
    std::ranges::sort(names);
    return names;
  }

  // Runs the program in the folder. Expects one error line with all `parts`, and no new files.
  void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts, int code = 2) {
    const std::vector<std::string> before = files();
    const Outcome outcome = run(arguments, around_);
    std::string shown = "kvtwin";
    for (const std::string& argument : arguments) shown += " " + argument;
    SCOPED_TRACE(shown + "\n" + outcome.err);
    EXPECT_EQ(outcome.exit_code, code);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("kvtwin: "));
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1);
    EXPECT_TRUE(outcome.err.ends_with("\n"));
    for (const char c : outcome.err)
      EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ') << static_cast<int>(c);
    for (const std::string& part : parts) EXPECT_NE(outcome.err.find(part), std::string::npos) << part;
    EXPECT_EQ(files(), before);
  }

  void refused_file(const std::string& text, const std::vector<std::string>& parts) {
    write_text(folder_ / "bad.toml", text);
    refused({"simulate", "bad.toml", "--out", "out"}, parts);
  }
  void refused_set(const std::string& setting, const std::vector<std::string>& parts) {
    refused({"simulate", "good.toml", "--out", "out", "--set", setting}, parts);
  }
  void refused_trace(const std::string& text, const std::vector<std::string>& parts) {
    write_text(folder_ / "bad.jsonl", text);
    std::vector<std::string> all = parts;
    all.emplace_back("bad.jsonl");
    refused({"simulate", "good.toml", "--out", "out", "--set", "workload.trace=bad.jsonl"}, all);
  }

  Folder folder_;
  Surroundings around_;
};

// Else a name would end at the zero byte where a library takes C's texts.
TEST_F(BadInput, NamesWithAZeroByte) {
  for (const char* key : {"cache.namespace", "model.revision", "model.name", "tiers.disk.path", "tiers.remote.url"}) {
    refused_file(std::string(key) + " = \"acme\\u0000a\"\n", {"bad.toml", key, "contains a zero byte"});
  }
}

TEST_F(BadInput, GoodInputIsTaken) {  // without this, the other tests would prove nothing
  const Outcome outcome = run({"simulate", "good.toml", "--json", "--world", kAnyWorld, "--out", "out"}, around_);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json().at("requests").at("completed"), 2);
  const std::vector<std::string> expected{"good.toml",
                                          "out",
                                          "out/experiment.resolved.toml",
                                          "out/lanes.csv",
                                          "out/metrics.prom",
                                          "out/report.json",
                                          "out/requests.csv",
                                          "trace.jsonl"};
  EXPECT_EQ(files(), expected);
}

// ---- the command line --------------------------------------------------------------------------------

TEST_F(BadInput, CommandLine) {
  refused({"simulat", "good.toml"}, {"\"simulat\"", "\"simulate\"?", "presets"});
  refused({"simulate"}, {"experiment", "quickstart.toml"});
  refused({"simulate", "good.toml", "--wrld", "events"}, {"--wrld"});
  refused({"simulate", "good.toml", "--world", "sim"}, {"sim", "simgrid", "events"});
  refused({"simulate", "good.toml", "--out"}, {"--out"});
  refused({"simulate", "good.toml", "other.toml"}, {"other.toml"});
  refused({"simulate", "good.toml", "--set"}, {"--set"});
  refused({"simulate", "good.toml", "--set", "cache.page_tokens"}, {"cache.page_tokens", "key=value"});
  refused({"simulate", "good.toml", "--set", "=3"}, {"key=value"});
  refused({"simulate", "good.toml", "--from-sglang-flags", "--page-sice 64"}, {"--page-sice", "\"--page-size\""});
  refused({"simulate", "good.toml", "--from-sglang-flags", "--page-size"}, {"--page-size needs a value"});
  refused({"simulate", "good.toml", "--from-sglang-flags", "--hicache-size many"}, {"--hicache-size", "many"});
}

TEST_F(BadInput, Environment) {
  around_.environment = {"KVTWIN_PROGRES=0"};
  refused({"simulate", "good.toml"}, {"KVTWIN_PROGRES", "KVTWIN_PROGRESS"});
  around_.environment = {"KVTWIN_PROGRESS=maybe"};
  refused({"simulate", "good.toml"}, {"KVTWIN_PROGRESS=maybe", "true", "off"});
  for (const char* known : {"KVTWIN_PROGRESS=off", "KVTWIN_PROGRESS=0", "KVTWIN_PROGRESS=false", "KVTWIN_PROGRESS="}) {
    around_.environment = {known};
    EXPECT_EQ(run({"simulate", "good.toml", "--world", kAnyWorld}, around_).exit_code, 0) << known;
  }
}

// ---- experiment files --------------------------------------------------------------------------------

TEST_F(BadInput, ExperimentFile) {
  refused({"simulate", "nowhere.toml"}, {"nowhere.toml", "can't be read", "TOML"});
  refused({"simulate", "."}, {"can't be read"});
  refused_file("[cache]\npage_tokens = = 3\n", {"bad.toml:2", "TOML"});
  refused_file("[cache\n", {"bad.toml:1", "TOML"});
  refused_file("seed = 1\nseed = 2\n", {"bad.toml:2"});
  refused_file("seed = 1\n\n[cache]\npage_token = 64\n",
               {"bad.toml:4", "\"cache.page_token\"", "\"cache.page_tokens\"?"});
  refused_file("[tiers.hots]\ngib = 3\n", {"bad.toml:2", "\"tiers.host.gib\"?"});
  refused_file("nothing_like_it_at_all = 1\n", {"bad.toml:1", "--help-keys"});
  refused_file("\"a\\nb\" = 1\n", {"bad.toml:1", "unknown key"});
  refused_file(std::string(2 << 20, '#'), {"bad.toml", "1 MiB"});
  // A key that is too deep for a recursive parser.
  std::string deep = "seed = 1\na";
  for (int i = 0; i < 400'000; ++i) deep += ".a";
  refused_file(deep + " = 1\n", {"bad.toml:2", "dots"});
}

// A device file may be endless. Reading stops at the limit of the file size.
TEST_F(BadInput, WhatHasNoEndIsNotRead) {
  refused({"simulate", "/dev/zero"}, {"/dev/zero: can't be read, as it is no regular file", "experiment file"});
  refused({"compare", "--cells", "/dev/zero"}, {"/dev/zero: can't be read"});
  refused({"compare", "/dev/zero", "--vary", "seed=1,2"}, {"/dev/zero: can't be read"});
  for (const char* key : {"model.config", "model.draft.config", "hardware.file"}) {
    std::vector<std::string> words{"simulate", "good.toml", "--set", std::string(key) + "=/dev/zero"};
    if (std::string_view(key) == "model.draft.config") {
      words.insert(words.end(), {"--set", "model.draft.kind=side_pool", "--set", "model.draft.accept_length=2"});
    }
    refused(words, {std::string(key) + " (--set): /dev/zero: can't be read"});
  }
  refused({"simulate", "good.toml", "--from-sglang-server-info", "/dev/zero"},
          {"--from-sglang-server-info: /dev/zero: can't be read"});
  refused({"presets", "--hardware", "h200-sxm", "--limits", "/dev/zero"}, {"/dev/zero: can't be read"});
  // A sparse file of 1 TiB. The program does not read it.
  write_text(folder_ / "huge.json", "{");
  fs::resize_file(folder_ / "huge.json", std::uintmax_t{1} << 40);
  refused_set("hardware.file=huge.json", {"hardware.file (--set): huge.json: is longer than 16 MiB"});
  refused_set("model.config=huge.json", {"model.config (--set): huge.json: is longer than 16 MiB"});
  refused({"simulate", "huge.json"}, {"huge.json: is longer than 1 MiB"});
  fs::remove(folder_ / "huge.json");
}

TEST_F(BadInput, WorkloadSentencesNameTheKey) {
  const std::string generate = "workload.generate.";
  const auto refused_kind = [&](const std::string& kind, const std::vector<std::string>& settings,
                                const std::vector<std::string>& parts) {
    std::vector<std::string> words{"simulate",        "good.toml", "--set",
                                   "workload.trace=", "--set",     generate + "kind=" + kind};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", generate + setting});
    refused(words, parts);
  };
  refused_kind("returning", {"working_set_tokens=1000000000000000"},
               {generate + "working_set_tokens (--set): is 1000000000000000, which is 122070312500 contexts of 8192 "
                           "tokens (workload.generate.prompt_tokens (default))",
                "at most 10000000"});
  refused_kind("returning", {"prompt_tokens=1000000000", "prompt_tokens_per_second=1"},
               {generate + "prompt_tokens_per_second (--set)", generate + "prompt_tokens (--set)", "0.000001"});
  refused_kind("groups", {"groups=10000000"}, {generate + "prompts_per_group (default): must be from 1 to 1"});
  refused_kind("groups", {"question_tokens=0", "prefix_tokens=0"},
               {generate + "question_tokens (--set): must be at least 1, as prefix_tokens is 0"});
  refused_kind("chat", {"sessions_per_second=1e-9"},
               {generate + "sessions_per_second is 1.0", "0, or at least 1e-06 and at most 1e+06"});
  refused_kind(
      "sessions", {"turns=3", "requests_per_second=2"},
      {generate + "kind (--set): sessions need averages of your traffic", generate + "prompt_tokens is not given"});
  const std::vector<std::string> averages{"requests_per_second=2", "output_tokens=300", "turns=3", "think_s=20",
                                          "prefix_tokens=500"};
  refused_kind("sessions", averages + std::vector<std::string>{"prompt_tokens=1000"},
               {generate + "prompt_tokens (--set): is 1000, which leaves less than 1 new token per turn",
                "must be at least 1103"});
  refused_kind("sessions",
               averages + std::vector<std::string>{"prompt_tokens=9000", "requests_per_second=1e6", "think_s=1e6"},
               {generate + "think_s (--set): must be smaller", "100 million turns"});
  refused_set("workload.time_scale=0.12345678912", {"workload.time_scale (--set)", "9 digits"});
  refused_set("workload.trace=/nowhere", {"workload.trace (--set)", "/nowhere"});
  refused({"trace", "generate", "--out", "x.jsonl", "--sessions-per-second", "1e-9"},
          {"--sessions-per-second: must be from 0.000001"});
  refused({"trace", "generate", "--out", "x.jsonl", "--kind", "tools", "--requests-per-second", "0"},
          {"--requests-per-second: must be from 0.001"});
  const std::vector<std::string> sessions{
      "--requests-per-second", "2",   "--output-tokens", "300", "--turns", "3", "--think-s", "20",
      "--prefix-tokens",       "500", "--prompt-tokens", "1000"};
  const std::vector<std::string> made{"trace", "generate", "--out", "x.jsonl", "--kind", "sessions"};
  const std::vector<std::string> replayed{"hitrate", "--capacity", "9"};
  refused(made, {"--requests-per-second: is not given"});
  refused(made + sessions, {"--prompt-tokens: is 1000", "must be at least 1103"});
  refused(replayed, {"--trace: is not given", "--think-s"});
  refused(replayed + sessions, {"--prompt-tokens: is 1000", "must be at least 1103"});
  refused(replayed + std::vector<std::string>{"--turns", "3"}, {"--requests-per-second: is not given"});
  refused(replayed + std::vector<std::string>{"--turns", "3", "--trace", "x"}, {"--trace", "give one of them"});
}

TEST_F(BadInput, OptionsThatAreNoFiniteNumber) {
  for (const char* value : {"nan", "-nan", "inf", "-inf"}) {
    refused({"compare", "--cells", "x.toml", "--vary", "seed=1", "--min-served", value}, {"--min-served"});
    refused({"record", "--kv-events", "tcp://127.0.0.1:1", "--out", "x", "--seconds", value}, {"--seconds"});
    refused({"plan", "--goal", "ttft_p90_s=1", "--requests-per-second", value}, {"--requests-per-second"});
    refused({"validate", "x", "--max-error", value}, {"--max-error"});
    refused({"trace", "info", "x", "--session-gap", value}, {"--session-gap"});
    refused({"trace", "generate", "--out", "x", "--duration", value}, {"--duration"});
    refused({"hitrate", "--capacity", "9", "--turns", value}, {"--turns"});
  }
}

TEST_F(BadInput, RatesThatRoundToNothing) {
  for (const char* key : {"hardware.set.disk_read_gbps", "hardware.set.disk_write_gbps", "hardware.set.remote_gbps",
                          "hardware.set.pool_bandwidth", "hardware.set.host_link_gbps"}) {
    refused_set(std::string(key) + "=1e-10", {key, "it must be 0, or at least"});
  }
}

TEST_F(BadInput, TypesAndRanges) {
  refused_file("[cache]\npage_tokens = \"64\"\n", {"bad.toml:2", "cache.page_tokens", "an integer"});
  refused_file("[cache]\npage_tokens = 64.0\n", {"bad.toml:2", "cache.page_tokens", "an integer"});
  refused_file("[cache]\npage_tokens = [64]\n", {"bad.toml:2", "cache.page_tokens"});
  refused_file("[cache]\npage_tokens = 2026-01-01\n", {"bad.toml:2", "cache.page_tokens"});
  refused_file("[cache]\nio = 3\n", {"bad.toml:2", "cache.io", "a string"});
  refused_file("[cache]\noutput = 1\n", {"bad.toml:2", "cache.output", "true or false"});
  refused_file("cache = 3\n", {"bad.toml:1", "cache"});
  refused_file("[cache]\nio.name = 3\n", {"bad.toml:2", "cache.io.name", "cache.io"});
  refused_file("[tiers.host]\ngib = -1.5\n", {"bad.toml:2", "tiers.host.gib", "-1.5", "at least 0"});
  refused_file("[tiers.host]\ngib = nan\n", {"bad.toml:2", "tiers.host.gib", "at least 0"});
  refused_file("[tiers.host]\ngib = inf\n", {"bad.toml:2", "tiers.host.gib", "at most"});
  refused_set("tiers.host.tokens=-5", {"--set", "tiers.host.tokens", "-5", "at least 0"});
  refused_set("cache.page_tokens=0", {"--set", "cache.page_tokens", "at least 1"});
  refused_set("cache.page_tokens=", {"--set", "cache.page_tokens", "an integer"});
  refused_set("cache.page_tokens=64 tokens", {"--set", "cache.page_tokens", "tokens is no unit", "60k or 4Ki"});
  refused_set("cache.page_tokens=99999999999999999999", {"--set", "cache.page_tokens", "an integer"});
  refused_set("cache.pagetokens=3", {"--set", "\"cache.page_tokens\"?"});
  refused_set("parallel.tp=3", {"3"});
  refused_set("parallel.ep=2", {"parallel.ep", "2", "divide", "parallel.tp"});
  refused_set("parallel.rank_model=threads", {"parallel.rank_model", "lockstep", "instances"});
  refused_set("cluster.route=random", {"cluster.route", "round_robin", "prefix_affinity"});
  refused_set("sim.straggler_factor=2", {"faults (--set): rank(index=0, factor=2)", "parallel.rank_model"});
  refused_set("workload.trace=caf\xe9.jsonl", {"--set", "workload.trace", "UTF-8"});
  refused_set("workload.time_scale=0", {"--set", "workload.time_scale", "at least"});
}

TEST_F(BadInput, Tiers) {
  refused_set("tiers.host.tokens=63", {"tiers.host.tokens", "63", "page of 64", "cache.page_tokens"});
  refused_set("tiers.device.tokens=63", {"tiers.device.tokens", "63", "page of 64", "cache.page_tokens"});
  refused_set("tiers.host.gib=0.001", {"tiers.host.gib", "page of 64"});
  refused_set("tiers.host.gib=1e9", {"tiers.host.gib", "smaller"});
  refused_file("[tiers.host]\ngib = 3.0\ntokens = 64000\n",
               {"bad.toml:", "tiers.host.gib", "tiers.host.tokens", "one of them"});
  refused_file("[model]\nname = \"tiny\"\nconfig = \"x.json\"\n",
               {"bad.toml:", "model.name", "model.config", "one of them"});
  // A page that is larger than the device memory without the weights.
  refused({"simulate", "good.toml", "--set", "cache.page_tokens=900000"}, {"cache.page_tokens", "900000", "smaller"});
  refused_set("model.name=llama-3.1-70b", {"llama-3.1-70b", "h100-sxm", "parallel.tp"});
}

TEST_F(BadInput, UnknownNamesListTheKnown) {
  refused_set("model.name=llama-3.1-8", {"\"llama-3.1-8\"", "\"llama-3.1-8b\"?", "llama-3.1-70b", "config.json"});
  refused_set("hardware.name=h100", {"\"h100\"", "h100-sxm", "gb200", "cpu-host"});
  refused_set("cache.eviction=lruu", {"cache.eviction", "\"lru\"?", "fifo"});
  for (const std::string bound : {"opt", "opt-cost", "infinite"}) {
    refused_set("cache.eviction=" + bound, {"cache.eviction", bound, "hitrate"});
  }
  refused_set("cache.layout=page-first", {"cache.layout", "\"page_first\"?", "layer_first", "page_head"});
  refused_set("cache.io=automatic", {"cache.io", "kernel", "direct", "auto"});
  refused_set("scheduler.order=lpm", {"scheduler.order", "fcfs", "longest_prefix"});
  refused_set("cache.evict_unit=block", {"cache.evict_unit", "page", "node"});
  refused_set("cache.prefetch_policy=never",
              {"cache.prefetch_policy", "best_effort", "wait_complete", "timeout", "cost_stop"});
  refused_set("cache.prefetch_admission=price", {"cache.prefetch_admission", "threshold", "cost"});
  refused_set("cache.load_back_admission=price", {"cache.load_back_admission", "threshold", "cost"});
  refused_set("cache.pool_eviction=fifo", {"cache.pool_eviction", "lru", "work_per_byte"});
  refused_set("model.kv_dtype=int3", {"model.kv_dtype", "fp8"});
}

TEST_F(BadInput, ModelAndHardwareFiles) {
  refused_set("model.config=nowhere.json", {"nowhere.json"});
  refused_set("hardware.file=nowhere.json", {"nowhere.json"});
  refused_set("model.config=.", {".: ", "can't be read", "JSON"});
  write_text(folder_ / "broken.json", "{\"num_hidden_layers\": 32,\n\"hidden_size\": }\n");
  refused_set("model.config=broken.json", {"broken.json"});
  refused_set("hardware.file=broken.json", {"broken.json"});
  write_text(folder_ / "list.json", "[]");
  refused_set("model.config=list.json", {"list.json", "object"});
  refused_set("hardware.file=list.json", {"list.json", "object"});
  write_text(folder_ / "empty.json", "{}");
  refused_set("model.config=empty.json", {"empty.json"});
  refused_set("hardware.file=empty.json", {"empty.json", "numbers"});
  write_text(folder_ / "fast.json", R"({"numbers": {"host_to_device": {"value": 12500, "unit": "GB/s"}}})");
  refused_set("hardware.file=fast.json", {"fast.json", "host_to_device", "1,000 GB/s"});
}

TEST_F(BadInput, GeneratorWithoutEnd) {
  write_text(folder_ / "empty.toml", "");
  refused({"simulate", "empty.toml", "--set", "workload.generate.duration_s=0"},
          {"workload.generate.duration_s", "workload.generate.requests"});
  refused({"simulate", "empty.toml", "--set", "workload.generate.duration_s=1e-12"},
          {"workload.generate.duration_s", "workload.generate.requests"});
}

// ---- traces ------------------------------------------------------------------------------------------

TEST_F(BadInput, Trace) {
  refused_set("workload.trace=nowhere.jsonl", {"nowhere.jsonl", "No such file"});
  refused_set("workload.trace=.", {"\".\""});
  std::string seven;
  for (int i = 0; i < 6; ++i)
    seven += R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
             "\n";
  refused_trace(seven +
                    R"({"timestamp": 0, "input_length": 1, "output)"
                    "\n" +
                    seven,
                {"line 7", "JSON"});
  refused_trace(seven + "[1, 2]\n", {"line 7", "object"});
  refused_trace(seven + R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]})",
                {"line 7", "hash_ids", "513", "2 blocks of 512"});
  refused_trace(R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
                "\n" +
                    seven,
                {"line 2", "timestamp", "earlier"});
  refused_trace(R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})", {"line 1", "timestamp", "missing"});
  refused_trace(R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
                {"line 1", "timestamp"});
  refused_trace(R"({"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": [1]})",
                {"line 1", "input_length"});
  refused_trace(std::string("\0\n\x01", 3), {"line 1", "JSON"});
}

TEST_F(BadInput, CutOffCompression) {
  const std::string whole = text_of(in_source("traces/chat_small.jsonl.zst"));
  // The file is cut off, so the error appears after thousands of requests.
  write_text(folder_ / "cut.zst", whole.substr(0, whole.size() / 16));
  refused_set("workload.trace=cut.zst", {"cut.zst", "cut off", "zstd"});
  write_text(folder_ / "cut.zst", whole.substr(0, 7));
  refused_set("workload.trace=cut.zst", {"cut.zst", "cut off", "zstd"});
  std::string broken = whole.substr(0, 4096);
  broken[100] = static_cast<char>(broken[100] ^ 0x55);
  write_text(folder_ / "cut.zst", broken);
  refused_set("workload.trace=cut.zst", {"cut.zst"});

  // An empty gzip member (1f 8b 08 ...), cut at several places.
  const std::string gzip("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00", 20);
  for (const std::size_t length : {3UL, 10UL, 12UL, 19UL}) {
    write_text(folder_ / "cut.gz", gzip.substr(0, length));
    refused_set("workload.trace=cut.gz", {"cut.gz", "cut off", "gzip"});
  }
}

// ---- where results go --------------------------------------------------------------------------------

TEST_F(BadInput, RunFolder) {
  fs::create_directory(folder_ / "full");
  write_text(folder_ / "full/notes.txt", "mine");
  refused({"simulate", "good.toml", "--out", "full"}, {"--out full", "not empty", "--force"});
  refused({"simulate", "good.toml", "--out", "full", "--force"}, {"--out full", "report.json", "--force"});
  refused({"simulate", "good.toml", "--out", "good.toml"}, {"--out good.toml", "is a file"});
  refused({"simulate", "good.toml", "--out", "good.toml", "--force"}, {"--out good.toml", "is a file"});
  refused({"simulate", "good.toml", "--out", "good.toml/run"}, {"--out good.toml/run", "can't be written"}, 1);
  refused({"simulate", "good.toml", "--out", "/proc/kvtwin/run"}, {"--out /proc/kvtwin/run", "can't be written"}, 1);
  refused({"simulate", "good.toml", "--out", ""}, {"--out"});
}

TEST_F(BadInput, ForceReplacesARunFolderWhole) {
  const std::vector<std::string> arguments{"simulate", "good.toml", "--world", kAnyWorld, "--out", "out"};
  ASSERT_EQ(run(arguments, around_).exit_code, 0);
  write_text(folder_ / "out/old.txt", "from the run before");
  refused(arguments, {"--out out", "not empty", "--force"});
  std::vector<std::string> forced = arguments;
  forced.emplace_back("--force");
  const Outcome outcome = run(forced, around_);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out/old.txt"));
  EXPECT_TRUE(fs::exists(folder_ / "out/report.json"));
  // A failed run does not change the old run folder.
  refused({"simulate", "good.toml", "--out", "out", "--force", "--set", "workload.trace=nowhere.jsonl"},
          {"nowhere.jsonl"});
  EXPECT_TRUE(fs::exists(folder_ / "out/report.json"));
}

// The name of the folder may be written in any form.
TEST_F(BadInput, RunFolderIsNamedAsUsersDo) {
  for (const char* name : {"plain", "slash/", "a/b/c", "./dot", "up/../over", "with space"}) {
    const Outcome outcome = run({"simulate", "good.toml", "--world", kAnyWorld, "--out", name}, around_);
    EXPECT_EQ(outcome.exit_code, 0) << name << ": " << outcome.err;
    const fs::path report = (folder_.path() / name / "report.json").lexically_normal();
    EXPECT_TRUE(fs::exists(report)) << name;
    const Outcome again = run({"simulate", "good.toml", "--world", kAnyWorld, "--out", name, "--force"}, around_);
    EXPECT_EQ(again.exit_code, 0) << name << ": " << again.err;
    EXPECT_TRUE(fs::exists(report)) << name;
  }
  for (const std::string& name : files()) EXPECT_EQ(name.find("partial"), std::string::npos) << name;
  // A symbolic link stays a link, and the folder behind it is replaced.
  fs::create_directory(folder_ / "disk");
  fs::create_directory_symlink(folder_ / "disk", folder_ / "link");
  for (const bool again : {false, true}) {
    std::vector<std::string> arguments{"simulate", "good.toml", "--world", kAnyWorld, "--out", "link"};
    if (again) arguments.emplace_back("--force");
    EXPECT_EQ(run(arguments, around_).exit_code, 0);
    EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
    EXPECT_TRUE(fs::exists(folder_ / "disk/report.json"));
  }
  // An empty folder that exists already.
  fs::create_directory(folder_ / "here");
  Surroundings inside = around_;
  inside.folder = folder_ / "here";
  const Outcome outcome = run({"simulate", "../good.toml", "--world", kAnyWorld, "--out", "."}, inside);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(folder_ / "here/report.json"));
}

TEST_F(BadInput, FullStdout) {
  around_.out_file = "/dev/full";
  refused({"simulate", "good.toml", "--world", kAnyWorld}, {"stdout", "disk full"}, 1);
  refused({"simulate", "good.toml", "--world", kAnyWorld, "--json"}, {"stdout", "disk full"}, 1);
  refused({"simulate", "--help-keys"}, {"stdout", "disk full"}, 1);
  refused({"presets"}, {"stdout", "disk full"}, 1);
  refused({"presets", "--json"}, {"stdout", "disk full"}, 1);
  refused({"--help"}, {"stdout", "disk full"}, 1);
  refused({"--version"}, {"stdout", "disk full"}, 1);
}

TEST_F(BadInput, FiguresOfHitrate) {
  const auto refused_option = [this](const std::string& option, const std::string& value) {
    refused({"hitrate", "--trace", "trace.jsonl", "--capacity", "10", option, value}, {option, value});
  };
  for (const char* option : {"--queue-view", "--host-capacity", "--limit"}) {
    refused_option(option, "-1");
    refused_option(option, "many");
  }
  refused_option("--end-hints", "101");
  for (const char* eviction : {"slru(protected=0)", "slru(", "lru(x=1)", "opt(x=1)", "slru(protect=3)"}) {
    refused_option("--eviction", eviction);
  }
  refused_option("--host-load", "-1");
  refused({"hitrate", "--trace", "trace.jsonl", "--capacity", "10", "--host-load", "nan"},
          {"--host-load", "finite number"});
}

TEST_F(BadInput, WritePoliciesOfHitrate) {
  const auto refused_words = [this](const std::vector<std::string>& more, const std::vector<std::string>& parts) {
    std::vector<std::string> words{"hitrate", "--trace", "trace.jsonl", "--capacity", "10"};
    words.insert(words.end(), more.begin(), more.end());
    refused(words, parts);
  };
  const std::string write = "--write-policy", host = "--host-capacity";
  refused_words({write, "write_around", host, "10"}, {write, "write_around", "write_back"});
  refused_words({write, "write_back"}, {write, host});
  refused_words({"--sglang-rules", host, "10"}, {"--sglang-rules", write});
  refused_words({write, "write_through", host, "10", "--eviction", "lru,opt"}, {"--eviction opt", "bound", write});
  refused_words({write, "write_through", host, "10", "--queue-view", "4"}, {"--queue-view", write});
  refused_words({write, "write_through", host, "10", "--exclusive"}, {"--exclusive", "write_back", "write_through"});
  refused_words({write, "write_back", host, "10", "--model", "nobody"}, {"--model", "nobody"});
  refused_words({write, "write_back", host, "4000000001"}, {host, "4 billion"});
}

TEST_F(BadInput, APathWhoseLinksLoop) {
  fs::create_symlink("loop", folder_ / "loop");
  refused({"plan", "--model", "tiny", "--requests-per-second", "1", "--prompt-tokens", "9", "--output-tokens", "9",
           "--goal", "ttft_p90_s=1", "--out", "loop"},
          {"loop: ", "links", "give a path that can be followed"});
  fs::create_directory(folder_ / "run");
  write_text(folder_ / "run/report.json", "{}");
  around_.environment = {"KVTWIN_PYTHON=" + (folder_ / "loop/bin/python")};
  refused({"figures", "run"}, {"loop/bin/python: no such Python", "KVTWIN_PYTHON"});
}

}  // namespace
}  // namespace kvtwin::test
