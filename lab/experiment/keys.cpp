#include "lab/experiment/keys.hpp"

#include <algorithm>
#include <sstream>
#include <type_traits>
#include <utility>

#include "lab/experiment/workload_recipe.hpp"
#include "lab/names.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/serving_times.hpp"
#include "policy/base/names.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

using Key = ExperimentKey;
using Configuration = Key::Configuration;

constexpr double kMinGbps = 1e-3;  // GB/s; slower than any device that serves pages

template <typename Class, typename Member>
Member member_type(Member Class::*);

template <auto member>
using MemberOf = decltype(member_type(member));

template <auto member>
MemberOf<member>& member_of(const Configuration& of) {
  if constexpr (std::is_same_v<decltype(member), MemberOf<member> EngineConfig::*>) {
    return of.engine.*member;
  } else {
    return of.world.*member;
  }
}

// Returns the member's value in a new configuration: the default of the key that sets it.
template <auto member>
MemberOf<member> initial() {
  EngineConfig engine;
  WorldConfig world;
  return member_of<member>({engine, world});
}

Key text(std::string_view name, const char* fallback, std::string_view help) {
  return {.name = name, .fallback = std::string(fallback), .help = help};
}

Key list(std::string_view name, std::string_view help) {
  Key key = text(name, "", help);
  key.is_list = true;
  return key;
}

Key path(std::string_view name, std::string_view help) {
  Key key = text(name, "", help);
  key.is_path = true;
  return key;
}

Key integer(std::string_view name, std::int64_t fallback, double min, double max, std::string_view help) {
  return {.name = name, .fallback = fallback, .min = min, .max = max, .help = help};
}

Key number(std::string_view name, double fallback, double min, double max, std::string_view help) {
  return {.name = name, .fallback = fallback, .min = min, .max = max, .help = help};
}

Key number_or_0(std::string_view name, double min, double max, std::string_view help) {
  Key key = number(name, 0, 0, max, help);
  key.min_nonzero = min;
  return key;
}

Key flag(std::string_view name, bool fallback, std::string_view help) {
  return {.name = name, .fallback = fallback, .help = help};
}

// The first choice is the default.
Key text_choice(std::string_view name, std::vector<std::string_view> choices, std::string_view help) {
  Key key = text(name, std::string(choices.front()).c_str(), help);
  key.choices = std::move(choices);
  return key;
}

Key text_choice(std::string_view name, std::span<const std::string_view> choices, std::string_view help) {
  return text_choice(name, std::vector<std::string_view>(choices.begin(), choices.end()), help);
}

// The functions below declare keys that set a configuration's member.

template <auto member>
Key choice(std::string_view name, std::string_view help) {
  using Enum = MemberOf<member>;
  Key key = text(name, std::string(name_of(initial<member>())).c_str(), help);
  key.choices.assign(names_of<Enum>().begin(), names_of<Enum>().end());
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = *value_named<Enum>(std::get<std::string>(value));
  };
  return key;
}

// A trace format: each choice is one source file (cmake/Choices.cmake).
Key file_choice(std::string_view name, const char* fallback, std::span<const std::string_view> names,
                std::string_view help) {
  Key key = text(name, fallback, help);
  key.choices.assign(names.begin(), names.end());
  key.chooses_file = true;
  return key;
}

// A policy, which is a source file too.
Key policy(std::string_view name, const char* fallback, PolicyKind kind, std::string_view help) {
  Key key = file_choice(name, fallback, policy_names(kind), help);
  key.policy = kind;
  return key;
}

template <auto member>
Key policy(std::string_view name, PolicyKind kind, std::string_view help) {
  Key key = policy(name, initial<member>().c_str(), kind, help);
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = std::get<std::string>(value);
  };
  return key;
}

// Without choices: lab/experiment/setup.cpp has a sentence of its own for the bounds of `kvtwin hitrate`.
Key eviction(std::string_view name, std::string_view help) {
  Key key = policy<&EngineConfig::eviction>(name, PolicyKind::eviction, help);
  key.choices.clear();
  key.chooses_file = false;
  return key;
}

template <auto member>
Key integer(std::string_view name, double min, double max, std::string_view help) {
  Key key = integer(name, static_cast<std::int64_t>(initial<member>()), min, max, help);
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = static_cast<MemberOf<member>>(std::get<std::int64_t>(value));
  };
  return key;
}

template <auto member>
Key number(std::string_view name, double min, double max, std::string_view help) {
  Key key = number(name, initial<member>(), min, max, help);
  key.apply = [](const KeyValue& value, const Configuration& to) { member_of<member>(to) = std::get<double>(value); };
  return key;
}

template <auto member>
Key flag(std::string_view name, std::string_view help) {
  Key key = flag(name, initial<member>(), help);
  key.apply = [](const KeyValue& value, const Configuration& to) { member_of<member>(to) = std::get<bool>(value); };
  return key;
}

// One unit of the key is `scale` units of the member. The member's value is rounded.
template <auto member, int scale>
Key scaled(std::string_view name, double fallback, double min, double max, std::string_view help) {
  Key key = number(name, fallback, min, max, help);
  key.apply = [](const KeyValue& value, const Configuration& to) {
    member_of<member>(to) = static_cast<MemberOf<member>>(std::get<double>(value) * scale + 0.5);
  };
  return key;
}

template <auto member>
Key seconds(std::string_view name, double min, double max, std::string_view help) {
  return scaled<member, 1'000'000'000>(name, static_cast<double>(initial<member>()) / 1e9, min, max, help);
}

template <auto member>
Key microseconds(std::string_view name, double min, double max, std::string_view help) {
  return scaled<member, 1000>(name, static_cast<double>(initial<member>()) / 1e3, min, max, help);
}

EarlierKey renamed(Key key, std::string_view now) { return {std::move(key), {now}, {}, {}}; }

// The member is in units of 1/1024. A share that would be rounded to none is refused.
template <auto member>
Key share(std::string_view name, double fallback, std::string_view help) {
  Key key = scaled<member, 1024>(name, fallback, 0, 1, help);
  key.min_nonzero = 0.0005;
  return key;
}

}  // namespace

std::span<const Key> experiment_keys() {
  static const std::vector<Key> keys = {
      integer<&WorldConfig::seed>("seed", 0, kMaxKeyValue,
                                  "Seed of all random draws: generated requests, session starts, simulated stalls"),
      text("engine", "sglang",
           "Serving engine: sglang, vllm or trtllm, with a release if it is not the latest (sglang 0.5.20; of vllm, "
           "releases "
           "before 0.21 divide the GPU's memory in another way). "
           "Sets scheduler.style, serving.engine, the rules of the engine's prefix cache (cache.*), the tokens and "
           "requests of a pass (scheduler.chunk_tokens, scheduler.max_running) by the GPU, and "
           "hardware.operators if there is a table of the hardware and the engine. Keys that the experiment sets stay. "
           "none: sets no key, and passes take the roofline's times"),
      list("faults",
           "Planned faults, e.g. [\"engine(index=3, at=30s)\", \"node(index=1, from=10s, to=20s)\"]: an engine dies, a "
           "node of the remote pool is down, drives, a link or a rank are slow, reads stall, a bit flips. A world that "
           "cannot do a fault refuses it; none = no fault"),
      text("model.name", "llama-3.1-8b", "Model preset; kvtwin presets lists the names"),
      path("model.config", "Path of a Hugging Face config.json that describes the model; replaces model.name"),
      integer("model.kv_bytes_per_token", 0, 0, 1 << 24,
              "KV bytes per token, of all ranks together, for models whose cache is not known; at least 256. 0 = the "
              "bytes that follow from the model's config"),
      integer("model.state_bytes", 0, 0, 1e12,
              "Bytes of the states of a sequence (state-space and linear-attention layers), in place of those that "
              "follow from the model's config; 0 = those of the config"),
      text("model.kv_dtype", "auto",
           "Data type of the KV cache: auto, bf16, fp16, fp8, mxfp8, nvfp4 or int4, with its scales; auto = the type "
           "that the checkpoint states for its cache, else that of the activations"),
      text_choice("model.weights", names_of<WeightChoice>(),
                  "Format of the weights in matrix products; auto = the model's config, or its checkpoint in the same "
                  "folder. With 4 bits, an MLA model's attention stays bf16. int4: 32 weights share a scale; awq (also "
                  "for GPTQ): 128; w4a8: experts of 4 bits, all else fp8_block"),
      text("model.revision", "",
           "Revision of the weights, any text; stored pages of another revision are never used. If weights lie beside "
           "model.config, their fingerprint counts too (docs/storage.md)"),
      text_choice("model.draft.kind", {"none", "packed", "side_pool"},
                  "Place of the draft model's KV: none (no draft model), packed (the last layers of the target model's "
                  "pages) or side_pool (a pool of its own)"),
      text("model.draft.config", "",
           "Draft model: a preset, or the path of a Hugging Face config.json; required with a draft model"),
      number("model.draft.accept_length", 0.0, 0, 65,
             "Mean number of tokens that a decode step yields, e.g. 3.2; required with a draft model"),
      number("model.draft.accept_length_without_kv", 1.0, 1, 65,
             "Mean number of tokens per decode step of a request whose reused prefix lacks the draft "
             "model's KV"),
      flag("model.draft.restore", true,
           "true: the draft model's KV is backed up, stored and loaded with the pages; false: a prefix that comes back "
           "from another tier lacks the draft model's KV"),
      integer("model.draft.tokens", 0, 0, 64,
              "Tokens that the draft model proposes per decode step; 0 = accept_length, rounded up"),
      text("hardware.name", "h100-sxm", "Hardware preset; kvtwin presets lists the names"),
      path("hardware.file",
           "Path of a hardware file (JSON), for example from kvtwin calibrate; replaces hardware.name"),
      text("hardware.operators", "none",
           "Table of measured operator times. The times replace the roofline in the measured parts of a pass. kvtwin "
           "presets lists the names, for example h100-sxm/sglang; engine sets that of the hardware"),
      path("hardware.operators_file", "Path of a table of kvtwin import-ops; replaces hardware.operators"),
      flag("hardware.operators_of_another_gpu", false,
           "Allow a table of operator times of another GPU than the hardware's"),
      integer("hardware.draw", 0, 0, 1e9,
              "Number of a hardware variant: each figure with an interval is drawn from the interval; 0 = the figures "
              "as given"),
      number("hardware.spread_percent", 0.0, 0, 1000,
             "Possible error, in % with 95 % confidence, of each rate, time and share that has no interval of its own; "
             "for hardware.draw, hardware.end and --draws"),
      text("hardware.end", "",
           "NUMBER:low or NUMBER:high moves one figure to an end of its interval, e.g. gemm_fraction:low"),
      list(
          "hardware.set",
          "Figures that take the place of the hardware's, e.g. drive_count=4, nic_bandwidth=50GB/s. In a file: a table "
          "[hardware.set]; elsewhere: hardware.set.FIGURE=value. Any figure of a hardware file (kvtwin presets), and "
          "those below. Without a unit, rates are in GB/s, times in microseconds and sizes in bytes; 0 = the "
          "hardware's figure"),
      path("workload.trace",
           "Path of a trace, in any format that kvtwin trace info reads; empty = generate the requests "
           "(workload.generate.*)"),
      text_choice("workload.recipe", workload_recipe_names(),
                  "Requests of a published benchmark, without a trace: sets the keys workload.generate.* that are not "
                  "given; 10 prompts per client. workload.generate.concurrency or stages set the clients, else they "
                  "are 4, 8, 16, 32 and 64, one after another"),
      file_choice("workload.format", "auto", trace_format_names(),
                  "Format of the trace; auto = detected from the first line"),
      integer("workload.block_tokens", 0, 0, 1e6,
              "Tokens per block id of the trace; 0 = the format's own value, e.g. 512 for mooncake"),
      integer("workload.shared_tokens", 0, 0, 1e9,
              "azure, burstgpt: number of tokens at the start of each prompt that all prompts share; these traces only "
              "have lengths"),
      number("workload.session_gap_s", 30.0, 1e-6, 1e6,
             "agentic traces: mean time between the starts of two sessions, in seconds; the starts are drawn"),
      path("workload.salt_file",
           "Path of a file with a secret of 16 to 4,096 bytes that goes into every page key. Without the secret, "
           "no reader can check a guessed prompt against the keys. No run folder holds the secret"),
      text_choice("workload.generate.kind", {"chat", "agentic", "tools", "returning", "groups", "sessions"},
                  "Requests to generate if there is no trace: chat, agentic (coding agents), tools (calls of "
                  "applications), returning (contexts of one size that come back), groups (prompts that share a "
                  "prefix) or sessions (conversations with the averages that you give)"),
      integer("workload.generate.requests", 0, 0, kMaxKeyValue,
              "Number of requests to generate; 0 = by duration_s, by visits (returning), or each prompt once (groups); "
              "groups: after the last prompt, the first one is sent again"),
      number("workload.generate.duration_s", 3600.0, 0, 1e9,
             "chat, agentic, tools, sessions: seconds of traffic to generate"),
      number_or_0("workload.generate.sessions_per_second", 1e-6, 1e6,
                  "chat, agentic: new sessions per second; 0 = the measured rate: 2.08 for chat (about 3.4 requests "
                  "per second), 1/30 for agentic"),
      number("workload.generate.requests_per_second", 6.67, 1e-3, 1e6, "tools, groups, sessions: requests per second"),
      integer(
          "workload.generate.users", 0, 0, 1e6,
          "sessions: number of users; each has one conversation after another, and sends the next request after the "
          "answer and a think time; needs workload.loop=closed; 0 = arrivals at requests_per_second"),
      integer("workload.generate.prompt_tokens", 8192, 1, 1e9,
              "returning: tokens per prompt; sessions: mean over all requests, with the shared prefix and the history "
              "of the conversation"),
      integer("workload.generate.new_tokens", 0, 0, 1e9,
              "sessions: mean new tokens of a turn, in place of prompt_tokens; 0 = from prompt_tokens"),
      integer("workload.generate.context_max_tokens", 0, 0, 1e9,
              "sessions: a conversation ends before prompt and answer have more tokens than this, and a first turn is "
              "cut; 0 = the longest context of the model's config"),
      integer("workload.generate.question_tokens", 64, 0, 1e9,
              "returning, groups: tokens at the end of each prompt that never occur again; the tokens before are the "
              "context or prefix"),
      integer("workload.generate.output_tokens", 16, 1, 1e9, "returning, groups: tokens per answer; sessions: mean"),
      integer("workload.generate.working_set_tokens", 1'000'000, 1, 1e15,
              "returning: total size of all contexts, in tokens (number of contexts = working_set_tokens / "
              "prompt_tokens); a "
              "smaller tier cannot hold all contexts"),
      number("workload.generate.visits", 4.0, 1, 1e6, "returning: mean number of requests per context"),
      number("workload.generate.prompt_tokens_per_second", 4096.0, 1e-3, 1e12,
             "returning: prompt tokens that arrive per second"),
      integer("workload.generate.groups", 64, 1, 1e7, "groups: number of groups of prompts that share a prefix"),
      integer("workload.generate.prompts_per_group", 16, 1, 1e7, "groups: prompts per group"),
      integer("workload.generate.prefix_tokens", 2048, 0, 5e8,
              "groups: tokens of the prefix that a group shares; sessions: of the prefix that all conversations share"),
      number("workload.generate.range_ratio", 1.0, 0, 1,
             "groups: smallest length / largest length. Each length of a prefix, question or answer is drawn from "
             "range_ratio * length to length, all equally likely (SGLang's --random-range-ratio; for vLLM's ratio x: "
             "lengths * (1 + x), and (1 - x) / (1 + x) here); 1 = equal lengths"),
      integer("workload.generate.concurrency", 0, 0, 1e6,
              "groups: number of clients; a client sends the next prompt after the answer to the last one; needs "
              "workload.loop=closed; 0 = arrivals at requests_per_second"),
      number("workload.generate.start_spread_s", 0.0, 0, 1e6,
             "groups, clients: each client starts at a time drawn from 0 to this number of seconds; 0 = all clients "
             "start together. sessions, users: the same for each user, who begins in the middle of a conversation"),
      number("workload.generate.think_s", 0.0, 0, 1e6,
             "groups, clients: mean time from an answer to the client's next request, in seconds; each time is drawn "
             "from 0 to twice this value, e.g. 0.005 for the delays of client and network. sessions: mean time from an "
             "answer to the next request of the conversation, log-normal; in an open loop an answer takes "
             "workload.service_s"),
      number("workload.generate.turns", 1.0, 1, 1e6, "sessions: mean number of requests per conversation, geometric"),
      integer("workload.generate.turns_least", 0, 0, 1e6,
              "sessions: least number of requests of a conversation; with turns_most, in place of turns"),
      integer("workload.generate.turns_most", 0, 0, 1e6,
              "sessions: largest number of requests of a conversation; all numbers from turns_least on are equally "
              "likely; 0 = by turns"),
      number("workload.generate.length_spread", 1.0, 0, 3,
             "sessions: standard deviation of the logarithm of new tokens per turn and of answers; 0 = equal lengths"),
      number("workload.generate.think_spread", 1.0, 0, 3,
             "sessions: standard deviation of the logarithm of think times; 0 = equal times"),
      text("workload.generate.stages", "",
           "groups: ladder of loads, one stage after another, e.g. 4,8,16 or 4x40,8x80. A load is a number of clients "
           "(workload.loop=closed) or of requests per second (open); after x stands the number of requests of the "
           "stage, and without x the stages have equal shares. A stage starts when all requests of the stage before "
           "have ended"),
      integer("workload.generate.at_once", 1, 1, 1e6, "returning: number of requests that arrive at the same time"),
      integer("workload.limit", 0, 0, kMaxKeyValue, "Number of requests to serve; 0 = all"),
      integer("workload.warmup_requests", 0, 0, kMaxKeyValue,
              "Number of requests at the start of the run, and of each stage, that are served and not counted: the "
              "figures begin when this number of requests has ended"),
      flag("workload.count_drain", true,
           "true: count the requests that end after the last arrival of the run or stage. false (closed loops): the "
           "figures end with the last arrival, after which the first clients have no request left to send. Throughput "
           "of a closed loop never "
           "counts them"),
      text_choice("workload.loop", {"open", "closed"},
                  "open: requests arrive at the times of the trace; closed: a session's next request also waits for "
                  "the last answer and the think time after the answer"),
      number("workload.service_s", 0.0, 0, 1e6,
             "closed loop, traces without think times: seconds of service in each gap of a session; the rest of the "
             "gap is think time. workload.generate.kind = sessions: seconds of service that each gap of the generated "
             "arrivals has"),
      integer("workload.shrink", 1, 1, 1e6,
              "Divides all lengths in tokens, the block size too, so that a small machine can serve the same traffic; "
              "must divide the block size, e.g. 16"),
      number("workload.time_scale", 1.0, 1e-9, 999'999'999,
             "Factor on the times between arrivals; 2.0 = arrivals twice as far apart"),
      number("slo.ttft_s", 0.0, 0, 1e6,
             "Largest time to first token of a good request, in seconds; 0 = no limit. The report counts the good "
             "requests: those that complete within all limits of slo.*"),
      number("slo.tpot_s", 0.0, 0, 1e6, "Largest time per output token of a good request, in seconds; 0 = no limit"),
      number("slo.e2e_s", 0.0, 0, 1e6,
             "Largest time from arrival to last token of a good request, in seconds; 0 = no limit"),
      path("prices.file",
           "Path of a price list (TOML), for the price, the power and the life of drives; empty = the "
           "built-in list"),
      text_choice(
          "serving.engine", names_of<ServingEngine>(),
          "Engine whose host times are added to passes and requests. The times are fitted to published measurements; "
          "the keys below override them. none = the hardware's pass_overhead. The key engine sets this key"),
      number("serving.request_us", -1, -1, 1e9,
             "Front end: microseconds per request until the scheduler has it; -1 = the engine's"),
      number("serving.token_ns", -1, -1, 1e9,
             "Front end: nanoseconds per prompt token until the scheduler has the request; -1 = the engine's"),
      number("serving.host_link_share", 0, 0, 1,
             "Share of the host link's rate at which the engine loads KV from host memory; 0 = the engine's"),
      number("serving.schedule_us", -1, -1, 1e9,
             "Host: microseconds per pass that overlap scheduling hides; -1 = the engine's"),
      number("serving.step_us", -1, -1, 1e9, "Host: microseconds per pass that nothing hides; -1 = the engine's"),
      number("serving.sequence_us", -1, -1, 1e9,
             "Host: microseconds per sequence of a pass that nothing hides; -1 = the engine's"),
      number("serving.kernel_us", -1, -1, 1e9,
             "GPU: microseconds of each small kernel that no table has (norms, rotary embedding, activation, routing, "
             "quantisation); -1 = the engine's"),
      number("serving.launch_us", -1, -1, 1e9,
             "Host: microseconds per kernel of a pass without a CUDA graph; -1 = that of the operator table, else the "
             "engine's"),
      number("serving.prefix_factor", -1, -1, 100,
             "GPU: factor on a prefill's attention to its cached prefix, which the kernel reads page by page; -1 = the "
             "engine's"),
      number("serving.prefill_factor", -1, -1, 100,
             "GPU: factor on the time of a pass with a prefill; -1 = the engine's, which is 1"),
      flag("serving.cuda_graphs", true, "Passes without a prefill are CUDA graphs"),
      flag("serving.overlap", true, "Overlap scheduling: the host prepares a pass during the pass before it"),
      integer("parallel.ep", 1, 1, 64,
              "Number of groups of ranks over which the experts are split; each group of tp / ep ranks splits its "
              "experts by width; must divide parallel.tp"),
      integer("parallel.tp", 1, 1, 64,
              "Number of tensor-parallel ranks per engine; a real run needs one process per rank: mpirun -np N kvtwin "
              "run"),
      integer(
          "parallel.attention_dp", 1, 1, 64,
          "Data parallelism of attention: number of groups of tp / attention_dp ranks; each group holds the KV of its "
          "own sequences, and all weights but those of the routed experts, which are over all ranks (SGLang's "
          "--enable-dp-attention --dp-size, TensorRT-LLM's enable_attention_dp). Each group has a prefix cache and a "
          "scheduler of its own, with an equal part of tiers.device, tiers.host, scheduler.max_running and "
          "scheduler.chunk_tokens; all groups run their passes together. Must divide parallel.tp; simulation only"),
      policy("parallel.attention_route", "round_robin", PolicyKind::route,
             "Choice of the group of attention for a request that an engine has received, as in cluster.route "
             "(SGLang's --load-balance-method)"),
      text_choice("parallel.expert_mode", {"fused", "normal", "low_latency", "balanced"},
                  "Kernels of experts that are split over ranks: fused (the engine's kernels, skewed routing); normal "
                  "and low_latency (those of DeepEP's modes for prefills and for decodes: SGLang's --moe-a2a-backend "
                  "deepep --deepep-mode); balanced (TensorRT-LLM's wide expert parallelism with balanced load, "
                  "moe_config.load_balancer). Tables of hardware.operators without such kernels use fused"),
      text_choice("parallel.rank_model", {"lockstep", "instances"},
                  "lockstep: one policy drives all ranks; instances: each rank has a policy of its own, and all ranks "
                  "decide the same; a real run always uses instances"),
      integer("cluster.engines", 1, 1, 1024,
              "Number of engines; each engine has a machine of its own; the shared file system and the remote tier are "
              "common to all engines"),
      integer("cluster.prefill", 0, 0, 1024,
              "Number of engines that only prefill. The other engines only decode. 0 = no engine has a role"),
      integer("cluster.decode", 0, 0, 1024,
              "Number of engines that only decode; 0 = all of cluster.engines that do not prefill; otherwise "
              "cluster.engines is the sum of both, and is left out"),
      text("cluster.decode_set", "",
           "Settings of the decode engines that differ: key=value, separated by commas, say parallel.tp=8"),
      text_choice("cluster.hand_over", {"layers", "chunks", "whole"},
                  "Time at which a prefill engine writes the pages of a prompt to the decode engine. layers: during "
                  "each pass, one group of layers after the other (a real run takes chunks instead). chunks: after "
                  "each pass. whole: after the whole prompt"),
      flag("cluster.hand_over_staged", false,
           "Hand-overs go through host memory on both sides, in cache.layout; false: from GPU to GPU (GPUDirect RDMA)"),
      integer("cluster.hand_over_min_tokens", 0, 0, 1e9, "Shorter prompts stay whole on a decode engine, in tokens"),
      flag("cluster.decode_reuse", true,
           "The pages of a prompt that the decode engine has on its device are not written again"),
      flag("cluster.decode_cache", true,
           "The decode engine keeps received pages in its index, and writes them to lower tiers like computed pages"),
      policy("cluster.decode_route", "least_loaded", PolicyKind::route,
             "Choice of the decode engine for a request; cluster.route then chooses the prefill engine"),
      policy(
          "cluster.route", "round_robin", PolicyKind::route,
          "Choice of the engine for a request: round_robin (in turn), prefix_affinity (the engine that received "
          "most of the prompt before, unless that engine has too much load), least_loaded (the fewest open "
          "requests), power_of_two (the less loaded of two drawn engines), session_affinity (the engine of the "
          "session, "
          "unless that engine has too much load) or score (llm-d's weighted score of queue, KV use and cached prefix)"),
      number("cluster.route_view_delay_s", 0, 0, 1e6,
             "Delay of the engines' events at the router, in seconds: requests admitted and ended, pages stored and "
             "removed. The router knows at once which requests it has sent"),
      integer("cache.page_tokens", 64, 1, 1e6, "Tokens per page, in every tier"),
      flag("cache.hybrid_allocator", true,
           "false: layers with a sliding window keep the KV of all tokens, as in vLLM without the hybrid KV cache "
           "manager, which vLLM turns off for KV connectors that do not support it"),
      choice<&EngineConfig::host_layout>(
          "cache.layout",
          "Order of a page's bytes in the host pool; with layer_first, a storage tier stores a page as one object per "
          "layer and plane"),
      eviction(
          "cache.eviction",
          "Eviction policy; kvtwin presets lists the names. The path of a policy library, NAME.so, is a name, too"),
      choice<&EngineConfig::evict_unit>("cache.evict_unit",
                                        "page: evict just enough pages, from the tail of a leaf; node: evict whole "
                                        "leaves"),
      text_choice("cache.offload", {"hicache", "vllm"},
                  "Rules by which pages move between the device and the tiers below: those of SGLang's HiCache "
                  "(hicache), or of vLLM's OffloadingConnector (vllm), which need scheduler.style = vllm, "
                  "cache.eviction = lru and a host tier. With scheduler.style = vllm, models with windows or states "
                  "always have vLLM's"),
      text_choice("cache.offload_eviction", {"lru", "arc"},
                  "vLLM's offloading: which block leaves a full host tier, as vLLM's eviction_policy"),
      integer("cache.offload_threshold", 0, 0, 1e6,
              "vLLM's offloading: requests that must offer a block before the host tier stores it, as vLLM's "
              "store_threshold; 0 and 1: the first one"),
      flag("cache.offload_prompt_only", true,
           "vLLM's offloading: blocks of answers are not stored, as with vLLM's offload_prompt_only"),
      text_choice("cache.offload_backpressure", {"none", "throttle", "drop"},
                  "vLLM's offloading: which copies to a storage tier are left out while its writes are slow: none, a "
                  "share that grows (throttle), or all (drop), as policy_cls of vLLM's backpressure"),
      policy<&EngineConfig::write_policy>(
          "cache.write_policy", PolicyKind::write,
          "When pages are copied to the host: after the first request that inserts the prefix (write_through), after "
          "the second (write_through_selective), or when the pages leave the device (write_back)"),
      choice<&EngineConfig::tiering>(
          "cache.tiering",
          "inclusive: the host keeps pages that are loaded back; exclusive (needs write_back): these pages leave the "
          "host"),
      choice<&EngineConfig::host_mode>(
          "cache.host_mode",
          "How long the host keeps a page: until it is evicted (cache), until every storage tier has it "
          "(until_stored), "
          "or only while it moves between the device and a storage tier, so that no request hits it (buffer, SGLang's "
          "buffer_only)"),
      text_choice("cache.host_copies", {"rank", "node"},
                  "Copies of MLA's rows on the host, which all ranks have alike: rank: each rank has its own, as in "
                  "SGLang and vLLM; node: the ranks share one, so the host tier holds as many times the tokens"),
      list("cache.rules",
           "Rules of the engine's prefix cache that differ from those of `engine`, e.g. split_refreshes=false. In a "
           "file: a table [cache.rules]; elsewhere: cache.rules.RULE=value"),
      integer<&EngineConfig::backup_retries>("cache.backup_retries", 0, 1000, "Retries of a failed copy to the host"),
      share<&EngineConfig::clean_reserve>(
          "cache.clean_reserve", 0.1,
          "write_back: share of the device that is kept free or copied to the host in advance, so that eviction does "
          "not wait"),
      share<&EngineConfig::host_clean_reserve>(
          "cache.host_clean_reserve", 0,
          "Share of the host that is kept free, or that the host can evict without a write to storage: pages are "
          "written when less is, those that arrived on the host first, and before the host evicts them. It doubles "
          "when a page finds no room because others wait. 0 = pages are written when they arrive"),
      integer<&EngineConfig::write_threshold>(
          "cache.write_threshold", 0, 1e9,
          "Number of requests that must insert a prefix before the prefix is backed up; 0 = the write policy's own: 1, "
          "or 2 for write_through_selective"),
      policy<&EngineConfig::prefetch_policy>(
          "cache.prefetch_policy", PolicyKind::termination,
          "When a request stops waiting for its prefetch from storage: at once (best_effort), when the prefetch has "
          "ended (wait_complete), after a time that grows with the length (timeout), or when computing the rest is "
          "faster (cost_stop)"),
      policy<&EngineConfig::prefetch_admission>(
          "cache.prefetch_admission", PolicyKind::prefetch_admission,
          "Which hits in storage are prefetched: all of at least prefetch_min_tokens (threshold), or of these only "
          "hits that are faster to read than to compute (cost)"),
      integer<&EngineConfig::prefetch_min_tokens>("cache.prefetch_min_tokens", 0, 1e9,
                                                  "Shortest hit in storage that is prefetched, in tokens"),
      integer<&EngineConfig::prefetch_retry_steps>("cache.prefetch_retry_steps", 0, 1e9,
                                                   "Scheduler steps after which a prefetch that was declined, or that "
                                                   "found too little, is tried again while its "
                                                   "request waits behind others; 0 = no retry"),
      integer<&EngineConfig::prefetch_attempts>(
          "cache.prefetch_attempts", 1, 1e6,
          "Maximum number of tries of a waiting request's prefetch, including the first one"),
      integer<&EngineConfig::storage_batch_pages>("cache.storage_batch_pages", 1, 1e6,
                                                  "Maximum number of pages per storage operation"),
      share<&EngineConfig::storage_write_share>(
          "cache.storage_write_share", 0.5,
          "Share of the host tier (of the device, without one) that pages on their way to storage may hold; a page "
          "counts once per storage tier"),
      choice<&EngineConfig::storage_backlog>(
          "cache.storage_backlog",
          "What happens to further pages while writes to storage hold cache.storage_write_share: drop: they are not "
          "written; throttle: from half of the share on, a growing part is not written; wait: they stay on the host "
          "until they have been written, as in SGLang; block: they wait, and no request is admitted meanwhile"),
      integer<&EngineConfig::storage_retries>("cache.storage_retries", 0, 1000,
                                              "Retries of pages that a storage tier failed to store"),
      flag("cache.split_kv", false,
           "Store each page as one object for K and one object for V; no effect with layer_first"),
      text("cache.namespace", "", "Name of a partition of the storage tiers; pages of other namespaces are never hit"),
      choice<&EngineConfig::io>("cache.io",
                                "Copies between device and host: kernel (copy kernels), direct (copy engines), or auto "
                                "(the faster one for each copy)"),
      choice<&EngineConfig::path>("cache.path",
                                  "Path of pages from storage to the device: via_host, direct (GPUDirect, without host "
                                  "memory), or auto (via host while the request is queued, then direct)"),
      policy<&EngineConfig::load_back_admission>(
          "cache.load_back_admission", PolicyKind::load_back_admission,
          "Which hits on the host are loaded: all of at least load_back_min_tokens (threshold), or of these only hits "
          "that are faster to load than to compute (cost)"),
      integer<&EngineConfig::load_back_min_tokens>(
          "cache.load_back_min_tokens", 0, 1e9,
          "Shortest hit on the host that is loaded, in tokens; shorter hits are computed again"),
      integer("cache.load_back_quota_tokens", 0, 0, kMaxKeyValue,
              "Longest hit on the host that is loaded, in tokens; longer hits are computed again; 0 = no limit"),
      flag<&EngineConfig::cache_output>("cache.output", "Cache the generated pages too"),
      flag<&EngineConfig::session_radix>(
          "cache.session_radix",
          "Evict pages that no session refers to first, then those with the fewest references, then by cache.eviction, "
          "as SGLang does with --enable-session-radix-cache; windows and states that no session refers to, then the "
          "others. A session refers to what its finished requests have cached until the hint session_end"),
      choice<&EngineConfig::hints>(
          "cache.hints",
          "What hints about sessions do. policy: eviction policies that take hints receive them (tide). obey: also, "
          "pins "
          "hold pages, windows and states, ended sessions are evicted first, and demote and prefetch move them, under "
          "every eviction policy. ignore: nothing"),
      share<&EngineConfig::hint_share>(
          "cache.hint_share", 0.25,
          "obey: share of the device, and of the host, that pins may hold, of pages, windows and states each; a pin "
          "above this share is refused"),
      policy<&EngineConfig::state_points>(
          "cache.state_points", PolicyKind::state_points,
          "Where requests leave recurrent states (Mamba, linear attention) in the cache; sglang: in prefill and decode "
          "by a grid (extra_buffer), at the end of each pass of a prefill and of the request (no_buffer), or by a grid "
          "and where prompts have been seen to part (overlap, which no engine has); vllm, for sliding windows too: at "
          "the "
          "end of the prompt, at junctions and every so many tokens (align)"),
      policy<&EngineConfig::pool_eviction>(
          "cache.pool_eviction", PolicyKind::pool_eviction,
          "sglang: which window or state leaves a pool that is full: the one that was used least recently, as in "
          "SGLang (lru), or the one that saves the least work for its bytes in all pools (work_per_byte), which then "
          "also "
          "chooses among the leaves of the pages"),
      integer<&EngineConfig::states_per_path>(
          "cache.states_per_path", 0, 1e6,
          "sglang: recurrent states that a path of the cache keeps; more are dropped from the top, as with SGLang's "
          "--mamba-max-states-per-path; 0 = no limit"),
      integer(
          "tiers.device.tokens", 0, 0, kMaxKeyValue,
          "Capacity of the device tier (L1), in tokens; with scheduler.style = vllm, one page of it is a placeholder"),
      number("tiers.device.gib", 0.0, 0, 1e9,
             "Capacity of the device tier (L1), in GiB; if tokens and gib are 0, L1 has the GPU memory beside the "
             "weights"),
      number("tiers.device.memory_fraction", 0.0, 0, 1,
             "Share of the GPU memory: with engine = sglang for weights and L1 (mem_fraction_static), with vllm for "
             "activations and graphs too (gpu_memory_utilization), with trtllm for L1, of what the rest leaves "
             "(free_gpu_memory_fraction); with none, as scheduler.style says. 0 = the engine's default: SGLang's by "
             "its own "
             "rule, 0.92, 0.9; with none 0.9 less the activations"),
      number("tiers.device.window_ratio", 0.0, 0, 1,
             "sglang: tokens of the pool for sliding windows, as a share of L1's tokens, as SGLang's "
             "--swa-full-tokens-ratio; 0 = SGLang's for the model: 0.8, of DeepSeek-V4 0.1"),
      number("tiers.device.state_ratio", 0.0, 0, 100,
             "sglang: memory of the pool for states (Mamba, linear attention), as a multiple of the other pools', as "
             "SGLang's --mamba-full-memory-ratio; 0 = SGLang's, 0.9"),
      integer("tiers.device.states", 0, 0, 1e9,
              "sglang: states that the pool for states holds, as SGLang's --max-mamba-cache-size; 0 = by "
              "tiers.device.state_ratio"),
      integer("tiers.device.states_per_request", 0, 0, 16,
              "sglang: states that each running request takes up, which limits scheduler.max_running: 5 with SGLang's "
              "--mamba-radix-cache-strategy extra_buffer, 4 with extra_buffer_lazy, 3 with no_buffer; 0 = SGLang's, 5"),
      integer("tiers.host.tokens", 0, 0, kMaxKeyValue, "Capacity of the host tier (L2), in tokens"),
      number("tiers.host.gib", 0.0, 0, 1e9,
             "Capacity of the host tier (L2), in GiB; if tokens, gib and ratio are 0, there is no host tier"),
      number("tiers.host.ratio", 0.0, 0, 1e6, "Capacity of the host tier (L2) as a multiple of L1, e.g. 2"),
      number("tiers.host.memory_gib", 0.0, 0, 1e9,
             "Free memory of the host, for one engine, in GiB: bounds tiers.host.ratio as memory_share says; a larger "
             "host tier gets a warning; 0 = not known"),
      number("tiers.host.memory_share", 0.0, 0, 1,
             "Largest host tier of tiers.host.ratio, as a share of memory_gib less 10 GiB, less 5 %, as SGLang's "
             "--hicache-host-memory-fraction; 0 = no bound"),
      integer("tiers.disk.tokens", 0, 0, kMaxKeyValue,
              "Capacity of the disk tier, in tokens; each engine has a disk tier of its own"),
      number("tiers.disk.gib", 0.0, 0, 1e9,
             "Capacity of the disk tier, in GiB; if tokens and gib are 0, there is no disk tier"),
      path("tiers.disk.path", "Folder of the disk tier, for kvtwin run"),
      text_choice("tiers.disk.format", {"segments", "hicache_files"},
                  "segments: files of many pages; hicache_files: one file per page, as HiCache's file back end"),
      integer("tiers.shared_fs.tokens", 0, 0, kMaxKeyValue,
              "Capacity of the shared file system for all engines together, in tokens; looked up after the disk tier"),
      number("tiers.shared_fs.gib", 0.0, 0, 1e9,
             "Capacity of the shared file system for all engines together, in GiB; if tokens and gib are 0, there is "
             "no such tier"),
      path("tiers.shared_fs.path",
           "Folder on the shared file system, for kvtwin run; several runs may use the folder at the same time"),
      integer("tiers.remote.tokens", 0, 0, kMaxKeyValue,
              "Capacity of the remote tier, in tokens; the remote store itself evicts"),
      number("tiers.remote.gib", 0.0, 0, 1e9,
             "Capacity of the remote tier, in GiB; if tokens and gib are 0, there is no remote tier"),
      number("tiers.remote.drives_gib", 0.0, 0, 1e9,
             "Drives of the remote store behind its memory, which tiers.remote is then, in GiB: what the memory evicts "
             "stays there (Mooncake Store with SSD offload)"),
      text("tiers.remote.store", "pool",
           "Store of the remote tier, for costs: pool (the hardware's own figures), or a store preset; kvtwin presets "
           "lists the names, for example redis or mooncake"),
      path("tiers.remote.store_file",
           "Path of a store file (JSON), for example from kvtwin calibrate --remote; replaces tiers.remote.store"),
      text("tiers.remote.url", "",
           "Address of the remote tier, for kvtwin run: redis://host:port,host:port/database (rediss:// for TLS), "
           "mooncake://host:port?protocol=tcp, nixl+posix:///folder, nixl+obj://bucket?endpoint=http://host:port, "
           "nixl+ucx://engines (memory that the engines of the run lend to each other), or library:/path/mine.so?text "
           "(a store library of your own)"),
      path("tiers.remote.tls_ca", "File of trusted certificates for rediss://; empty = the system's certificates"),
      number("tiers.remote.timeout_s", 1.0, 0.001, 3600,
             "Seconds without an answer after which a server counts as gone, for kvtwin run"),
      policy<&EngineConfig::style>(
          "scheduler.style", PolicyKind::style,
          "How passes are composed: prefill first, then decode (sglang), or one token budget per step for decode and "
          "prefill, with loads before admission and preemption (vllm)"),
      integer<&EngineConfig::poll_steps>("scheduler.poll_steps", 1, 1e6,
                                         "Decode steps between two looks at new requests (SGLang's "
                                         "--scheduler-recv-interval). After a prefill, and if "
                                         "no request runs, the next step looks"),
      flag<&EngineConfig::mixed_chunks>(
          "scheduler.mixed_chunks",
          "sglang: running requests decode one token in each prefill pass, as with --enable-mixed-chunk"),
      flag<&EngineConfig::admit_whole_prompt>(
          "scheduler.admit_whole_prompt",
          "vllm: a request is admitted only if its whole prompt fits into L1; false = if its first chunk fits"),
      policy<&EngineConfig::order>("scheduler.order", PolicyKind::order,
                                   "Order in which waiting requests are admitted: by arrival (fcfs), longest "
                                   "cached prefix, fewest tokens to compute, or highest response ratio (hrrn) "
                                   "first"),
      integer<&EngineConfig::order_window>(
          "scheduler.order_window", 1, 1e6,
          "Maximum number of waiting requests that a scheduler step considers, oldest first"),
      integer<&EngineConfig::overtake_limit>(
          "scheduler.overtake_limit", 0, 1e9,
          "longest_prefix: number of times that other requests may overtake a waiting request"),
      integer<&EngineConfig::max_running>("scheduler.max_running", 1, 1e6,
                                          "Maximum number of requests that run at the same time"),
      integer<&EngineConfig::max_waiting>("scheduler.max_waiting", 0, kMaxKeyValue,
                                          "Maximum number of waiting requests; further arrivals are rejected; 0 = no "
                                          "limit. A waiting request takes 0.4 KB of "
                                          "memory and 32 bytes per page of its prompt"),
      integer<&EngineConfig::chunk_tokens>("scheduler.chunk_tokens", 1, 1e9,
                                           "Maximum number of prefill tokens per pass; vllm, and sglang with "
                                           "mixed_chunks: of prefill and decode tokens"),
      integer<&EngineConfig::burst_steps>("scheduler.burst_steps", 1, 1e6,
                                          "Maximum number of decode steps that are submitted together"),
      path("report.validated",
           "Folder of kvtwin validate --out with runs of the same engine and GPU: the intervals of the times take "
           "their errors "
           "into account"),
      flag("report.bounds", false,
           "Report the hits of an optimal cache and of LRU, both as large as all tiers together; takes 80 bytes of "
           "memory per page of the prompts"),
      flag(
          "report.warm", false,
          "Report the figures of the warm part of the run too: from where the hit ratio and the waits no longer change "
          "by more than chance, over at least five think times; takes 0.3 KB of memory per request. Generated chat, "
          "agentic, tools and sessions go on until there is such a part: twice, four or eight times as long as given. "
          "plan and compare set the key for such traffic, if workload.limit is 0"),
      text_choice("sim.world", {"simgrid", "events"},
                  "Simulated world: simgrid (transfers share links) or events (no sharing; a cross-check)"),
      text_choice("real.device", {"auto", "host", "cuda"},
                  "Device of a real run: host (host memory takes the place of the GPU), cuda, or auto (cuda if there "
                  "is a GPU, else host)"),
      text_choice("real.cufile", {"auto", "on", "off"},
                  "Reads from the disk tier to GPU memory: on (by cuFile, GPUDirect Storage), off (through host "
                  "memory), or auto (by cuFile if the kernel supports cuFile)"),
      text("real.cufile_library", "", "Path of the cuFile library; empty = the system's library"),
      text("real.cublas", "", "Path of the cuBLAS library, for cuda; empty = the system's library"),
      text("real.nixl_library", "",
           "Path of NIXL's library libnixl_capi.so, or of the folder of Python packages that has it, for hand-overs "
           "between engines with roles; empty = the system's library"),
      integer("real.check_every", 64, 1, 65536,
              "cuda: a pass compares a page with its key at the first read after a load. After that, each layer of the "
              "page is compared once in this number of steps that read the page. 1 = all bytes in each step, as with "
              "faults = flip(...) and on the host device"),
      microseconds<&WorldConfig::reduce_ns>("sim.reduce_us", 1, 1e6,
                                            "instances: time of a reduction among the ranks, in microseconds"),
      number("sim.notice_us", 50, 0, 1e6,
             "Engines with roles, in microseconds: time of a notice from one engine to another"),
      flag("sim.both_ways_shared", true,
           "Both directions of a GPU's link share one limit (the hardware's bidirectional_factor); false = each "
           "direction has its full bandwidth"),
      flag("sim.dram_shared", true,
           "All transfers of a host share the host's DRAM bandwidth; false = DRAM never limits a transfer"),
  };
  return keys;
}

FigureUnit unit_of_figure(const HardwareField& field) {
  if (field.unit == "B/s") return {"GB/s", 1e9, "in GB/s; 0 = the hardware's figure"};
  if (field.unit == "s") return {"us", 1e-6, "in microseconds; 0 = the hardware's figure"};
  if (field.unit == "B") return {"B", 1, "in bytes; 0 = the hardware's figure"};
  return {"", 1, "0 = the hardware's figure"};
}

namespace {

// The rules of a prefix cache that `engine` sets, and that no server has as flags.
std::span<const Key> cache_rules() {
  static const std::vector<Key> keys = {
      flag<&EngineConfig::split_refreshes>(
          "cache.rules.split_refreshes",
          "A prompt that leaves a cached node in the middle makes the rest of the node recently used, as in SGLang"),
      flag<&EngineConfig::look_ups_refresh>(
          "cache.rules.look_ups_refresh",
          "true: each look-up for a waiting request makes the found prefix recently used, as in SGLang: at each try to "
          "admit the request; with storage tiers also at the arrival and at the end of the prefetch. false: only the "
          "admission does"),
      choice<&EngineConfig::count_touches>(
          "cache.rules.count_touches",
          "lfu, slru: when a request touches a page: at the admission, if the page hits (admission), or when the "
          "request inserts its pages, and under write_back never (insert), as in SGLang"),
      flag<&EngineConfig::raise_prompt_priority>(
          "cache.rules.raise_prompt_priority",
          "The pages of a prompt have a priority one higher than the pages of its answer, as in SGLang 0.5.23"),
      flag<&EngineConfig::reclaim_shadowed>(
          "cache.rules.reclaim_shadowed",
          "If the host is full, first drop the host copies of pages that the device also has"),
      choice<&EngineConfig::reclaim_order>(
          "cache.rules.reclaim_order",
          "Order in which a full host drops these copies. inserted: the oldest insertion first. shadowed: the page "
          "that was on both tiers first; leaves that the device may evict come last, as in SGLang"),
      flag<&EngineConfig::host_evicts_leaving>(
          "cache.rules.host_evicts_leaving",
          "write_back: a full host may evict pages that are about to leave the device, as if they had left, as in "
          "SGLang"),
      choice<&EngineConfig::prefetch_timeout_from>(
          "cache.rules.prefetch_timeout_from",
          "Begin of the time limit of timeout. wait: when the request could first be admitted; the limit grows with "
          "the requested tokens. issue: with the prefetch; the limit grows with the tokens that are read"),
      share<&EngineConfig::prefetch_host_share>(
          "cache.rules.prefetch_host_share", 0.5,
          "Share of the host tier that prefetches in flight may fill; a prefetch above this share is declined"),
      choice<&EngineConfig::prefetch_share_of>(
          "cache.rules.prefetch_share_of",
          "Size of which prefetch_host_share is a share. host: the host tier. host_less_device: the host tier less the "
          "device tier, as in SGLang before 0.5.15; these releases need a host tier that is larger than the device "
          "tier"),
      choice<&EngineConfig::prefetch_style>(
          "cache.rules.prefetch_style",
          "Pages that a prefetch to the host reads, and its end. kvtwin: the pages that the host still lacks, until "
          "the last page has come. sglang: all pages that the look-up found, until the request stops waiting"),
      flag<&EngineConfig::private_loads>(
          "cache.rules.private_loads",
          "Without a host tier: pages that a request loads from a storage tier belong to the request until its first "
          "pass has ended, as with SGLang's linker. false: other requests share them from the begin of the load"),
      flag<&EngineConfig::prefetch_recheck>(
          "cache.rules.prefetch_recheck",
          "Try a prefetch again when its request could be admitted, if its cached prefix in the device and host tiers "
          "has become shorter since the last try (SGLang since 0.5.20)")};
  return keys;
}

const std::vector<std::string>& earlier_rule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Key& key : cache_rules()) all.push_back("cache" + std::string(key.name.substr(key.name.rfind('.'))));
    return all;
  }();
  return names;
}

std::span<const Key> hardware_set_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all = {
        number_or_0("hardware.set.disk_read_gbps", kMinGbps, 2000,
                    "Read bandwidth of all drives together, in GB/s; 0 = the hardware's figure"),
        number_or_0("hardware.set.disk_write_gbps", kMinGbps, 2000,
                    "Write bandwidth of all drives together, in GB/s; 0 = the hardware's figure"),
        number_or_0(
            "hardware.set.remote_gbps", kMinGbps, 10000,
            "Bandwidth of all NICs to and from the remote pool, and of the pool, in GB/s for each direction; 0 = "
            "the hardware's figure"),
        number_or_0("hardware.set.host_link_gbps", kMinGbps, 1000,
                    "Bandwidth of a GPU's link to the host, in GB/s for each direction; copy kernels scale with the "
                    "link; 0 = the hardware's figure"),
        integer(
            "hardware.set.pool_nodes", 0, 0, 1024,
            "Number of nodes of the remote pool. The key of a page chooses its node. Engines that use a node share its "
            "port. 0 = one pool with the bandwidth of the hardware's pool, or of one node of tiers.remote.store"),
        number_or_0("hardware.set.pool_node_gbps", kMinGbps, 10000,
                    "Bandwidth of one node of the remote pool, in GB/s for each direction; 0 = the store's figure, or "
                    "an equal part of the hardware's figure for the pool"),
        flag(
            "hardware.set.pool_peers", false,
            "true: the pages of the remote pool lie in the memory of the engines' own hosts, as in Mooncake, and share "
            "the hosts' NICs; there are as many nodes as engines"),
        integer(
            "hardware.set.rails", 0, 0, 64,
            "Number of rails: each rank uses the NICs of its rail only, on its own host and on peers; 0 = each rank "
            "uses all NICs"),
        number("hardware.set.switch_oversubscription", 1.0, 1, 1000,
               "NIC bandwidth of all engines / bandwidth of the links between switches on the way to the remote pool; "
               "1 = these links never limit"),
        number("hardware.set.network_share", 0.0, 0, 0.99,
               "Share of the network to the remote pool that others use: of its nodes' ports and of the links between "
               "switches"),
    };
    static std::vector<std::string> names;  // of the figures of a hardware file
    for (const HardwareField& field : hardware_fields()) names.push_back("hardware.set." + std::string(field.key));
    for (std::size_t i = 0; i < names.size(); ++i) {
      const HardwareField& field = hardware_fields()[i];
      const FigureUnit unit = unit_of_figure(field);
      Key& key = all.emplace_back(
          field.whole ? integer(names[i], 0, 0, field.most, "0 = the hardware's figure")
                      : number_or_0(names[i], field.least / unit.base, field.most / unit.base, unit.help));
      key.unit = unit.name;
    }
    return all;
  }();
  return keys;
}

}  // namespace

std::span<const KeyTable> key_tables() {
  static const KeyTable kTables[] = {{kHardwareSetKey, "figure", "drive_count=4", hardware_set_keys()},
                                     {"cache.rules", "rule", "split_refreshes=false", cache_rules()}};
  return kTables;
}

const KeyTable* table_of(std::string_view key) {
  const auto tables = key_tables();
  const auto at = std::ranges::find_if(tables, [&](const KeyTable& table) {
    return key.starts_with(table.name) && key.substr(table.name.size()).starts_with('.');
  });
  return at == tables.end() ? nullptr : &*at;
}

bool is_figure_of_a_file(const Key& key) {
  if (!key.name.starts_with(kHardwareSetKey)) return false;
  const std::string_view figure = key.name.substr(kHardwareSetKey.size() + 1);
  return std::ranges::find(hardware_fields(), figure, &HardwareField::key) != hardware_fields().end();
}

const Key* find_key_of_experiment(std::string_view name) {
  const KeyTable* const table = table_of(name);
  const std::span<const Key> keys = table == nullptr ? experiment_keys() : table->keys;
  if (const auto at = std::ranges::find(keys, name, &Key::name); at != keys.end()) return &*at;
  const EarlierKey* const earlier = find_earlier_key(name);
  return earlier == nullptr ? nullptr : &earlier->key;
}

std::string_view present_name(std::string_view key) {
  const EarlierKey* const earlier = find_earlier_key(key);
  return earlier != nullptr && earlier->policies.empty() ? earlier->of.front() : key;
}

Unit unit_of(const Key& key) {
  // As the units of names: "x_gbps", "x_us". A figure in bytes has no such name.
  if (key.unit == "GB/s") return unit_named("_gbps");
  if (key.unit == "us") return unit_named("_us");
  if (key.unit == "B") return {Unit::Kind::bytes, "B"};
  return unit_named(key.name);
}

std::span<const EarlierKey> earlier_keys() {
  using Names = std::vector<std::string_view>;
  static const Names kEviction{"cache.eviction"}, kPrefetch{"cache.prefetch_policy"};
  static const Names kRoutes{"cluster.route", "cluster.decode_route", "parallel.attention_route"};
  static const Names kSlru{"slru"}, kTlru{"tlru"}, kTimeout{"timeout"}, kScore{"score"};
  static const Names kFaults{"faults"}, kEngine{"engine"}, kNode{"node"}, kDrives{"drives"}, kLink{"link"};
  static const Names kRank{"rank"}, kStall{"stall"}, kFlip{"flip"};
  static const Names kPrefixAffinity{"prefix_affinity"}, kAffinities{"prefix_affinity", "session_affinity"};
  static const std::vector<EarlierKey> keys = [] {
    std::vector<EarlierKey> all = {
        {integer("cache.slru_protected_touches", 2, 1, 1e9, "cache.eviction = \"slru(protected=...)\""), kEviction,
         kSlru, "protected"},
        {integer("cache.tlru_threshold_tokens", 0, 0, 1e9, "cache.eviction = \"tlru(threshold=...)\""), kEviction,
         kTlru, "threshold"},
        {integer("cache.tlru_next_prompt_tokens", 0, 0, 1e9, "cache.eviction = \"tlru(next_prompt=...)\""), kEviction,
         kTlru, "next_prompt"},
        {number("cache.prefetch_timeout_base_s", 1, 0, 1e6, "cache.prefetch_policy = \"timeout(base=...)\""), kPrefetch,
         kTimeout, "base"},
        {number("cache.prefetch_timeout_per_ki_token_s", 0.25, 0, 1e6,
                "cache.prefetch_policy = \"timeout(per_ki_token=...)\""),
         kPrefetch, kTimeout, "per_ki_token"},
        {number("cache.prefetch_timeout_most_s", 0, 0, 1e6, "cache.prefetch_policy = \"timeout(most=...)\""), kPrefetch,
         kTimeout, "most"},
        {number("cluster.route_min_prefix", 0.5, 0, 1, "cluster.route = \"prefix_affinity(min_prefix=...)\""), kRoutes,
         kPrefixAffinity, "min_prefix"},
        {integer("cluster.route_uneven_requests", 32, 0, 1e9,
                 "cluster.route = \"prefix_affinity(uneven_requests=...)\""),
         kRoutes, kAffinities, "uneven_requests"},
        {number("cluster.route_uneven_factor", 1.5, 1, 1e6, "cluster.route = \"prefix_affinity(uneven_factor=...)\""),
         kRoutes, kAffinities, "uneven_factor"},
        {number("cluster.route_queue_weight", 2, 0, 1000, "cluster.route = \"score(queue=...)\""), kRoutes, kScore,
         "queue"},
        {number("cluster.route_kv_weight", 2, 0, 1000, "cluster.route = \"score(kv=...)\""), kRoutes, kScore, "kv"},
        {number("cluster.route_prefix_weight", 3, 0, 1000, "cluster.route = \"score(prefix=...)\""), kRoutes, kScore,
         "prefix"},
        {number("cluster.route_host_share", 0.8, 0, 1, "cluster.route = \"score(host_share=...)\""), kRoutes, kScore,
         "host_share"},
        {number("cluster.route_storage_share", 0, 0, 1, "cluster.route = \"score(storage_share=...)\""), kRoutes,
         kScore, "storage_share"},
        {text_choice("cluster.route_prefix_from", {"events", "prompts"}, "cluster.route = \"score(prefix_from=...)\""),
         kRoutes, kScore, "prefix_from"},
        {integer("cluster.dead_engine", -1, -1, 1023, "faults = \"engine(index=...)\""), kFaults, kEngine, "index",
         "cluster.dead_engine"},
        {number("cluster.dead_at_s", 0, 0, 1e9, "faults = \"engine(at=...)\""), kFaults, kEngine, "at",
         "cluster.dead_engine"},
        {number("cluster.detect_s", 1, 0, 1e6, "faults = \"engine(detect=...)\""), kFaults, kEngine, "detect",
         "cluster.dead_engine"},
        {text("faults.node_down", "", "faults = \"node(index=1, from=10s, to=20s)\""), kFaults, kNode, "",
         "faults.node_down"},
        {text("faults.slow_drives", "", "faults = \"drives(factor=10, from=10s, to=20s)\""), kFaults, kDrives, "",
         "faults.slow_drives"},
        {text("faults.slow_link", "", "faults = \"link(name=nic, share=0.5, from=10s, to=20s)\""), kFaults, kLink, "",
         "faults.slow_link"},
        {number("sim.straggler_factor", 1, 1, 1e6, "faults = \"rank(factor=...)\""), kFaults, kRank, "factor",
         "sim.straggler_factor"},
        {integer("sim.straggler_rank", 0, 0, 63, "faults = \"rank(index=...)\""), kFaults, kRank, "index",
         "sim.straggler_factor"},
        {number("real.slow_factor", 1, 1, 1e6, "faults = \"rank(factor=...)\""), kFaults, kRank, "factor",
         "real.slow_factor"},
        {integer("real.slow_rank", 0, 0, 63, "faults = \"rank(index=...)\""), kFaults, kRank, "index",
         "real.slow_factor"},
        {number("sim.storage_stall_share", 0, 0, 1, "faults = \"stall(share=...)\""), kFaults, kStall, "share",
         "sim.storage_stall_share"},
        {number("sim.storage_stall_factor", 20, 1, 1e6, "faults = \"stall(factor=...)\""), kFaults, kStall, "factor",
         "sim.storage_stall_share"},
        {text_choice("real.flip", {"none", "device", "host"}, "faults = \"flip(place=...)\""), kFaults, kFlip, "place",
         "real.flip"},
        renamed(integer("hardware.disk_drives", 0, 0, 64, "hardware.set.drive_count"), "hardware.set.drive_count"),
        renamed(number_or_0("hardware.disk_read_gbps", kMinGbps, 2000, "hardware.set.disk_read_gbps"),
                "hardware.set.disk_read_gbps"),
        renamed(number_or_0("hardware.disk_write_gbps", kMinGbps, 2000, "hardware.set.disk_write_gbps"),
                "hardware.set.disk_write_gbps"),
        renamed(number_or_0("hardware.shared_fs_read_gbps", kMinGbps, 10000, "hardware.set.shared_fs_read_bandwidth"),
                "hardware.set.shared_fs_read_bandwidth"),
        renamed(number_or_0("hardware.shared_fs_write_gbps", kMinGbps, 10000, "hardware.set.shared_fs_write_bandwidth"),
                "hardware.set.shared_fs_write_bandwidth"),
        renamed(number("hardware.shared_fs_latency_us", 0.0, 0, 1e6, "hardware.set.shared_fs_latency"),
                "hardware.set.shared_fs_latency"),
        renamed(number("hardware.shared_fs_file_us", 0.0, 0, 1e6, "hardware.set.shared_fs_file"),
                "hardware.set.shared_fs_file"),
        renamed(integer("hardware.remote_nics", 0, 0, 64, "hardware.set.nic_count"), "hardware.set.nic_count"),
        renamed(number_or_0("hardware.remote_gbps", kMinGbps, 10000, "hardware.set.remote_gbps"),
                "hardware.set.remote_gbps"),
        renamed(number_or_0("hardware.remote_pool_gbps", kMinGbps, 100'000, "hardware.set.pool_bandwidth"),
                "hardware.set.pool_bandwidth"),
        renamed(number("hardware.remote_object_us", 0.0, 0, 1e5, "hardware.set.nic_object"), "hardware.set.nic_object"),
        renamed(integer("hardware.pool_nodes", 0, 0, 1024, "hardware.set.pool_nodes"), "hardware.set.pool_nodes"),
        renamed(number_or_0("hardware.pool_node_gbps", kMinGbps, 10000, "hardware.set.pool_node_gbps"),
                "hardware.set.pool_node_gbps"),
        renamed(flag("hardware.pool_peers", false, "hardware.set.pool_peers"), "hardware.set.pool_peers"),
        renamed(integer("hardware.rails", 0, 0, 64, "hardware.set.rails"), "hardware.set.rails"),
        renamed(number("hardware.switch_oversubscription", 1.0, 1, 1000, "hardware.set.switch_oversubscription"),
                "hardware.set.switch_oversubscription"),
        renamed(number("hardware.network_share", 0.0, 0, 0.99, "hardware.set.network_share"),
                "hardware.set.network_share"),
        renamed(number_or_0("hardware.host_link_gbps", kMinGbps, 1000, "hardware.set.host_link_gbps"),
                "hardware.set.host_link_gbps"),
    };
    for (std::size_t i = 0; i < cache_rules().size(); ++i) {  // cache.split_refreshes
      Key& key = all.emplace_back(renamed(cache_rules()[i], cache_rules()[i].name)).key;
      key.name = earlier_rule_names()[i];
      key.help = cache_rules()[i].name;
      key.apply = nullptr;
    }
    return all;
  }();
  return keys;
}

const EarlierKey* find_earlier_key(std::string_view name) {
  const auto keys = earlier_keys();
  const auto at = std::ranges::find(keys, name, [](const EarlierKey& one) { return one.key.name; });
  return at == keys.end() ? nullptr : &*at;
}

std::string Key::range() const {
  std::ostringstream out;
  if (std::holds_alternative<bool>(fallback)) {
    out << "true or false";
  } else if (!choices.empty()) {
    out << one_of(choices);
  } else if (!std::holds_alternative<std::string>(fallback)) {
    if (min_nonzero > 0) out << "0, or ";
    out << "at least " << (min_nonzero > 0 ? min_nonzero : min);
    if (max < kMaxKeyValue) out << " and at most " << max;
  }
  return out.str();
}

bool is_key_of_all_engines(std::string_view key) {
  static constexpr std::string_view kCommon[] = {
      "cluster.", "workload.", "report.",     "slo.",          "sim.",
      "seed",     "faults",    "tiers.disk.", "tiers.remote.", "tiers.shared_fs."};
  return std::ranges::any_of(kCommon, [&](std::string_view group) { return key.starts_with(group); });
}

bool is_policy_key(std::string_view key) {
  return key.starts_with("cache.") || key.starts_with("scheduler.") || key.starts_with("cluster.route") ||
         key == "tiers.device.window_ratio" || key == "tiers.device.state_ratio";
}

}  // namespace kvtwin
