// Tests the command line of a vLLM server: the keys that it sets, the assumed defaults, the notes, the errors, and the
// line that an experiment is written as.
#include "lab/vllm/vllm_flags.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lab/engine_arguments.hpp"
#include "lab/engine_flags/server_log.hpp"
#include "lab/error.hpp"
#include "lab/vllm/vllm_table.hpp"
#include "models/presets.hpp"
#include "tests/folder.hpp"
#include "tests/paths.hpp"
#include "tests/simulation.hpp"
#include "tests/unit/lab/listed_flags.hpp"

namespace kvtwin::test {
namespace {

Experiment from_line(const std::string& line, const std::string& file = "", const std::string& gpu = "h100-sxm") {
  Experiment experiment = Experiment::from_text(file, "file.toml");
  apply_vllm_line(experiment, line, hardware_preset(gpu));
  return experiment;
}

std::string notes_of(const Experiment& experiment) {
  std::string text;
  for (const std::string& note : experiment.notes()) text += note + "\n";
  return text;
}

void expect_refused(const std::string& line, const std::vector<std::string>& parts) {
  SCOPED_TRACE(line);
  try {
    from_line(line);
  } catch (const InputError& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    return;
  }
  ADD_FAILURE() << "not refused";
}

const std::string kServe = "vllm serve Qwen/Qwen3-32B ";
const std::string kOffload = R"(--kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",)"
                             R"("kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,)";

const std::string kExperts = "vllm serve deepseek-ai/DeepSeek-V3 ";

TEST(VllmFlags, EachSetsItsKey) {
  struct Case {
    std::string line, key, value;
  };
  for (const Case& c : {
           Case{kServe, "engine", "'vllm'"},
           {kServe, "model.name", "'qwen3-32b'"},
           {kServe, "cache.page_tokens", "16"},
           {kServe, "scheduler.style", "'vllm'"},
           {"vllm serve --model Qwen/Qwen3-32B-FP8", "model.weights", "'fp8_block'"},
           {kServe + "--quantization fp8_per_tensor", "model.weights", "'fp8'"},
           {kServe + "-tp 4", "parallel.tp", "4"},
           {kServe + "--tensor_parallel_size=4", "parallel.tp", "4"},
           {kServe + "-tp 2 -dp 4", "cluster.engines", "4"},
           {kExperts + "-tp 2 -dp 4", "parallel.tp", "8"},
           {kExperts + "-tp 2 -dp 4", "parallel.attention_dp", "4"},
           {kExperts + "-tp 2 -dp 4 --enable-expert-parallel", "parallel.ep", "8"},
           {kExperts + "-tp 2 -dp 4 --max-num-seqs 100", "scheduler.max_running", "400"},
           {kServe + "--block-size 32", "cache.page_tokens", "32"},
           {kServe + "--kv-cache-dtype fp8_e5m2", "model.kv_dtype", "'fp8'"},
           {kServe + "--kv_cache_dtype bfloat16", "model.kv_dtype", "'bf16'"},
           {kServe + "--gpu-memory-utilization 0.875", "tiers.device.memory_fraction", "0.875"},
           {kServe + "--device-memory-utilization 0.875", "tiers.device.memory_fraction", "0.875"},
           {kServe + "--num-gpu-blocks-override 100 --block-size 32", "tiers.device.tokens", "3200"},
           {kServe + "-tp 2 --kv-cache-memory-bytes 4G", "tiers.device.gib", "8.0"},
           {kServe + "--max-num-batched-tokens 4k", "scheduler.chunk_tokens", "4000"},
           {kServe + "--max-num-batched-tokens 4K", "scheduler.chunk_tokens", "4096"},
           {kServe + "--max-num-seqs 48", "scheduler.max_running", "48"},
           {kServe + "--max-num-seqs 48 --max-num-active-seqs 20", "scheduler.max_running", "20"},
           {kServe + "--performance-mode throughput", "scheduler.chunk_tokens", "16384"},
           {kServe + "--no-scheduler-reserve-full-isl", "scheduler.admit_whole_prompt", "false"},
           {kServe + "--no-async-scheduling", "serving.overlap", "false"},
           {kServe + "--enforce-eager", "serving.cuda_graphs", "false"},
           {kServe + "--disable-hybrid-kv-cache-manager", "cache.hybrid_allocator", "false"},
           {kServe + "--prefix-cache-retention-interval 256", "cache.state_points", "'align(retention=256)'"},
           {kServe + "--kv-offloading-size 64", "tiers.host.gib", "64.0"},
           {kServe + "--kv-offloading-size 64 --kv-offloading-backend native", "tiers.host.gib", "64.0"},
           {kServe + R"(--kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",)" +
                R"("kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}')",
            "tiers.host.gib", "8.0"},
           {kServe + "--kv-transfer-config.kv_connector OffloadingConnector "
                     "--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use=8G",
            "tiers.host.gib", "8.0"},
           {kServe +
                R"(--kv-transfer-config {"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[)" +
                R"({"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":1073741824,)" +
                R"("secondary_tiers":[{"type":"fs","root_dir":"/x"}]}}]}})",
            "tiers.disk.gib", "1000000000.0"},
           {kServe + kOffload + R"("eviction_policy":"arc"}}')", "cache.offload_eviction", "'arc'"},
           {kServe + kOffload + R"("store_threshold":2}}')", "cache.offload_threshold", "2"},
           {kServe + kOffload + R"("offload_prompt_only":false}}')", "cache.offload_prompt_only", "false"},
           {kServe + kOffload + R"("backpressure":{"backpressure_cls":"EMABackpressureDetector"}}}')",
            "cache.offload_backpressure", "'throttle'"},
           {kServe + kOffload +
                R"("secondary_tiers":[{"type":"fs","backpressure":{"policy_cls":"DropStorePolicy"}}]}}')",
            "cache.offload_backpressure", "'drop'"},
           {kServe, "cache.offload", "'vllm'"},
           {kExperts + R"(-tp 8 --speculative-config '{"method":"mtp","num_speculative_tokens":2}')",
            "model.draft.accept_length", "2.27"},
           {kExperts + "-tp 8 --spec-method deepseek_mtp --spec-tokens 1", "model.draft.tokens", "1"},
       }) {
    SCOPED_TRACE(c.line);
    EXPECT_EQ(from_line(c.line).as_toml(c.key), c.value) << c.key;
  }
}

TEST(VllmFlags, LinesArePasted) {
  for (const std::string& line : std::vector<std::string>{
           "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-32B -tp 2 --block-size 32",
           "vllm serve --block-size 32 -tp=2 Qwen/Qwen3-32B",
           "vllm serve Qwen/Qwen3-32B \\\n  --tensor-parallel-size 2 \\\n  --block-size 32 &",
           "vllm serve Qwen/Qwen3-32B \\ --tensor-parallel-size 2 \\ --block-size 32 2>&1 | tee log",
           "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B -tp 2 --block-size 32 > log 2>&1",
           "cd /x && /opt/venv/bin/vllm serve Qwen/Qwen3-32B -tp 2 --block-size 32; sleep 1",
           "docker run --gpus all -v models:/models -p 8000:8000 --ipc=host vllm/vllm-openai:v0.33.0 --model "
           "Qwen/Qwen3-32B -tp 2 --block-size 32",
           "sudo docker run --runtime nvidia --env \"HF_TOKEN=x\" vllm/vllm-openai:latest Qwen/Qwen3-32B -tp 2 "
           "--block-size 32",
           "docker run --entrypoint vllm vllm/vllm-openai:latest serve Qwen/Qwen3-32B -tp 2 --block-size 32",
           "sh -c 'vllm serve Qwen/Qwen3-32B -tp 2 --block-size 32'", "--model Qwen/Qwen3-32B -tp 2 --block-size 32"}) {
    SCOPED_TRACE(line);
    const Experiment experiment = from_line(line);
    EXPECT_EQ(experiment.text("model.name"), "qwen3-32b");
    EXPECT_EQ(experiment.integer("parallel.tp"), 2);
    EXPECT_EQ(experiment.integer("cache.page_tokens"), 32);
  }
}

// get_batch_defaults() of vLLM 0.33.0.
TEST(VllmFlags, DefaultsDependOnTheGpu) {
  struct Case {
    std::string gpu;
    int tokens, sequences;
  };
  for (const Case& c : {Case{"h100-sxm", 8192, 1024},
                        {"h200-sxm", 8192, 1024},
                        {"b200-sxm", 16384, 1024},
                        {"a100-sxm", 2048, 256},
                        {"mi300x", 16384, 1024}}) {
    SCOPED_TRACE(c.gpu);
    const Experiment experiment = from_line(kServe, "", c.gpu);
    EXPECT_EQ(experiment.integer("scheduler.chunk_tokens"), c.tokens);
    EXPECT_EQ(experiment.integer("scheduler.max_running"), c.sequences);
    EXPECT_EQ(experiment.number("tiers.device.memory_fraction"), 0.92);
    EXPECT_NE(notes_of(experiment).find("0.33.0, on " + c.gpu + "): --block-size 16, "), std::string::npos)
        << notes_of(experiment);
  }
  EngineArguments arguments;
  arguments.vllm_flags = kServe;
  Experiment later = Experiment::from_text("", "file.toml");
  apply_engine_arguments(arguments, std::vector<std::string>{"hardware.name=a100-sxm"}, later);
  EXPECT_EQ(later.integer("scheduler.chunk_tokens"), 2048) << "of the GPU that --set names";
}

TEST(VllmFlags, WhatTheFileSaysStaysWithoutAFlag) {
  const std::string file =
      "[cache]\npage_tokens = 64\n[scheduler]\nchunk_tokens = 999\n[tiers.device]\ntokens = 6400\n";
  EXPECT_EQ(from_line(kServe, file).integer("cache.page_tokens"), 64);
  EXPECT_EQ(from_line(kServe, file).integer("scheduler.chunk_tokens"), 999);
  EXPECT_EQ(from_line(kServe, file).integer("tiers.device.tokens"), 6400);
  EXPECT_EQ(from_line(kServe + "--gpu-memory-utilization 0.8", file).integer("tiers.device.tokens"), 0);
  EXPECT_EQ(from_line(kServe, "[tiers.host]\ngib = 8\n").number("tiers.host.gib"), 0) << "no flag of offloading";
}

// The fraction of vLLM has the activations in it; SGLang's does not.
TEST(VllmFlags, TheFractionHoldsTheActivations) {
  const auto pages = [](const std::string& engine, const std::string& style) {
    Experiment e = Experiment::from_text("[cache]\npage_tokens = 16\n[tiers.device]\nmemory_fraction = 0.9\n", "x");
    e.set("engine=" + engine);
    e.set("scheduler.style=" + style);
    return make_setup(e).engine.device_pages;
  };
  EXPECT_LT(pages("vllm", "vllm") + 1, pages("sglang", "sglang"));
  EXPECT_EQ(pages("vllm", "vllm") + 1, pages("vllm", "sglang")) << "the engine decides, not the style of its scheduler";
  EXPECT_LT(pages("none", "vllm") + 1, pages("none", "sglang"));
}

TEST(VllmFlags, WhatIsNotModelledIsNamed) {
  const std::string notes = notes_of(from_line(
      "VLLM_USE_SIMPLE_KV_OFFLOAD=1 " + kServe +
      "--no-enable-prefix-caching -pp 2 --max-model-len auto --scheduling-policy priority --port 8000 --warp-drive 9 "
      "--kv-offloading-size 4 --lora-modules a=b c=d -O3 --compilation-config.mode 3 --disable-log-requests"));
  for (const char* part :
       {"not modelled: --no-enable-prefix-caching (kvtwin always caches prefixes)", "-pp 2", "--max-model-len auto",
        "scheduler.order = fcfs stands for it", "has no such flags, so without effect here: --warp-drive 9",
        "VLLM_USE_SIMPLE_KV_OFFLOAD=1 (variables of vLLM aren't read)", "--lora-modules a=b c=d",
        "without effect on the cache: "}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
  }
  const std::string idle = notes.substr(notes.find("without effect on the cache: "));
  for (const char* part : {"--port", "--optimization-level", "--compilation-config", "--disable-log-requests"}) {
    EXPECT_NE(idle.find(part), std::string::npos) << part << "\n" << idle;
  }
  EXPECT_EQ(notes_of(from_line(kServe + "--enable-prefix-caching -pp 1")).find("not modelled"), std::string::npos);
}

TEST(VllmFlags, Refusals) {
  expect_refused(kServe + "--tensor-paralel-size 2", {"did you mean \"--tensor-parallel-size\"?", "vLLM 0.33.0"});
  expect_refused(kServe + "--block-size", {"--block-size needs a value"});
  expect_refused(kServe + "--block-size x", {"--block-size is x; it must be an integer of at least 1"});
  expect_refused(kServe + "--gpu-memory-utilization 90", {"at most 1"});
  expect_refused(kServe + "--max-num-batched-tokens 1.5K", {"8k (8,000) or 8K (8,192)"});
  expect_refused(kServe + "--kv-cache-dtype fp7", {"fp7", "fp8"});
  expect_refused(kServe + "--enforce-eager=1", {"takes no value"});
  expect_refused(kServe + "extra", {"\"extra\" is no flag, and belongs to none"});
  expect_refused(kServe + "--kv-transfer-config {", {"has no closing }"});
  expect_refused(kServe + "--kv-transfer-config '{\"kv_connector\":\"OffloadingConnector\"}'", {"cpu_bytes_to_use"});
  expect_refused("python -m sglang.launch_server --tp 2", {"this is a line of SGLang", "--from-sglang-flags"});
}

// ---- the table against the parser of the real server -------------------------------------------------------

std::vector<ListedFlag> listed_flags() { return listed_flags_of("tests/fixtures/vllm/server_flags.tsv"); }

TEST(VllmServer, TheTableIsOfTheListedRelease) {
  const std::string text = text_of(in_source("tests/fixtures/vllm/server_flags.tsv"));
  EXPECT_TRUE(text.starts_with("# vllm " + std::string(kVllmVersion) + ",")) << text.substr(0, text.find('\n'));
}

TEST(VllmServer, EveryListedFlagHasARowAndEveryRowIsListed) {
  std::set<std::string> fields;
  for (const ListedFlag& listed : listed_flags()) {
    fields.insert(listed.field);
    for (const std::string& name : listed.flags) {
      const NamedFlag named = vllm_table().named(name);
      ASSERT_NE(named.flag, nullptr) << name;
      EXPECT_EQ(named.flag->field, listed.field) << name;
      EXPECT_EQ(named.flag->takes == EngineFlag::Takes::nothing, listed.switches()) << name;
      EXPECT_EQ(named.flag->takes == EngineFlag::Takes::list, listed.takes == "list") << name;
    }
  }
  for (const EngineFlag& flag : vllm_table().flags()) EXPECT_TRUE(fields.contains(flag.field)) << flag.field;
}

TEST(VllmServer, TypesDefaultsAndValuesAreTheServers) {
  // Defaults that the parser does not have, because vLLM derives them at the start (CacheConfig.DEFAULT_BLOCK_SIZE,
  // _set_default_chunked_prefill_and_prefix_caching_args, VllmConfig for async_scheduling).
  const std::map<std::string, std::string> derived = {{"block_size", "16"},
                                                      {"async_scheduling", "true"},
                                                      {"enable_prefix_caching", "true"},
                                                      {"enable_chunked_prefill", "true"}};
  std::size_t compared = 0;
  for (const ListedFlag& listed : listed_flags()) {
    const EngineFlag* const flag = vllm_table().find_field(listed.field);
    if (flag == nullptr || flag->is == EngineFlag::Is::without_effect) continue;
    SCOPED_TRACE(listed.field);
    std::string expected = listed.unquoted_preset();
    if (listed.preset == "null" || listed.preset == "false" || listed.takes == "list") {
      const auto found = derived.find(listed.field);
      expected = found == derived.end() ? "" : found->second;
    }
    EXPECT_EQ(flag->preset, expected);
    ++compared;
    // The parser takes any text for the type of the cache; the values are CacheDType's.
    if (flag->is != EngineFlag::Is::modelled || listed.field == "kv_cache_dtype" || listed.field == "spec_method")
      continue;
    EXPECT_EQ(flag->takes, takes_of(listed));
    EXPECT_EQ(sorted_words(flag->words), std::set<std::string>(listed.choices.begin(), listed.choices.end()));
  }
  EXPECT_GT(compared, 60U);
}

TEST(VllmServer, EveryFlagAndEveryValueIsTaken) {
  std::size_t taken = 0;
  const auto take = [&](const std::string& flags) {
    SCOPED_TRACE(flags);
    ASSERT_NO_THROW({
      const Experiment experiment = from_line("vllm serve " + flags);
      EXPECT_EQ(notes_of(experiment).find("has no such"), std::string::npos) << notes_of(experiment);
    });
    ++taken;
  };
  const std::map<std::string, std::string> objects = {
      {"kv_transfer_config",
       R"( '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":1e9}}')"},
      {"speculative_config", R"( '{"method":"ngram"}')"}};
  for (const ListedFlag& listed : listed_flags()) {
    const auto object = objects.find(listed.field);
    for (const std::string& name : listed.flags) {
      take(name + (object == objects.end() ? listed.legal_value() : object->second));
      if (vllm_table().find(name)->is != EngineFlag::Is::modelled) continue;
      for (const std::string& choice : listed.choices) take(name + "=" + choice);
    }
  }
  EXPECT_GT(taken, 400U);
}

// docs/vllm.md states how many flags set a key, are noted, and have no effect.
TEST(VllmServer, TheDocumentationCountsTheFlags) {
  std::map<EngineFlag::Is, std::size_t> counts;
  for (const EngineFlag& flag : vllm_table().flags()) ++counts[flag.is];
  const std::string sentence = "Of the " + std::to_string(vllm_table().flags().size()) + " flags, " +
                               std::to_string(counts[EngineFlag::Is::modelled]) + " are taken, " +
                               std::to_string(counts[EngineFlag::Is::not_modelled]) +
                               " are noted because kvtwin has no model of them, " +
                               std::to_string(counts[EngineFlag::Is::without_effect]) + " have no effect on the cache";
  std::string text = text_of(in_source("docs/vllm.md"));
  std::ranges::replace(text, '\n', ' ');
  for (std::size_t at = text.find("  "); at != std::string::npos; at = text.find("  ")) text.erase(at, 1);
  EXPECT_NE(text.find(sentence), std::string::npos) << sentence;
}

// ---- the log of a server -----------------------------------------------------------------------------------

TEST(ServerLog, OfVllm) {
  const ServerLog log = read_server_log(text_of(in_source("tests/fixtures/vllm/server.log")), "server.log");
  EXPECT_TRUE(log.of_vllm);
  EXPECT_EQ(log.pool_tokens, 182'992);
  EXPECT_EQ(log.arguments.at("tensor_parallel_size"), 2);
  Experiment experiment = Experiment::from_text("", "file.toml");
  EngineArguments arguments;
  arguments.server_log = in_source("tests/fixtures/vllm/server.log");
  apply_engine_arguments(arguments, {}, experiment);
  EXPECT_EQ(experiment.text("engine"), "vllm");
  EXPECT_EQ(experiment.text("model.name"), "qwen3-32b");
  EXPECT_EQ(experiment.integer("tiers.device.tokens"), 182'992);
  EXPECT_EQ(experiment.number("tiers.host.gib"), 64);
  EXPECT_EQ(experiment.integer("scheduler.chunk_tokens"), 8192);
}

TEST(ServerLog, TheEnginesLineAlone) {
  const ServerLog log = read_server_log(
      "(EngineCore pid=7) INFO 11-01 10:00:00 [core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: "
      "model='Qwen/Qwen3-32B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=4096, "
      "tensor_parallel_size=2, "
      "quantization=None, enforce_eager=True, compilation_config={'level': 3, \"x\": <Mode.A: 3>, rest\n"
      "INFO GPU KV cache size: 1,600 tokens\n",
      "x.log");
  EXPECT_EQ(log.version, "0.32.0");
  EXPECT_EQ(log.pool_tokens, 1600);
  EXPECT_EQ(
      log.arguments.dump(),
      R"({"model":"Qwen/Qwen3-32B","quantization":null,"tensor_parallel_size":2,"enforce_eager":true,"max_model_len":4096})");
}

TEST(ServerLog, OfSglang) {
  const Folder folder;
  write_text(folder / "sglang.log",
             "[2026-09-18 08:39:19] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=2, page_size=32, "
             "enable_hierarchical_cache=True, hicache_ratio=3.0, hicache_storage_backend=None, lora_paths=[], "
             "cuda_graph_config=Graphs(decode=Phase(bs=[1, 2]), mode=<Mode.FULL: 'full'>))\n"
             "[2026-09-18 08:40:11 TP0] max_total_num_tokens=183000, chunked_prefill_size=4096, "
             "max_running_requests=300, context_len=40960\n");
  Experiment experiment = Experiment::from_text("", "file.toml");
  EngineArguments arguments;
  arguments.server_log = folder / "sglang.log";
  apply_engine_arguments(arguments, {}, experiment);
  EXPECT_EQ(experiment.text("engine"), "sglang");
  EXPECT_EQ(experiment.integer("tiers.device.tokens"), 183'000);
  EXPECT_EQ(experiment.number("tiers.host.ratio"), 3);
  EXPECT_EQ(experiment.integer("scheduler.chunk_tokens"), 4096);
  EXPECT_EQ(experiment.integer("scheduler.max_running"), 300);
  EXPECT_EQ(experiment.integer("cache.page_tokens"), 32);
}

TEST(ServerLog, Refusals) {
  const auto expect = [](const std::string& text, const std::string& part) {
    try {
      read_server_log(text, "x.log");
      ADD_FAILURE() << "not refused: " << text;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect("INFO: started", "has no first lines of a server's log");
  expect("server_args=ServerArgs(model_path='Qwen", "cut short");
  expect("non-default args: {'model': 'x', ", "cut short");
}

// ---- writing -----------------------------------------------------------------------------------------------

TEST(VllmLines, ComeBack) {
  for (const std::string& flags : std::vector<std::string>{
           "-tp 2", "-dp 3 --block-size 32 --kv-cache-dtype fp8 --kv-offloading-size 100",
           "--num-gpu-blocks-override 5000 --max-num-seqs 7 --max-num-batched-tokens 2k --no-async-scheduling",
           "--kv-cache-memory-bytes 20G --enforce-eager --no-scheduler-reserve-full-isl -tp 2 --kv-offloading-size "
           "12.5",
           kOffload + R"("eviction_policy":"arc","store_threshold":3,"offload_prompt_only":false}}')"}) {
    SCOPED_TRACE(flags);
    const Experiment first = from_line(kServe + flags);
    const ServerLine line = to_vllm_line(first, make_setup(first));
    EXPECT_TRUE(line.line.starts_with("vllm serve Qwen/Qwen3-32B ")) << line.line;
    EXPECT_TRUE(line.notes.empty()) << line.notes.front();
    const Experiment again = from_line(line.line);
    for (const ExperimentKey& key : experiment_keys()) {
      EXPECT_EQ(again.as_toml(key.name), first.as_toml(key.name)) << key.name << "\n" << line.line;
    }
  }
}

TEST(VllmLines, WhatNoFlagSaysIsNamed) {
  Experiment experiment = from_line(kServe + "-tp 2 --kv-offloading-size 10");
  experiment.set("cache.eviction=slru");
  experiment.set("tiers.disk.gib=100");
  const ServerLine line = to_vllm_line(experiment, make_setup(experiment));
  std::string notes;
  for (const std::string& note : line.notes) notes += note + "\n";
  EXPECT_NE(notes.find("cache.eviction = 'slru': there is no flag for it"), std::string::npos) << notes;
  EXPECT_NE(notes.find("tiers.disk.gib = 100.0: there is no flag for it"), std::string::npos) << notes;
}

}  // namespace
}  // namespace kvtwin::test
