// Tests SGLang's server flags: the keys that a flag sets, the assumed defaults, the notes, and the errors.
#include "lab/sglang/sglang_flags.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/engine_flags/model_names.hpp"
#include "lab/error.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/sglang/sglang_table.hpp"
#include "models/presets.hpp"
#include "tests/paths.hpp"
#include "tests/simulation.hpp"
#include "tests/unit/lab/listed_flags.hpp"

namespace kvtwin::test {
namespace {

Experiment from_flags(const std::string& flags, const std::string& file = "") {
  Experiment experiment = Experiment::from_text(file, "file.toml");
  apply_sglang_flags(experiment, flags);
  return experiment;
}

Experiment from_info(const std::string& json, const std::string& file = "") {
  Experiment experiment = Experiment::from_text(file, "file.toml");
  apply_sglang_server_info_text(experiment, json, "info.json");
  return experiment;
}

// Returns all notes as one text.
std::string notes_of(const Experiment& experiment) {
  std::string text;
  for (const std::string& note : experiment.notes()) text += note + "\n";
  return text;
}

template <typename Function>
void expect_refused(const Function& function, const std::vector<std::string>& parts) {
  try {
    function();
  } catch (const InputError& error) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "not refused: " << parts.front();
}

void expect_flags_refused(const std::string& flags, const std::vector<std::string>& parts) {
  SCOPED_TRACE(flags);
  expect_refused([&] { from_flags(flags); }, parts);
}

const std::string kHost = "--enable-hierarchical-cache ";

TEST(SglangFlags, EachSetsItsKey) {
  struct Case {
    std::string flags, key, value;
  };
  for (const Case& c : {
           Case{"--page-size 32", "cache.page_tokens", "32"},
           {"--page-size=32", "cache.page_tokens", "32"},
           {"--page-size 16 --page-size 32", "cache.page_tokens", "32"},
           {"--tp 4", "parallel.tp", "4"},
           {"--tp-size 4", "parallel.tp", "4"},
           {"--tensor-parallel-size=4", "parallel.tp", "4"},
           {"--dp-size 2", "cluster.engines", "2"},
           {"--tp 8 --dp-size 4 --enable-dp-attention", "parallel.attention_dp", "4"},
           {"--tp 8 --enable-dp-attention --dp 2", "parallel.attention_dp", "2"},
           {"--tp 8 --enable-dp-attention --dp 2 --max-total-tokens 1000", "tiers.device.tokens", "2000"},
           {"--tp 8 --attention-data-parallel-size 4", "parallel.attention_dp", "4"},
           {"--tp 8 --attention-data-parallel-size 4 --max-total-tokens 1000", "tiers.device.tokens", "4000"},
           {"--tp 8 --attention-data-parallel-size 4 --load-balance-method total_requests", "parallel.attention_route",
            "'least_loaded'"},
           {"--dp-size 2 --load-balance-method total_requests", "cluster.route", "'least_loaded'"},
           {"--disaggregation-mode prefill", "cluster.prefill", "1"},
           {"--disaggregation-mode decode", "cluster.decode", "1"},
           {"--disaggregation-mode decode", "cluster.decode_cache", "false"},
           {"--disaggregation-mode decode --disaggregation-decode-enable-radix-cache", "cluster.decode_cache", "true"},
           {"--disaggregation-mode null", "cluster.prefill", "0"},
           {"--kv-cache-dtype bfloat16", "model.kv_dtype", "'bf16'"},
           {"--kv-cache-dtype fp8_e4m3", "model.kv_dtype", "'fp8'"},
           {"--kv-cache-dtype fp8_e5m2", "model.kv_dtype", "'fp8'"},
           {"--kv-cache-dtype mxfp8", "model.kv_dtype", "'mxfp8'"},
           {"--kv-cache-dtype nvfp4", "model.kv_dtype", "'nvfp4'"},
           {"--quantization fp8", "model.weights", "'fp8'"},
           {"--quantization modelopt_fp4", "model.weights", "'nvfp4'"},
           {"--model-path Qwen/Qwen3-32B-FP8 --quantization fp8", "model.weights", "'fp8_block'"},
           {"--max-total-tokens 123456", "tiers.device.tokens", "123456"},
           {"--max-total-tokens 20k", "tiers.device.tokens", "20000"},
           {"--max-total-tokens 1.5m", "tiers.device.tokens", "1500000"},
           {"--max-total-tokens 2Mi", "tiers.device.tokens", "2097152"},
           {"--mem-fraction-static 0.875", "tiers.device.memory_fraction", "0.875"},
           {"--chunked-prefill-size 4096", "scheduler.chunk_tokens", "4096"},
           {"--chunked-prefill-size -1", "scheduler.chunk_tokens", "16384"},
           {"--chunked-prefill-size -1 --max-prefill-tokens 32768", "scheduler.chunk_tokens", "32768"},
           {"--max-running-requests 48", "scheduler.max_running", "48"},
           {"--max-queued-requests 7", "scheduler.max_waiting", "7"},
           {"--schedule-policy lpm", "scheduler.order", "'longest_prefix'"},
           {"--schedule-policy fcfs", "scheduler.order", "'fcfs'"},
           {"--schedule-policy hrrn", "scheduler.order", "'hrrn'"},
           {"--schedule-policy shortest-prefill-first", "scheduler.order", "'shortest_prefill_first'"},
           {"--radix-eviction-policy slru", "cache.eviction", "'slru'"},
           {"--model-path meta-llama/Llama-3.1-70B-Instruct", "model.name", "'llama-3.1-70b'"},
           {"--model /models/Meta-Llama-3.1-70B/", "model.name", "'llama-3.1-70b'"},
           {"--model-path deepseek-ai/DeepSeek-V3-0324", "model.name", "'deepseek-v3'"},
           {"--model-path deepseek-ai/DeepSeek-V3.1", "model.name", "'deepseek-v3'"},
           {"--model-path Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "model.name", "'qwen3-coder-30b-a3b'"},
           {"--model-path openai/gpt-oss-120b", "model.name", "'gpt-oss-120b'"},
           {"--model-path Qwen/Qwen3-3B", "model.name", "'Qwen/Qwen3-3B'"},
           {"--max-total-tokens 1.5M", "tiers.device.tokens", "1500000"},
           {"--radix-eviction-policy tlru", "cache.eviction", "'tlru'"},
           {"--radix-eviction-policy tlru --radix-eviction-policy-config '{\"threshold\": 4096}'", "cache.eviction",
            "'tlru(threshold=4096)'"},
           {"--radix-eviction-policy tlru --radix-eviction-policy-config={\"next_prompt_estimate\":50}",
            "cache.eviction", "'tlru(next_prompt=50)'"},
           {"--radix-eviction-policy slru --radix-eviction-policy-config {\"protected_threshold\":4}", "cache.eviction",
            "'slru(protected=4)'"},
           {"--enable-hicache --hicache-ratio 3", "tiers.host.ratio", "3.0"},
           {kHost + "--hicache-storage-prefetch-retry-max-attempts 3", "cache.prefetch_attempts", "4"},
           {kHost + "--hicache-storage-prefetch-retry-max-attempts 0", "cache.prefetch_attempts", "1"},
           {kHost + "--hicache-ratio 1.5", "tiers.host.ratio", "1.5"},
           {kHost + "--hicache-write-policy write_back", "cache.write_policy", "'write_back'"},
           {kHost + "--hicache-write-policy write_through_selective", "cache.write_policy",
            "'write_through_selective'"},
           {kHost + "--hicache-io-backend direct", "cache.io", "'direct'"},
           {kHost + "--hicache-mem-layout layer_first", "cache.layout", "'layer_first'"},
           {kHost + "--hicache-storage-prefetch-policy best_effort", "cache.prefetch_policy", "'best_effort'"},
           {kHost + "--hicache-storage-backend file", "tiers.disk.gib", "1000000000.0"},
           {kHost + "--hicache-storage-backend hf3fs", "tiers.shared_fs.gib", "1000000000.0"},
           {kHost + "--hicache-storage-backend mooncake", "tiers.remote.gib", "1000000000.0"},
           {kHost + "--hicache-storage-backend nixl", "tiers.remote.gib", "1000000000.0"},
       }) {
    const Experiment experiment = from_flags(c.flags);
    EXPECT_EQ(experiment.as_toml(c.key), c.value) << c.flags;
    EXPECT_TRUE(experiment.origin(c.key).starts_with("--from-sglang-flags --") || experiment.as_toml(c.key) == "0")
        << c.flags << ": " << experiment.origin(c.key);
  }
}

// --hicache-size is in 10^9 bytes per rank; kvtwin's key is in GiB of all ranks. The position of --tp does not matter.
TEST(SglangFlags, HostSizeCountsEachRank) {
  for (const std::string& flags :
       {kHost + "--hicache-size 100 --tp 4", "--tp 4 --hicache-ratio 3 --hicache-size=100 " + kHost}) {
    const Experiment experiment = from_flags(flags);
    EXPECT_DOUBLE_EQ(experiment.number("tiers.host.gib"), 4 * 100e9 / 1073741824.0);
    EXPECT_EQ(experiment.number("tiers.host.ratio"), 0);
    EXPECT_EQ(experiment.origin("tiers.host.gib"), "--from-sglang-flags --hicache-size");
  }
  const Experiment none = from_flags(kHost + "--hicache-size 0");
  EXPECT_EQ(none.number("tiers.host.ratio"), 2);
}

// SGLang's ratio is min(2, 0.95 * budget / device bytes), and its budget is 0.8 of the free memory less 10 GiB.
TEST(SglangFlags, FreeMemoryCutsAHostTierThatNoFlagSizes) {
  const std::string machine = "[tiers.host]\nmemory_gib = 30\n[tiers.device]\ntokens = 100000\n[parallel]\ntp = 2\n";
  const std::string flags = kHost + "--page-size 16 --tp 2 ";
  const auto setup_of = [&](const std::string& more, const std::string& file) {
    return make_setup(from_flags(flags + more, file));
  };
  const kvtwin::Setup cut = setup_of("", machine);
  const double device_bytes = static_cast<double>(cut.engine.device_pages) * static_cast<double>(cut.page_bytes()) * 2;
  const auto pages_of = [&](double gib) {
    return static_cast<Pages>(static_cast<double>(cut.engine.device_pages) * (gib * 1073741824.0 / device_bytes));
  };
  EXPECT_EQ(cut.engine.host_pages, pages_of(0.8 * 20 * 0.95));
  EXPECT_LT(cut.engine.host_pages, 2 * cut.engine.device_pages);
  std::string notes;
  for (const std::string& note : cut.notes) notes += note + "\n";
  EXPECT_NE(notes.find("tiers.host.memory_gib = 30 bounds it"), std::string::npos) << notes;
  EXPECT_EQ(notes.find("is not set"), std::string::npos) << notes;

  const std::string fraction = "--hicache-host-memory-fraction 0.5";
  EXPECT_EQ(setup_of(fraction, machine).engine.host_pages, pages_of(0.5 * 20 * 0.95));
  const std::string large = "[tiers.host]\nmemory_gib = 3000\n[tiers.device]\ntokens = 100000\n[parallel]\ntp = 2\n";
  EXPECT_EQ(setup_of("", large).engine.host_pages, 2 * cut.engine.device_pages);
  // A size that a flag names is not cut, and neither is the tier of a release before 0.5.21.
  EXPECT_EQ(setup_of("--hicache-ratio 2", machine).engine.host_pages, 2 * cut.engine.device_pages);
  EXPECT_EQ(from_flags(flags + "--hicache-size 40", machine).number("tiers.host.memory_share"), 0);
  Experiment earlier = Experiment::from_text(machine, "file.toml");
  apply_sglang_flags(earlier, flags, {}, find_sglang_release("0.5.20"));
  EXPECT_EQ(make_setup(earlier).engine.host_pages, 2 * cut.engine.device_pages);

  Experiment full = from_flags(flags, machine);
  full.set("tiers.host.memory_gib=9");
  expect_refused([&] { make_setup(full); }, {"tiers.host.memory_gib (--set)", "reserve of 10 GiB"});
  // The written ratio is the bounded one.
  const Experiment bounded = from_flags(flags, machine);
  const ServerLine line = to_sglang_flags(bounded, make_setup(bounded));
  EXPECT_EQ(make_setup(from_flags(line.line)).engine.host_pages, cut.engine.host_pages) << line.line;
}

TEST(SglangFlags, WhatIsNotGivenIsSglangsDefaultUnlessTheFileSaysIt) {
  const Experiment plain = from_flags(kHost);
  EXPECT_EQ(plain.integer("cache.page_tokens"), 1);
  EXPECT_EQ(plain.origin("cache.page_tokens"), "SGLang's default of --page-size");
  EXPECT_EQ(plain.text("cache.io"), "kernel");
  EXPECT_EQ(plain.text("cache.layout"), "page_first");
  EXPECT_EQ(plain.text("cache.evict_unit"), "node");
  EXPECT_EQ(plain.number("cache.clean_reserve"), 0);
  EXPECT_EQ(plain.integer("cache.prefetch_retry_steps"), 8);
  EXPECT_EQ(plain.integer("cache.prefetch_attempts"), 9);
  EXPECT_TRUE(plain.flag("cache.rules.prefetch_recheck"));
  EXPECT_TRUE(plain.flag("cache.rules.look_ups_refresh"));
  EXPECT_EQ(plain.text("cache.rules.prefetch_style"), "sglang");
  EXPECT_EQ(plain.number("tiers.host.ratio"), 2);
  for (const char* part : {"--page-size 1", "--hicache-ratio 2", "--hicache-io-backend kernel", "--mem-fraction-static",
                           "--max-running-requests", "SGLang cuts a host tier"}) {
    EXPECT_NE(notes_of(plain).find(part), std::string::npos) << notes_of(plain);
  }
  EXPECT_EQ(plain.text("engine"), "sglang");
  EXPECT_EQ(notes_of(plain).find("engine = "), std::string::npos) << notes_of(plain);
  // Another engine of the file gives way, with a note.
  const Experiment other = from_flags(kHost, "engine = \"vllm\"\n");
  EXPECT_EQ(other.text("engine"), "sglang");
  EXPECT_EQ(other.text("serving.engine"), "sglang");
  EXPECT_EQ(other.text("cache.evict_unit"), "node");
  EXPECT_NE(notes_of(other).find("engine = sglang, not vllm (file.toml:1): the flags are of SGLang"), std::string::npos)
      << notes_of(other);
  const Experiment said = from_flags(
      kHost, "[cache]\npage_tokens = 16\nio = \"auto\"\nevict_unit = \"page\"\n[tiers.host]\ntokens = 640\n");
  EXPECT_EQ(said.integer("cache.page_tokens"), 16);
  EXPECT_EQ(said.origin("cache.page_tokens"), "file.toml:2");
  EXPECT_EQ(said.text("cache.io"), "auto");
  EXPECT_EQ(said.integer("tiers.host.tokens"), 0);  // only the flags determine the size of the host tier
  EXPECT_EQ(said.number("tiers.host.ratio"), 2);
}

// No flag changes how SGLang evicts. So the values of the file are ignored, and a note names them.
TEST(SglangFlags, FixedBehaviourOverridesTheFile) {
  const std::string file =
      "[cache]\nevict_unit = \"page\"\nclean_reserve = 0.25\nwrite_policy = \"write_back\"\nreclaim_shadowed = false\n";
  const Experiment experiment = from_flags(kHost, file);
  EXPECT_EQ(experiment.text("cache.evict_unit"), "node");
  EXPECT_EQ(experiment.number("cache.clean_reserve"), 0);
  EXPECT_TRUE(experiment.flag("cache.rules.reclaim_shadowed"));
  EXPECT_TRUE(experiment.flag("cache.rules.host_evicts_leaving"));
  EXPECT_EQ(experiment.text("cache.rules.reclaim_order"), "shadowed");
  EXPECT_EQ(experiment.text("cache.rules.count_touches"), "insert");
  for (const char* part :
       {"cache.evict_unit = node, not 'page' (file.toml:2)", "cache.clean_reserve = 0, not 0.25 (file.toml:3)",
        "cache.rules.reclaim_shadowed = true, not false (file.toml:5)"}) {
    EXPECT_NE(notes_of(experiment).find(part), std::string::npos) << part << "\n" << notes_of(experiment);
  }
  const Experiment same = from_flags(kHost, "[cache]\nevict_unit = \"node\"\nclean_reserve = 0\n");
  EXPECT_EQ(notes_of(same).find("evict_unit"), std::string::npos) << notes_of(same);
}

// If a caller sets a key later, there is no note about the value from the flags.
TEST(SglangFlags, NoNoteOnWhatIsSetLater) {
  Experiment experiment = Experiment::from_text("[cache]\nevict_unit = \"page\"\n", "file.toml");
  const std::vector<std::string> later = {"cache.evict_unit", "tiers.host.tokens", "model.draft.kind",
                                          "cache.eviction"};
  apply_sglang_flags(experiment, "--speculative-algorithm EAGLE3 --schedule-policy lof --radix-eviction-policy tlru",
                     later);
  const std::string notes = notes_of(experiment);
  for (const char* quiet : {"evict_unit", "host tier", "EAGLE3", "tlru"}) {
    EXPECT_EQ(notes.find(quiet), std::string::npos) << notes;
  }
  EXPECT_NE(notes.find("--schedule-policy lof"), std::string::npos) << notes;
}

TEST(SglangFlags, NoHostTierWithoutTheSwitch) {
  for (const char* size : {"tokens = 6400", "gib = 3.0", "ratio = 2.0"}) {
    const Experiment experiment = from_flags("--page-size 64 --hicache-size 100 --hicache-io-backend direct",
                                             std::string("[tiers.host]\n") + size + "\n");
    EXPECT_EQ(experiment.integer("tiers.host.tokens"), 0);
    EXPECT_EQ(experiment.number("tiers.host.gib"), 0);
    EXPECT_EQ(experiment.number("tiers.host.ratio"), 0);
    EXPECT_EQ(experiment.text("cache.io"), "auto");
    const std::string notes = notes_of(experiment);
    EXPECT_NE(
        notes.find("--enable-hierarchical-cache isn't given, so there is no host tier, the experiment's host tier "
                   "is left out, and --hicache-size 100, --hicache-io-backend direct have no effect"),
        std::string::npos)
        << notes;
    EXPECT_EQ(notes.find("--enable-hierarchical-cache"), notes.rfind("--enable-hierarchical-cache")) << notes;
  }
  const std::string plain = notes_of(from_flags("--page-size 64"));
  EXPECT_NE(plain.find("so there is no host tier\n"), std::string::npos) << plain;
}

// A default that stands for an unknown value has its own note, so it is not also listed as a key without effect.
TEST(SglangFlags, AnUnknownValueIsNotedOnce) {
  const Experiment experiment = from_flags(kHost + "--hicache-storage-prefetch-policy newest_way");
  EXPECT_NE(notes_of(experiment).find("--hicache-storage-prefetch-policy newest_way"), std::string::npos);
  for (const IdleKey& key : idle_keys(experiment)) EXPECT_NE(key.key, "cache.prefetch_policy");
}

TEST(SglangFlags, DeviceTier) {
  const Experiment both = from_flags("--max-total-tokens 64000 --mem-fraction-static 0.8");
  EXPECT_EQ(both.integer("tiers.device.tokens"), 64000);
  EXPECT_EQ(both.number("tiers.device.memory_fraction"), 0);
  EXPECT_NE(notes_of(both).find("--mem-fraction-static is left out"), std::string::npos);
  const Experiment fraction = from_flags("--mem-fraction-static 0.8", "[tiers.device]\ntokens = 6400\n");
  EXPECT_EQ(fraction.integer("tiers.device.tokens"), 0);
  // 0.8 of 80 GB minus 16.06 GB of weights, at 131,072 bytes per token.
  EXPECT_NEAR(static_cast<double>(make_setup(fraction).engine.device_pages), (0.8 * 80e9 * 1.0737 - 16.06e9) / 131072,
              40'000);
}

TEST(SglangFlags, RatioFollowsTheDevice) {
  Experiment experiment = from_flags(kHost + "--hicache-ratio 2.5 --page-size 16 --max-total-tokens 3200");
  EXPECT_EQ(make_setup(experiment).engine.host_pages, 500U);
  experiment.set("tiers.device.tokens=6400");
  EXPECT_EQ(make_setup(experiment).engine.host_pages, 1000U);
  experiment.set("tiers.host.ratio=0.001");
  expect_refused([&] { make_setup(experiment); }, {"tiers.host.ratio (--set)", "less than a page"});
}

TEST(SglangFlags, LayoutsAreRewrittenAsBySglang) {
  struct Case {
    std::string flags, layout, io;
  };
  for (const Case& c : {
           Case{"--hicache-io-backend direct", "page_first_direct", "direct"},
           {"--hicache-io-backend direct --hicache-mem-layout page_first", "page_first_direct", "direct"},
           {"--hicache-mem-layout page_first_direct", "page_first_direct", "direct"},
           {"--hicache-io-backend kernel --hicache-mem-layout page_first_direct", "page_first_direct", "direct"},
           {"--hicache-io-backend direct --hicache-mem-layout layer_first", "layer_first", "direct"},
           {"--hicache-mem-layout layer_first", "layer_first", "kernel"},
           {"--hicache-mem-layout page_head", "page_head", "kernel"},
           {"--hicache-mem-layout layer_first --hicache-storage-backend mooncake", "page_first", "kernel"},
           {"--hicache-mem-layout layer_first --hicache-io-backend direct --hicache-storage-backend mooncake",
            "page_first_direct", "direct"},
           {"--hicache-mem-layout layer_first --hicache-storage-backend file", "layer_first", "kernel"},
       }) {
    const Experiment experiment = from_flags(kHost + c.flags);
    EXPECT_EQ(experiment.text("cache.layout"), c.layout) << c.flags;
    EXPECT_EQ(experiment.text("cache.io"), c.io) << c.flags;
  }
}

TEST(SglangFlags, TheHostMemoryModeIsTheHostsMode) {
  const std::string buffer = kHost + "--hicache-host-memory-mode buffer_only --hicache-storage-backend file ";
  EXPECT_EQ(from_flags(kHost).text("cache.host_mode"), "cache");
  const Experiment given = from_flags(buffer);
  EXPECT_EQ(given.text("cache.host_mode"), "buffer");
  EXPECT_EQ(given.number("tiers.host.ratio"), 1.2) << "SGLang's default for a buffer";
  EXPECT_EQ(notes_of(given).find("buffer_only"), std::string::npos) << notes_of(given);
  EXPECT_EQ(from_flags(buffer + "--hicache-ratio 0.5").number("tiers.host.ratio"), 0.5);
  const Experiment back = from_flags(buffer + "--hicache-write-policy write_back");
  EXPECT_EQ(back.text("cache.write_policy"), "write_through");
  EXPECT_FALSE(back.flag("cache.rules.reclaim_shadowed")) << "the rules are those of write_through";
  EXPECT_NE(notes_of(back).find("becomes write_through"), std::string::npos) << notes_of(back);
  const Experiment alone = from_flags(kHost + "--hicache-host-memory-mode buffer_only");
  EXPECT_EQ(alone.text("cache.host_mode"), "cache");
  EXPECT_NE(notes_of(alone).find("SGLang refuses it without --hicache-storage-backend"), std::string::npos);
}

TEST(SglangFlags, TheLinkerIsStorageWithoutAHost) {
  const std::string linker = "--enable-unified-cache-external-linker";
  const Experiment given = from_flags(linker);
  EXPECT_EQ(given.text("tiers.remote.store"), "mooncake");
  EXPECT_EQ(given.text("cache.prefetch_policy"), "wait_complete");
  EXPECT_EQ(given.integer("cache.prefetch_min_tokens"), 1);
  const kvtwin::Setup setup = make_setup(given);
  EXPECT_EQ(setup.engine.host_pages, 0U);
  EXPECT_EQ(setup.engine.path, CachePath::direct);
  EXPECT_NE(notes_of(given).find("in the step that admits a request"), std::string::npos) << notes_of(given);
  EXPECT_EQ(from_flags(linker + " --unified-cache-external-linker-backend mori").text("tiers.remote.store"), "pool");
  const Experiment both = from_flags(kHost + linker);
  EXPECT_NE(notes_of(both).find("SGLang refuses it beside"), std::string::npos) << notes_of(both);
  EXPECT_EQ(both.text("cache.path"), "via_host");
}

TEST(SglangFlags, ExtraConfiguration) {
  const Folder folder;
  write_text(folder / "extra.json", R"({"prefetch_threshold": 512, "prefetch_timeout_base": 2})");
  const std::string storage = kHost + "--hicache-storage-backend file --hicache-storage-backend-extra-config";
  for (const std::string& flags :
       {storage + R"( '{"prefetch_threshold": 512, "prefetch_timeout_base": 2}')",
        storage + R"( {"prefetch_threshold": 512, "prefetch_timeout_base": 2})",
        storage + R"(={"prefetch_threshold": 512, "prefetch_timeout_base": 2} --page-size 64)",
        storage + R"( "{\"prefetch_threshold\": 512, \"prefetch_timeout_base\": 2}")",
        storage + " @" + (folder / "extra.json")}) {
    const Experiment experiment = from_flags(flags);
    EXPECT_EQ(experiment.integer("cache.prefetch_min_tokens"), 512) << flags;
    EXPECT_EQ(experiment.text("cache.prefetch_policy"), "timeout(base=2s)") << flags;
  }
  const Experiment more = from_flags(storage + R"( '{"tp_lcm_size": 8, "a": {"b": "} {"}}')");
  EXPECT_NE(notes_of(more).find("not modelled: a, tp_lcm_size"), std::string::npos) << notes_of(more);
  const std::string limit = storage + R"( '{"prefetch_timeout_base": 2}')",
                    other = " --hicache-storage-prefetch-policy ";
  EXPECT_NE(notes_of(from_flags(limit + other + "best_effort")).find("without effect under"), std::string::npos);
  EXPECT_EQ(notes_of(from_flags(limit + other + "timeout")).find("without effect under"), std::string::npos);
  expect_flags_refused(storage + R"( '{"prefetch_threshold": "x"}')", {"prefetch_threshold", "a number"});
  expect_flags_refused(storage + R"( '{"prefetch_threshold": -1}')", {"cache.prefetch_min_tokens", "at least 0"});
  expect_flags_refused(storage + " '{'", {"extra-config", "no JSON"});
  expect_flags_refused(storage + " '[1]'", {"extra-config", "object"});
  expect_flags_refused(storage + " {1", {"closing }"});
  expect_flags_refused(storage + " @nowhere.yaml", {"nowhere.yaml", "can't be read"});
  expect_flags_refused(storage + " @/dev/zero", {"/dev/zero", "can't be read"});
}

TEST(SglangFlags, StorageBackEnds) {
  const std::string mooncake = kHost + "--tp 2 --hicache-storage-backend mooncake";
  const auto remote_gib = [](const std::string& flags) { return from_flags(flags).number("tiers.remote.gib"); };
  const std::string extra = mooncake + " --hicache-storage-backend-extra-config ";
  EXPECT_EQ(remote_gib(extra + R"({"global_segment_size": "4gb"})"), 8);
  EXPECT_EQ(remote_gib(extra + R"({"global_segment_size": 1073741824})"), 2);
  EXPECT_NE(notes_of(from_flags(mooncake)).find("no flag says how much mooncake holds"), std::string::npos);
  expect_flags_refused(extra + R"({"global_segment_size": "much"})", {"global_segment_size", "bytes"});
  // The storage back end of the flags replaces the disk tier of the file.
  const Experiment experiment = from_flags(mooncake, "[tiers.disk]\ngib = 4\n");
  EXPECT_EQ(experiment.number("tiers.disk.gib"), 0);
  EXPECT_NE(notes_of(experiment).find("the experiment's disk tier is left out"), std::string::npos);
  const kvtwin::Setup setup = make_setup(from_flags(kHost + "--hicache-storage-backend file "
                                                            "--hicache-storage-prefetch-policy wait_complete "
                                                            "--hicache-storage-prefetch-retry-poll-interval 8 "
                                                            "--hicache-storage-prefetch-max-attempts 2"));
  ASSERT_EQ(setup.engine.storage.size(), 1U);
  EXPECT_EQ(setup.engine.storage[0].tier, Tier::disk);
  EXPECT_TRUE(setup.engine.storage[0].owned);
  EXPECT_EQ(setup.engine.prefetch_policy, "wait_complete");
  EXPECT_EQ(setup.engine.prefetch_retry_steps, 8U);
  EXPECT_EQ(setup.engine.prefetch_attempts, 3U);
}

TEST(SglangFlags, ModelFolders) {
  const Folder folder;
  write_text(folder / "config.json", text_of(in_source("models/presets/models/tiny.json")));
  const Experiment experiment = from_flags("--model-path '" + folder.path().string() + "'");
  EXPECT_EQ(experiment.text("model.config"), folder / "config.json");
  EXPECT_EQ(experiment.text("model.name"), "");
  // A path from flags is relative to the user's current folder, not to the experiment file.
  EXPECT_EQ(experiment.path("model.config"), folder / "config.json");
}

TEST(SglangFlags, WordsAreSplitAsByAShell) {
  for (const char* flags : {
           "--page-size 32 --schedule-policy lpm", "  --page-size\t32\n--schedule-policy   lpm ",
           "--page-size '32' --schedule-policy \"lpm\"", "--page-size=3\"2\" --schedule-policy l'p'm",
           "--page-size \\\n  32 \\\n  --schedule-policy lpm",
           "python3 -m sglang.launch_server --page-size 32 --schedule-policy lpm",
           "CUDA_VISIBLE_DEVICES=0 sglang serve --page-size 32 --schedule-policy lpm",
           "--served-model-name 'a b' --page-size 32 --chat-template \"it's\" --schedule-policy lpm",
           "--log-requests-target stdout /tmp/x --page-size 32 --schedule-policy lpm --cuda-graph-bs 1 2 4",
           "--page-si 32 --schedule-po lpm",  // argparse accepts the beginning of a flag if it is unique
       }) {
    const Experiment experiment = from_flags(flags);
    EXPECT_EQ(experiment.integer("cache.page_tokens"), 32) << flags;
    EXPECT_EQ(experiment.text("scheduler.order"), "longest_prefix") << flags;
  }
}

TEST(SglangFlags, TheNameOfACheckpointTellsItsWeights) {
  struct Case {
    std::string path, preset, weights;
  };
  for (const Case& c : {
           Case{"Qwen/Qwen3-32B", "qwen3-32b", "auto"},
           {"Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8_block"},
           {"Qwen/Qwen3-32B-AWQ", "qwen3-32b", "awq"},
           {"Qwen/Qwen3-32B-GPTQ-Int4", "qwen3-32b", "awq"},
           {"Qwen/Qwen3-32B-GPTQ-Int8", "qwen3-32b", "int8"},
           {"RedHatAI/Qwen3-32B-FP8-dynamic", "qwen3-32b", "fp8"},
           {"RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "llama-3.1-70b", "awq"},
           {"RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b", "int8"},
           {"nvidia/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b", "fp8"},
           {"nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3", "nvfp4"},
           {"nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3", "nvfp4"},
           {"Barrrrry/DeepSeek-R1-W4AFP8", "deepseek-v3", "w4a8"},
           {"unsloth/gpt-oss-120b-BF16", "gpt-oss-120b", "bf16"},
           {"amd/DeepSeek-R1-0528-MXFP4", "deepseek-v3", "mxfp4"},
           {"Intel/Qwen3-30B-A3B-Instruct-2507-int4-AutoRound", "qwen3-30b-a3b", "int4"},
           {"zai-org/GLM-5.1-FP8", "glm-5", "fp8_block"},
           {"zai-org/GLM-5.2-FP8", "glm-5.3", "fp8_block"},
           {"moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", "auto"},
           {"moonshotai/Kimi-K2.6", "kimi-k2.5", "auto"},
           {"nvidia/Qwen3.6-27B-NVFP4", "qwen3.5-27b", "nvfp4"},
           {"/models/qwen3-32b-awq-int4/", "qwen3-32b", "awq"},
           // Names that begin as a preset's and are of another model.
           {"deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "auto"},
           {"Qwen/Qwen3-32B-Drafter", "Qwen/Qwen3-32B-Drafter", "auto"},
       }) {
    const Experiment experiment = from_flags("--model-path " + c.path);
    EXPECT_EQ(experiment.text("model.name"), c.preset) << c.path;
    EXPECT_EQ(experiment.text("model.weights"), c.weights) << c.path;
  }
  EXPECT_NE(notes_of(from_flags("--model-path nvidia/DeepSeek-V3.1-NVFP4")).find("often state an fp8 KV cache"),
            std::string::npos);
  EXPECT_EQ(
      notes_of(from_flags("--model-path nvidia/DeepSeek-V3.1-NVFP4 --kv-cache-dtype fp8_e4m3")).find("often state"),
      std::string::npos);
  EXPECT_EQ(from_flags("--model-path Qwen/Qwen3-32B", "[model]\nweights = \"fp8\"\n").text("model.weights"), "fp8");
}

TEST(SglangFlags, AnUnknownModelHasAWayOut) {
  expect_refused([] { make_setup(from_flags("--model-path Qwen/Qwen3-14B-Instruct")); },
                 {"unknown model \"Qwen/Qwen3-14B-Instruct\"", "The nearest presets: qwen3-",
                  "--set model.config=PATH/config.json"});
  expect_refused([] { make_setup(from_flags("--model-path acme/Zebra-9B")); }, {"--set model.config=PATH/config.json"});
}

// The engine chooses the cache of DSA by the GPU.
TEST(SglangFlags, SparseLatentAttentionHasTheCacheOfTheGpu) {
  const auto bytes = [](const std::string& hardware, const std::string& flags) {
    const std::string file =
        "[hardware]\nname = \"" + hardware + "\"\n[parallel]\ntp = 8\n[tiers.device]\ntokens = 65536\n";
    return make_setup(from_flags("--model-path deepseek-ai/DeepSeek-V3.2 --tp 8 " + flags, file))
        .model.kv_bytes_per_token;
  };
  EXPECT_EQ(bytes("h200-sxm", ""), 61U * (1152 + 132));
  EXPECT_EQ(bytes("h200-sxm", "--kv-cache-dtype fp8_e4m3"), 61U * (656 + 132));
  EXPECT_EQ(bytes("b200-sxm", ""), 61U * (576 + 132));
  EXPECT_EQ(bytes("b200-sxm", "--kv-cache-dtype fp8_e4m3"), 61U * (576 + 132));
  EXPECT_EQ(bytes("b200-sxm", "--kv-cache-dtype bfloat16"), 61U * (1152 + 132));
}

TEST(SglangFlags, WhatIsNotModelledIsNamed) {
  const Experiment experiment = from_flags(
      "--disable-radix-cache --pp-size 2 --dcp-size 8 --context-length 32768 --schedule-conservativeness 1.00 --port "
      "30000 "
      "--host=0.0.0.0 --trust-remote-code --quantization gguf");
  const std::string notes = notes_of(experiment);
  for (const char* part :
       {"not modelled: --disable-radix-cache (kvtwin always caches prefixes)", "--pp-size 2, --dcp-size 8",
        "--context-length 32768", "not modelled: --quantization gguf", "without effect on the cache: "}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
  }
  for (const char* idle : {"--host", "--port", "--trust-remote-code"}) {
    EXPECT_NE(notes.find(idle, notes.find("without effect on the cache")), std::string::npos) << notes;
  }
  EXPECT_EQ(notes.find("--schedule-conservativeness"), std::string::npos) << "as by default";
}

TEST(SglangFlags, Refusals) {
  expect_flags_refused("--page_size 64", {"\"--page_size\"", "\"--page-size\"?"});
  expect_flags_refused("--hicache-rato 2", {"\"--hicache-rato\"", "\"--hicache-ratio\"?"});
  expect_flags_refused("--page-sizes=64", {"\"--page-sizes\"", "\"--page-size\"?", "SGLang 0.5.23"});
  expect_flags_refused("--Page-Size 64", {"\"--page-size\"?"});
  expect_flags_refused("-p 2", {"\"-p\""});
  expect_flags_refused("64", {"\"64\"", "no flag"});
  expect_flags_refused("--page-size 64 65", {"\"65\"", "no flag"});
  expect_flags_refused("--page-size", {"--page-size needs a value"});
  expect_flags_refused("--page-size --tp 2", {"--page-size needs a value"});
  expect_flags_refused("--page-size=", {"--page-size is empty"});
  expect_flags_refused("--page-size 6.5", {"--page-size is 6.5", "integer"});
  expect_flags_refused("--page-size -64", {"--page-size is -64", "at least 1"});
  expect_flags_refused("--page-size 99999999999999999999", {"--page-size", "integer"});
  expect_flags_refused("--page-size 9999999", {"--page-size", "cache.page_tokens", "at most"});
  expect_flags_refused("--max-total-tokens 20K", {"--max-total-tokens", "20K"});  // 20,000 or 20,480?
  expect_flags_refused("--chunked-prefill-size 0", {"--chunked-prefill-size is 0"});
  expect_flags_refused("--mem-fraction-static nan", {"--mem-fraction-static is nan", "number"});
  expect_flags_refused("--mem-fraction-static 1.5", {"--mem-fraction-static", "at most 1"});
  expect_flags_refused("--schedule-policy fcf", {"--schedule-policy", "\"fcf\"", "\"fcfs\"?", "lpm"});
  expect_flags_refused("--schedule-policy ''", {"--schedule-policy", "lpm"});
  expect_flags_refused("--radix-eviction-policy tlru --radix-eviction-policy-config '[1]'",
                       {"policy-config", "object"});
  expect_flags_refused("--radix-eviction-policy tlru --radix-eviction-policy-config '{\"threshold\": \"x\"}'",
                       {"threshold must be an integer"});
  expect_flags_refused("--enable-hierarchical-cache true", {"\"true\"", "no flag"});
  expect_flags_refused("--enable-hierarchical-cache=true", {"--enable-hierarchical-cache takes no value", "true"});
  expect_flags_refused("--hicache-ratio 0", {"--hicache-ratio is 0", "greater than 0"});
  expect_flags_refused("--hicache-size 0.5", {"--hicache-size is 0.5", "integer"});
  expect_flags_refused("--hicache-size many", {"--hicache-size is many", "integer"});
  expect_flags_refused("--model-path ''", {"--model-path is empty"});
  expect_flags_refused("--model-path 'x", {"closing '"});
  expect_flags_refused(std::string(2 << 20, ' '), {"1 MiB"});
}

// A later version of SGLang may have such a flag, without a value, or with one or several values.
TEST(SglangFlags, UnknownOnesFarFromKnownOnesAreNamed) {
  for (const char* unknown : {"--warp-drive", "--warp-drive 9", "--warp-drive=9", "--warp-drive -1",
                              "--warp-drive 1 2 3", "--warp-drive '{\"a\": 1}'", "--hicache 2"}) {
    for (const std::string& flags :
         {std::string(unknown) + " --page-size 32", "--page-size 32 " + std::string(unknown)}) {
      const Experiment experiment = from_flags(flags);
      EXPECT_EQ(experiment.integer("cache.page_tokens"), 32) << flags;
      const std::string notes = notes_of(experiment), name = std::string(unknown).substr(0, 9);
      EXPECT_NE(notes.find("SGLang 0.5.23 has no such flags, so without effect here: " + name), std::string::npos)
          << notes;
    }
  }
  EXPECT_NE(notes_of(from_flags("--" + std::string(100'000, 'x'))).find("has no such flags"), std::string::npos);
  // A value that a later version may have.
  const Experiment policy = from_flags("--schedule-policy by-the-stars", "[scheduler]\norder = \"longest_prefix\"\n");
  EXPECT_EQ(policy.text("scheduler.order"), "fcfs");
  EXPECT_NE(notes_of(policy).find("--schedule-policy by-the-stars: SGLang 0.5.23 has no such value; fcfs"),
            std::string::npos)
      << notes_of(policy);
  const Experiment store = from_flags(kHost + "--hicache-storage-backend cupboard");
  EXPECT_EQ(store.number("tiers.remote.gib"), 1e9);
  EXPECT_NE(notes_of(store).find("--hicache-storage-backend cupboard: no figures of this store"), std::string::npos);
}

// Values that SGLang accepts and kvtwin does not model: kvtwin uses a substitute and names it in a note.
TEST(SglangFlags, ValuesThatAreNotModelledHaveAStandIn) {
  struct Case {
    std::string flags, part, key, value;
  };
  for (const Case& c : {
           Case{kHost + "--hicache-mem-layout page_first_kv_split",
                "--hicache-mem-layout page_first_kv_split; cache.layout = page_first stands for it", "cache.layout",
                "'page_first'"},
           {kHost + "--hicache-io-backend kernel_ascend", "kernel_ascend; cache.io = kernel stands", "cache.io",
            "'kernel'"},
           {"--schedule-policy lof", "--schedule-policy lof; scheduler.order = fcfs stands", "scheduler.order",
            "'fcfs'"},
           {"--schedule-policy dfs-weight", "scheduler.order = longest_prefix stands", "scheduler.order",
            "'longest_prefix'"},
           {"--kv-cache-dtype fp4_mx_block16", "fp4_mx_block16; model.kv_dtype = nvfp4 stands for it (its pages",
            "model.kv_dtype", "'nvfp4'"},
           {"--tp 8 --enable-dp-attention --dp 2 --load-balance-method total_tokens",
            "--load-balance-method total_tokens; parallel.attention_route = least_loaded stands for it (it counts",
            "parallel.attention_route", "'least_loaded'"},
           {"--radix-eviction-policy lru --radix-eviction-policy-config {\"speed\":4}",
            "policy-config {\"speed\":4}, speed", "cache.eviction", "'lru'"},
       }) {
    const Experiment experiment = from_flags(c.flags);
    EXPECT_NE(notes_of(experiment).find(c.part), std::string::npos) << c.flags << "\n" << notes_of(experiment);
    EXPECT_EQ(experiment.as_toml(c.key), c.value) << c.flags;
    EXPECT_NO_THROW(make_setup(experiment)) << c.flags;
  }
  const auto tlru_notes = [](const std::string& config) {
    std::string text;
    for (const std::string& note : make_setup(from_flags("--radix-eviction-policy tlru" + config)).notes) text += note;
    return text;
  };
  EXPECT_NE(tlru_notes("").find("tlru evicts as lru"), std::string::npos);
  EXPECT_EQ(tlru_notes(" --radix-eviction-policy-config {\"threshold\":9}").find("evicts as lru"), std::string::npos);
  const Experiment exact =
      from_flags("--radix-eviction-policy slru --radix-eviction-policy-config {\"protected_threshold\":4}");
  EXPECT_EQ(notes_of(exact).find("not modelled"), std::string::npos) << notes_of(exact);
  expect_refused([] { make_setup(from_flags("--model-path mistralai/Mistral-7B")); },
                 {"model.name (--from-sglang-flags --model-path)"});
}

// The model says the format already, or the method has several.
TEST(SglangFlags, AFormatThatTheModelStatesStays) {
  for (const char* flags : {"--model-path deepseek-ai/DeepSeek-V3 --quantization fp8",
                            "--model-path Qwen/Qwen3-32B --quantization compressed-tensors"}) {
    EXPECT_EQ(from_flags(flags).text("model.weights"), "auto") << flags;
  }
}

TEST(SglangFlags, AnEngineAloneHasNothingToBalance) {
  const Experiment alone = from_flags("--load-balance-method total_requests");
  EXPECT_EQ(alone.origin("cluster.route"), "default");
  EXPECT_EQ(alone.origin("parallel.attention_route"), "default");
  EXPECT_EQ(from_flags("--tp 8 --enable-dp-attention --dp 2").text("parallel.attention_route"), "round_robin");
}

TEST(SglangFlags, TheLinesOfBothRolesAreTwoKindsOfEngines) {
  const std::string prefill = "--disaggregation-mode prefill --page-size 64 --tp 4 --chunked-prefill-size 8192";
  const std::string decode =
      "--disaggregation-mode decode --page-size 64 --tp 8 --disaggregation-decode-enable-radix-cache "
      "--enable-hierarchical-cache --hicache-ratio 2";
  for (const std::vector<std::string>& lines : {std::vector{prefill, decode}, std::vector{decode, prefill}}) {
    Experiment experiment = Experiment::from_text("", "file.toml");
    apply_sglang_lines(experiment, lines);
    EXPECT_EQ(experiment.integer("parallel.tp"), 4);
    EXPECT_EQ(experiment.integer("cluster.prefill"), 1);
    EXPECT_TRUE(experiment.flag("cluster.decode_cache"));
    EXPECT_EQ(experiment.number("tiers.host.ratio"), 0);
    const kvtwin::Setup setup = make_setup(experiment);
    ASSERT_TRUE(setup.decode);
    EXPECT_EQ(setup.engine.ranks, 4U);
    EXPECT_EQ(setup.decode->engine.ranks, 8U);
    EXPECT_EQ(setup.engine.chunk_tokens, 8192U);
    EXPECT_EQ(setup.engine.host_pages, 0U);
    EXPECT_EQ(setup.decode->engine.host_pages, 2 * setup.decode->engine.device_pages);
    EXPECT_EQ(notes_of(experiment).find("second --from-sglang-flags"), std::string::npos) << notes_of(experiment);
  }
  Experiment alone = Experiment::from_text("", "file.toml");
  apply_sglang_flags(alone, decode);
  EXPECT_NE(notes_of(alone).find("the prefill engines have the same flags; where theirs differ, give their line in a "
                                 "second --from-sglang-flags"),
            std::string::npos)
      << notes_of(alone);
  for (const std::vector<std::string>& lines :
       {std::vector{prefill, prefill}, {prefill, std::string("--tp 2")}, {prefill, decode, decode}}) {
    expect_refused(
        [&] {
          Experiment experiment = Experiment::from_text("", "file.toml");
          apply_sglang_lines(experiment, lines);
        },
        {"--from-sglang-flags: is given " + std::to_string(lines.size()) +
         " times; more than once it must be one line"});
  }
}

// A server divides this among its groups before it reports it.
TEST(SglangServer, TheChunkOfAServerIsThatOfAGroup) {
  Experiment experiment = Experiment::from_text("", "file.toml");
  apply_sglang_server_info_text(
      experiment, R"({"tp_size": 8, "dp_size": 8, "enable_dp_attention": true, "chunked_prefill_size": 1024})",
      "i.json");
  EXPECT_EQ(experiment.integer("scheduler.chunk_tokens"), 8192);
}

TEST(SglangFlags, AModelsOwnPredictionLayerIsItsDraft) {
  const std::string large = "[hardware]\nname = 'h200-sxm'\n";
  const std::string model = "--model-path deepseek-ai/DeepSeek-R1 --tp 8 --speculative-algorithm EAGLE ";
  struct Case {
    std::string flags, tokens, length;
  };
  for (const Case& c : {Case{"", "3", "2.49"},
                        {"--speculative-num-steps 1 --speculative-eagle-topk 1", "1", "1.79"},
                        {"--speculative-num-draft-tokens 3", "2", "2.27"}}) {
    const Experiment experiment = from_flags(model + c.flags, large);
    EXPECT_EQ(experiment.text("model.draft.kind"), "packed") << c.flags;
    EXPECT_EQ(experiment.text("model.draft.config"), "deepseek-v3-mtp");
    EXPECT_EQ(experiment.as_toml("model.draft.tokens"), c.tokens);
    EXPECT_DOUBLE_EQ(experiment.number("model.draft.accept_length"), std::stod(c.length));
    EXPECT_NE(notes_of(experiment).find("a decode step yields " + c.length), std::string::npos);
    EXPECT_EQ(notes_of(experiment).find("left out of this plan"), std::string::npos) << notes_of(experiment);
    EXPECT_TRUE(make_setup(experiment).draft);
  }
  // With roles, both engines have it.
  const kvtwin::Setup roles = make_setup(from_flags(model + "--disaggregation-mode prefill", large));
  EXPECT_TRUE(roles.draft && roles.decode->draft);
  EXPECT_EQ(roles.engine.shape.layers, 62U);
  // No draft model is known for this one, and the draft of the experiment has priority.
  EXPECT_EQ(from_flags("--model-path Qwen/Qwen3-32B --speculative-algorithm EAGLE").text("model.draft.kind"), "none");
  EXPECT_EQ(from_flags(model, "[model.draft]\nkind = 'none'\n").text("model.draft.kind"), "none");
}

TEST(SglangFlags, EachBackEndHasAStoreOfItsOwn) {
  std::set<std::string> costs;
  for (const auto& [backend, store] : std::map<std::string, std::string>{{"mooncake", "mooncake"},
                                                                         {"aibrix", "aibrix"},
                                                                         {"eic", "eic"},
                                                                         {"simm", "simm"},
                                                                         {"dynamic", "pool"},
                                                                         {"nixl", "nixl_posix"},
                                                                         {"seaweedfs", "seaweedfs"}}) {
    const Experiment experiment = from_flags(kHost + "--hicache-storage-backend " + backend);
    EXPECT_EQ(experiment.number("tiers.remote.gib"), 1e9) << backend;
    EXPECT_EQ(experiment.number("tiers.disk.gib"), 0) << backend;
    EXPECT_EQ(experiment.text("tiers.remote.store"), store) << backend;
    const std::string sentence = "--hicache-storage-backend " + backend +
                                 (store == "pool" ? ": no figures of this store are known"
                                                  : ": costs as the store preset " + store + " (kvtwin presets)");
    EXPECT_NE(notes_of(experiment).find(sentence), std::string::npos) << notes_of(experiment);
    costs.insert(to_string(make_setup(experiment).cost->coefficients()));
  }
  EXPECT_EQ(costs.size(), 7U) << "two back ends cost the same";
  const Experiment tcp = from_flags(kHost + "--hicache-storage-backend mooncake " +
                                    "--hicache-storage-backend-extra-config {\"protocol\":\"tcp\"}");
  EXPECT_EQ(tcp.text("tiers.remote.store"), "mooncake_tcp");
  EXPECT_NE(notes_of(tcp).find("the store preset mooncake_tcp"), std::string::npos) << notes_of(tcp);
  EXPECT_EQ(notes_of(tcp).find("the store preset mooncake ("), std::string::npos) << notes_of(tcp);
  const Experiment file = from_flags(kHost + "--hicache-storage-backend file");
  EXPECT_EQ(notes_of(file).find("remote store"), std::string::npos);
}

TEST(SglangFlags, Hf3fsIsASharedFileSystem) {
  const Experiment experiment =
      from_flags(kHost + "--hicache-storage-backend hf3fs", "[tiers.disk]\ngib = 4\n[tiers.remote]\ngib = 4\n");
  EXPECT_EQ(experiment.number("tiers.disk.gib"), 0);
  EXPECT_EQ(experiment.number("tiers.remote.gib"), 0);
  const std::string notes = notes_of(experiment);
  EXPECT_EQ(notes.find("remote store"), std::string::npos) << notes;
  EXPECT_NE(notes.find("no flag says how much hf3fs holds: tiers.shared_fs.gib is without bound"), std::string::npos)
      << notes;
  const kvtwin::Setup setup = make_setup(experiment);  // qualified: testing::Setup exists too
  ASSERT_EQ(setup.engine.storage.size(), 1U);
  EXPECT_EQ(setup.engine.storage[0].tier, Tier::shared_fs);
  EXPECT_FALSE(setup.engine.storage[0].owned);
  const Experiment sized = from_flags(kHost + "--hicache-storage-backend hf3fs", "[tiers.shared_fs]\ngib = 4\n");
  EXPECT_EQ(sized.number("tiers.shared_fs.gib"), 4);
  // Only a segment of Mooncake has a size in the extra configuration.
  const Experiment extra = from_flags(kHost +
                                      "--hicache-storage-backend hf3fs --hicache-storage-backend-extra-config "
                                      "'{\"global_segment_size\": \"4gb\", \"prefetch_threshold\": 512}'");
  EXPECT_EQ(extra.number("tiers.shared_fs.gib"), 1e9);
  EXPECT_EQ(extra.integer("cache.prefetch_min_tokens"), 512);
}

TEST(SglangFlags, ADraftThatIsLeftOutIsSaid) {
  const std::string flags = "--speculative-algorithm EAGLE3 --speculative-draft-model-path some/draft";
  const std::string notes = notes_of(from_flags(flags));
  EXPECT_NE(
      notes.find("--speculative-algorithm EAGLE3, --speculative-draft-model-path some/draft (speculative decoding "
                 "and its draft model are left out of this plan"),
      std::string::npos)
      << notes;
  const std::string planned = notes_of(from_flags(flags, "[model.draft]\nkind = \"side_pool\"\n"));
  EXPECT_EQ(planned.find("left out"), std::string::npos) << planned;
}

std::vector<ListedFlag> listed_flags() { return listed_flags_of("tests/fixtures/sglang/server_flags.tsv"); }

TEST(SglangServer, TheTableIsOfTheListedRelease) {
  const std::string text = text_of(in_source("tests/fixtures/sglang/server_flags.tsv"));
  EXPECT_TRUE(text.starts_with("# sglang " + std::string(kSglangVersion) + ",")) << text.substr(0, text.find('\n'));
}

TEST(SglangServer, EveryListedFlagHasARow) {
  const std::vector<std::string>& names = sglang_table().names();
  for (const ListedFlag& listed : listed_flags()) {
    for (const std::string& name : listed.flags) {
      EXPECT_NE(std::ranges::find(names, name), names.end()) << name;
      const EngineFlag* flag = sglang_table().find(name);
      if (flag == nullptr) continue;
      EXPECT_FALSE(flag->earlier) << name;
      EXPECT_EQ(flag->takes == EngineFlag::Takes::nothing, listed.switches()) << name;
      EXPECT_EQ(flag->takes == EngineFlag::Takes::list, listed.takes == "list") << name;
    }
    // /server_info has the field of the row, or a field that is known there.
    EXPECT_TRUE(sglang_table().find_field(listed.field) != nullptr || is_server_info_field(listed.field))
        << listed.field;
  }
}

TEST(SglangServer, EveryRowIsAListedFlag) {
  std::set<std::string> listed;
  for (const ListedFlag& flag : listed_flags()) {
    listed.insert(flag.field);
    listed.insert(flag.flags.begin(), flag.flags.end());
  }
  for (const EngineFlag& flag : sglang_table().flags()) {
    EXPECT_EQ(flag.earlier, !listed.contains(flag.name) && !listed.contains(flag.field)) << flag.name;
  }
}

TEST(SglangServer, DefaultsThatMatterAreTheServers) {
  // Defaults that the parser does not have, because SGLang derives them at the start (sglang/srt/arg_groups/).
  const std::map<std::string, std::string> derived = {
      {"hicache_ratio", "2"}, {"page_size", "1"}, {"prefill_decode_interval", "0"}};
  std::size_t compared = 0;
  for (const ListedFlag& listed : listed_flags()) {
    const EngineFlag* flag = sglang_table().find(listed.flags.front());
    if (flag == nullptr || flag->is == EngineFlag::Is::without_effect) continue;
    std::string expected = listed.unquoted_preset();
    if (listed.preset == "null" || listed.preset == "false") {
      const auto found = derived.find(listed.field);
      expected = found == derived.end() ? "" : found->second;
    }
    EXPECT_EQ(flag->preset, expected) << listed.field;
    ++compared;
  }
  EXPECT_GT(compared, 100U);
}

TEST(SglangServer, ValuesOfTakenFlagsAreTheServers) {
  // Of earlier releases, or of builds of SGLang with further back ends.
  const std::map<std::string, std::set<std::string>> earlier = {{"hicache_storage_backend", {"kvcc"}},
                                                                {"kv_cache_dtype", {"fp4_e2m1"}}};
  for (const ListedFlag& listed : listed_flags()) {
    const EngineFlag* flag = sglang_table().find(listed.flags.front());
    if (flag == nullptr || flag->is != EngineFlag::Is::modelled) continue;
    EXPECT_EQ(flag->takes, takes_of(listed)) << listed.field;
    std::set<std::string> words = sorted_words(flag->words);
    if (const auto gone = earlier.find(listed.field); gone != earlier.end()) {
      for (const std::string& word : gone->second) EXPECT_EQ(words.erase(word), 1U) << listed.field << " " << word;
    }
    EXPECT_EQ(words, std::set<std::string>(listed.choices.begin(), listed.choices.end())) << listed.field;
  }
}

// docs/sglang.md states how many flags set a key, are noted, and have no effect.
TEST(SglangServer, TheDocumentationCountsTheFlags) {
  std::map<EngineFlag::Is, std::size_t> counts;
  const std::vector<ListedFlag> list = listed_flags();
  for (const ListedFlag& listed : list) {
    const EngineFlag* flag = sglang_table().find(listed.flags.front());
    ASSERT_NE(flag, nullptr) << listed.field;
    ++counts[flag->is];
  }
  const std::string sentence = "Of the " + std::to_string(list.size()) + " flags, " +
                               std::to_string(counts[EngineFlag::Is::modelled]) + " are taken, " +
                               std::to_string(counts[EngineFlag::Is::not_modelled]) + " are noted because kvtwin has " +
                               "no model of them, " + std::to_string(counts[EngineFlag::Is::without_effect]) +
                               " have no effect on the cache, and 0 are refused";
  std::string text = text_of(in_source("docs/sglang.md"));
  std::ranges::replace(text, '\n', ' ');
  for (std::size_t at = text.find("  "); at != std::string::npos; at = text.find("  ")) text.erase(at, 1);
  EXPECT_NE(text.find(sentence), std::string::npos) << sentence;
}

TEST(SglangServer, EveryFlagAndEveryValueIsTaken) {
  std::size_t taken = 0;
  const auto take = [&](const std::string& flags) {
    SCOPED_TRACE(flags);
    Experiment experiment = Experiment::from_text("", "");
    ASSERT_NO_THROW(apply_sglang_flags(experiment, flags));
    EXPECT_EQ(notes_of(experiment).find("has no such"), std::string::npos) << notes_of(experiment);
    EXPECT_NO_THROW(make_setup(experiment));
    ++taken;
  };
  for (const ListedFlag& listed : listed_flags()) {
    for (const std::string& name : listed.flags) {
      take(kHost + name + listed.legal_value());
      const EngineFlag* flag = sglang_table().find(name);
      ASSERT_NE(flag, nullptr) << name;
      if (flag->is != EngineFlag::Is::modelled) continue;
      for (const std::string& choice : listed.choices) take(kHost + name + "=" + choice);
    }
  }
  EXPECT_GT(taken, 600U);
}

TEST(SglangFlags, EveryPresetHasARepositoryThatNamesIt) {
  for (const std::string& preset : model_preset_names()) {
    if (preset == "tiny") continue;  // a model of kvtwin's own
    const auto found =
        std::ranges::find(published_models(), std::string_view(preset), [](const auto& row) { return row.first; });
    ASSERT_NE(found, published_models().end()) << preset;
    EXPECT_EQ(from_flags("--model-path " + std::string(found->second)).text("model.name"), preset);
  }
}

// The name of a published checkpoint tells its preset and its format, so that a written line is read back.
TEST(SglangFlags, APublishedCheckpointNamesItsPresetAndFormat) {
  std::size_t checkpoints = 0;
  for (const std::string& preset : model_preset_names()) {
    const ModelGeometry own = model_preset(preset);
    EXPECT_NE(own.checkpoints.size(), 1U) << preset << ": one format is no choice";
    for (const auto& [weights, repository] : own.checkpoints) {
      const NamedModel named = model_named(repository);
      EXPECT_EQ(named.preset, preset) << repository;
      const bool is_own = &repository == &own.checkpoints.front().repository;
      const Bytes bytes = model_preset(preset, KvDtype::automatic, weights).weight_bytes;
      if (is_own) {
        EXPECT_EQ(bytes, own.weight_bytes) << repository;
      } else {
        EXPECT_EQ(name_of(named.weights), name_of(weights)) << repository;
        EXPECT_NE(bytes, own.weight_bytes) << repository;
      }
      ++checkpoints;
    }
  }
  EXPECT_GT(checkpoints, 90U);
}

TEST(SglangFlags, AWrittenLineNamesTheCheckpointOfTheFormat) {
  Experiment experiment = Experiment::from_text("", "x.toml");
  for (const char* setting : {"model.name=qwen3-32b", "model.weights=fp8_block"}) experiment.set(setting);
  const ServerLine line = to_sglang_flags(experiment, make_setup(experiment));
  EXPECT_NE(line.line.find("--model-path Qwen/Qwen3-32B-FP8 --kv-cache-dtype bfloat16"), std::string::npos)
      << line.line;
  for (const std::string& note : line.notes) EXPECT_EQ(note.find("model.weights"), std::string::npos) << note;
  EXPECT_EQ(from_flags(line.line).text("model.weights"), "fp8_block");
  experiment.set("model.weights=mxfp8");
  const ServerLine unpublished = to_sglang_flags(experiment, make_setup(experiment));
  EXPECT_NE(unpublished.line.find("--model-path Qwen/Qwen3-32B "), std::string::npos) << unpublished.line;
  EXPECT_TRUE(std::ranges::any_of(unpublished.notes,
                                  [](const std::string& note) { return note.starts_with("model.weights = mxfp8"); }));
}

// The line always has --max-running-requests, which SGLang's default share of the memory depends on.
TEST(SglangFlags, AWrittenLineKeepsTheSizeOfL1) {
  const auto pages = [](const Experiment& experiment) { return make_setup(experiment).engine.device_pages; };
  Experiment experiment = Experiment::from_text("hardware.name = \"b200-sxm\"\nengine = \"sglang\"\n", "x.toml");
  for (const char* setting : {"model.name=llama-3.1-70b", "parallel.tp=8"}) experiment.set(setting);
  for (const char* setting :
       {"seed=1", "serving.cuda_graphs=false", "scheduler.max_running=64", "tiers.device.memory_fraction=0.7"}) {
    experiment.set(setting);
    const ServerLine line = to_sglang_flags(experiment, make_setup(experiment));
    Experiment again = Experiment::from_text("hardware.name = \"b200-sxm\"\n", "x.toml");
    apply_sglang_lines(again, std::vector<std::string>{line.line}, {}, nullptr);
    EXPECT_EQ(pages(again), pages(experiment)) << line.line;
    EXPECT_EQ(again.flag("serving.cuda_graphs"), experiment.flag("serving.cuda_graphs"));
  }
  experiment.set("engine=none");
  EXPECT_TRUE(
      std::ranges::any_of(to_sglang_flags(experiment, make_setup(experiment)).notes, [](const std::string& note) {
        return note.starts_with("L1 has another size by the rule of SGLang: engine = none leaves ") &&
               note.ends_with(" GiB of a GPU; --max-total-tokens sets it");
      }));
}

TEST(SglangFlags, TableIsSound) {
  std::vector<std::string> names = sglang_table().names();
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end()) << *std::ranges::adjacent_find(names);
  for (const EngineFlag& flag : sglang_table().flags()) {
    EXPECT_EQ(sglang_table().find(flag.name), &flag) << flag.name;
    const auto known = std::ranges::find(experiment_keys(), flag.key, &ExperimentKey::name);
    EXPECT_TRUE(flag.key.empty() || known != experiment_keys().end()) << flag.name;
    EXPECT_EQ(flag.is == EngineFlag::Is::not_modelled, !flag.why.empty()) << flag.name;
  }
}

// ---- a server's own account --------------------------------------------------------------------------

TEST(SglangServerInfo, FieldsSetTheKeys) {
  const Experiment experiment = from_info(R"({
    "model_path": "meta-llama/Llama-3.1-70B-Instruct", "tp_size": 4, "page_size": 64, "kv_cache_dtype": "fp8_e4m3",
    "enable_hierarchical_cache": true, "hicache_ratio": 2.0, "hicache_size": 30, "hicache_io_backend": "direct",
    "hicache_mem_layout": "page_first_direct", "chunked_prefill_size": 8192, "schedule_policy": "lpm",
    "mem_fraction_static": 0.87, "max_total_tokens": null, "max_total_num_tokens": 512000, "pp_size": 1,
    "disable_radix_cache": false, "max_running_requests": 96, "port": 30000, "lora_paths": [], "host": "0.0.0.0",
    "internal_states": [{"a": [1, 2]}], "version": "0.5.9", "something_new": 3})");
  EXPECT_EQ(experiment.text("model.name"), "llama-3.1-70b");
  EXPECT_EQ(experiment.integer("parallel.tp"), 4);
  EXPECT_EQ(experiment.text("model.kv_dtype"), "fp8");
  EXPECT_EQ(experiment.integer("tiers.device.tokens"), 512000);
  EXPECT_EQ(experiment.origin("tiers.device.tokens"), "--from-sglang-server-info: info.json max_total_num_tokens");
  EXPECT_EQ(experiment.number("tiers.device.memory_fraction"), 0);
  EXPECT_DOUBLE_EQ(experiment.number("tiers.host.gib"), 4 * 30e9 / 1073741824.0);
  EXPECT_EQ(experiment.text("cache.io"), "direct");
  EXPECT_EQ(experiment.integer("scheduler.max_running"), 96);
  const std::string notes = notes_of(experiment);
  EXPECT_NE(notes.find("unknown fields: something_new"), std::string::npos) << notes;
  for (const char* quiet : {"port", "lora_paths", "pp_size", "internal_states", "not modelled"}) {
    EXPECT_EQ(notes.find(quiet), std::string::npos) << notes;
  }
}

TEST(SglangServerInfo, OffMeansNoHostTier) {
  const Experiment experiment =
      from_info(R"({"enable_hierarchical_cache": false, "hicache_ratio": 2.0})", "[tiers.host]\ntokens = 6400\n");
  EXPECT_EQ(experiment.integer("tiers.host.tokens"), 0);
  EXPECT_NE(notes_of(experiment).find("there is no host tier"), std::string::npos);
}

TEST(SglangServerInfo, Refusals) {
  const auto refused = [](const std::string& json, const std::vector<std::string>& parts) {
    SCOPED_TRACE(json.substr(0, 100));
    expect_refused([&] { from_info(json); }, parts);
  };
  refused("", {"info.json", "no JSON"});
  refused("[]", {"info.json", "object"});
  refused("{\"page_size\": }", {"info.json", "byte"});
  refused("{\"page_size\": 1e999}", {"info.json", "bounds"});
  refused("{\"page_size\": [64]}", {"info.json", "page_size", "a number or a string"});
  refused("{\"page_size\": 64.5}", {"info.json", "page_size is 64.5", "integer"});
  refused("{\"page_size\": 9999999}", {"info.json", "page_size", "cache.page_tokens", "at most"});
  refused("{\"page_size\": true}", {"info.json", "page_size"});
  refused("{\"schedule_policy\": \"lmp\"}", {"info.json", "schedule_policy", "lpm"});
  refused("{\"enable_hierarchical_cache\": 1}", {"info.json", "enable_hierarchical_cache", "true or false"});
  refused("{\"max_total_num_tokens\": \"x\"}", {"info.json", "max_total_num_tokens is x", "integer"});
  std::string deep = "{\"a\": ";
  for (int i = 0; i < 200'000; ++i) deep += '[';
  refused(deep, {"deeper than 64"});
}

// ---- and back ----------------------------------------------------------------------------------------

std::string canonical(const std::string& flags) {
  const Experiment experiment = from_flags(flags);
  const ServerLine line = to_sglang_flags(experiment, make_setup(experiment));
  EXPECT_TRUE(line.notes.empty()) << flags << ": " << line.notes.front();
  return line.line;
}

// Command lines as in SGLang's documentation and in bug reports, and their canonical form.
TEST(SglangLines, RealOnesBecomeCanonical) {
  const std::string scheduler = " --schedule-policy fcfs --radix-eviction-policy lru";
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct",
       "--model-path meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype auto --tp-size 1 --page-size 1 "
       "--mem-fraction-static 0.829 --chunked-prefill-size 8192 --max-running-requests 256" +
           scheduler},
      {"python3 -m sglang.launch_server --model-path meta-llama/Meta-Llama-3.1-8B-Instruct --host 0.0.0.0 --port 30000 "
       "--page-size 64 --enable-hierarchical-cache --hicache-ratio 2 --hicache-size 100 --hicache-io-backend kernel "
       "--hicache-write-policy write_through --enable-metrics",
       "--model-path meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype auto --tp-size 1 --page-size 64 "
       "--mem-fraction-static 0.829 --chunked-prefill-size 8192 --max-running-requests 256" +
           scheduler +
           " --enable-hierarchical-cache --hicache-size 100 --hicache-write-policy write_through --hicache-io-backend "
           "kernel --hicache-mem-layout page_first --hicache-storage-prefetch-policy timeout"},
      {"sglang serve --model-path deepseek-ai/DeepSeek-R1 --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr "
       "node0:5000 --trust-remote-code --mem-fraction-static 0.9 --chunked-prefill-size 4096 --attention-backend "
       "flashmla --page-size=64 --enable-hierarchical-cache --hicache-mem-layout page_first_direct",
       "--model-path deepseek-ai/DeepSeek-V3 --kv-cache-dtype auto --tp-size 16 --page-size 64 --mem-fraction-static "
       "0.9 --chunked-prefill-size 4096 --max-running-requests 256" +
           scheduler +
           " --enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through --hicache-io-backend "
           "direct --hicache-mem-layout page_first_direct --hicache-storage-prefetch-policy timeout"},
      {"python -m sglang.launch_server --model Qwen/Qwen3-32B --tensor-parallel-size 4 --kv-cache-dtype fp8_e5m2 "
       "--schedule-policy lpm --max-total-tokens 400k --max-running-requests 128 --max-queued-requests 1000 "
       "--enable-hierarchical-cache --hicache-ratio 1.2 --hicache-io-backend direct --page-size 32",
       "--model-path Qwen/Qwen3-32B --kv-cache-dtype fp8_e4m3 --tp-size 4 --page-size 32 --max-total-tokens 400000 "
       "--chunked-prefill-size 8192 --max-running-requests 128 --max-queued-requests 1000 --schedule-policy lpm "
       "--radix-eviction-policy lru --enable-hierarchical-cache --hicache-ratio 1.2 --hicache-write-policy "
       "write_through --hicache-io-backend direct --hicache-mem-layout page_first_direct "
       "--hicache-storage-prefetch-policy timeout"},
  };
  for (const auto& [line, expected] : lines) {
    SCOPED_TRACE(line);
    EXPECT_EQ(canonical(line), expected) << line;
    EXPECT_EQ(canonical(expected), expected);
  }
}

TEST(SglangLines, StorageComesBack) {
  const std::string common =
      "--model-path meta-llama/Llama-3.1-8B-Instruct --kv-cache-dtype auto --tp-size 2 --page-size 64 "
      "--chunked-prefill-size 8192 --max-running-requests 256 --schedule-policy fcfs --radix-eviction-policy lru "
      "--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through --hicache-io-backend kernel "
      "--hicache-mem-layout page_first ";
  for (const char* storage :
       {"--hicache-storage-backend file --hicache-storage-prefetch-policy timeout",
        "--hicache-storage-backend hf3fs --hicache-storage-prefetch-policy timeout",
        "--hicache-storage-backend mooncake --hicache-storage-prefetch-policy best_effort "
        "--hicache-storage-prefetch-retry-poll-interval 4 --hicache-storage-prefetch-retry-max-attempts 3",
        "--hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout "
        "--hicache-storage-backend-extra-config '{\"global_segment_size\":\"4gb\",\"prefetch_threshold\":512}'"}) {
    EXPECT_EQ(canonical(common + storage), common + storage);
  }
}

TEST(SglangLines, NoFlagSaysAPolicyThatNoEngineHas) {
  Experiment experiment = Experiment::from_text("", "");
  const auto notes = [&] {
    std::string all;
    for (const std::string& note : to_sglang_flags(experiment, make_setup(experiment)).notes) all += note + "\n";
    return all;
  };
  experiment.set("model.name=qwen3-next-80b-a3b");
  experiment.set("parallel.tp=4");
  EXPECT_EQ(notes().find("cache.pool_eviction"), std::string::npos);
  EXPECT_EQ(notes().find("cache.state_points"), std::string::npos);
  experiment.set("cache.pool_eviction=work_per_byte(inner=0.5)");
  experiment.set("cache.state_points=overlap");
  EXPECT_NE(notes().find("cache.pool_eviction = work_per_byte(inner=0.5): there is no flag for it"), std::string::npos);
  EXPECT_NE(notes().find("cache.state_points = overlap: there is no flag for it"), std::string::npos);
}

TEST(SglangLines, RulesOfStorageAndHintsHaveNoFlag) {
  Experiment experiment = Experiment::from_text("", "");
  for (const char* setting : {"tiers.host.gib=64", "tiers.shared_fs.gib=4"}) experiment.set(setting);
  const auto notes_of = [&](const char* key) {
    const ServerLine line = to_sglang_flags(experiment, make_setup(experiment));
    return std::ranges::count_if(line.notes, [&](const std::string& note) { return note.starts_with(key); });
  };
  for (const char* setting : {"cache.host_clean_reserve=0.25", "cache.hints=obey"}) {
    const std::string key(setting, std::string_view(setting).find('='));
    EXPECT_EQ(notes_of(key.c_str()), 0) << key;
    experiment.set(setting);
    EXPECT_EQ(notes_of(key.c_str()), 1) << key;
  }
}

TEST(SglangLines, OneStorageBackEnd) {
  Experiment experiment = Experiment::from_text("", "");
  for (const char* setting : {"tiers.host.gib=64", "tiers.shared_fs.gib=4"}) experiment.set(setting);
  ServerLine line = to_sglang_flags(experiment, make_setup(experiment));
  EXPECT_NE(line.line.find("--hicache-storage-backend hf3fs"), std::string::npos) << line.line;
  EXPECT_EQ(std::ranges::count(line.notes, "the shared_fs tier's size: there is no flag for it"), 1);
  experiment.set("tiers.disk.gib=4");
  line = to_sglang_flags(experiment, make_setup(experiment));
  EXPECT_EQ(line.line.find("--hicache-storage-backend"), std::string::npos) << line.line;
  EXPECT_EQ(
      std::ranges::count(line.notes, "storage tiers disk, shared_fs: --hicache-storage-backend names one back end"), 1);
}

TEST(SglangLines, WhatNoFlagSaysIsNamed) {
  Experiment experiment = Experiment::from_text("", "");
  for (const char* setting :
       {"model.name=tiny", "hardware.name=cpu-host", "cache.eviction=fifo", "cache.io=auto", "tiers.device.gib=0.01",
        "tiers.host.gib=0.033", "cache.load_back_min_tokens=0", "cache.layout=page_first", "cache.evict_unit=page"}) {
    experiment.set(setting);
  }
  const kvtwin::Setup setup = make_setup(experiment);  // qualified: testing::Setup exists too
  const ServerLine line = to_sglang_flags(experiment, setup);
  std::string notes;
  for (const std::string& note : line.notes) notes += note + "\n";
  for (const char* part : {"model.name = tiny", "cache.eviction = fifo", "cache.io = auto", "cache.evict_unit = page",
                           "tiers.device.gib", "tiers.host.gib", "cache.load_back_min_tokens = 0"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
  }
  // The flags, read again, give the same numbers of pages.
  Experiment again = Experiment::from_text("", "");
  for (const char* setting : {"model.name=tiny", "hardware.name=cpu-host"}) again.set(setting);
  apply_sglang_flags(again, line.line);
  EXPECT_EQ(make_setup(again).engine.device_pages, setup.engine.device_pages);
  EXPECT_EQ(make_setup(again).engine.host_pages, setup.engine.host_pages);
}

}  // namespace
}  // namespace kvtwin::test
