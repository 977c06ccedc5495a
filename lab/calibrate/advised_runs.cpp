#include "lab/calibrate/advised_runs.hpp"

#include <algorithm>
#include <string_view>
#include <variant>

#include "lab/experiment/workload.hpp"

namespace kvtwin {
namespace {

constexpr const char* kByAdvice = "kvtwin calibrate --advise";
constexpr std::uint64_t kLongPrompt = 8192, kLongestPrompt = 32768, kUnknownContext = 32768;

std::uint64_t tokens_of(Pages pages, const Setup& setup) {
  return static_cast<std::uint64_t>(pages) * setup.engine.shape.page_tokens;
}

std::string count_text(std::uint64_t tokens) { return std::to_string(tokens) + " tokens"; }

CandidateRun plain_run(const char* name, std::uint64_t question, std::uint64_t output, std::uint64_t clients,
                       std::uint64_t requests) {
  CandidateRun run;
  run.name = name;
  run.question_tokens = question;
  run.output_tokens = output;
  run.clients = clients;
  run.requests = requests;
  run.words = std::to_string(requests) + " prompts of " + count_text(question) + ", " + count_text(output) +
              " each answer, " + (clients == 1 ? "one at a time" : "from " + std::to_string(clients) + " clients");
  return run;
}

// Prompts with shared prefixes that have `working_set` tokens together. Each prefix is sent three times, in any order.
CandidateRun repeated_run(const char* name, const char* where, std::uint64_t prefix, std::uint64_t working_set,
                          std::uint64_t clients) {
  CandidateRun run;
  run.name = name;
  run.prefix_tokens = prefix;
  run.question_tokens = std::max<std::uint64_t>(prefix / 64, 16);
  run.output_tokens = 16;
  run.groups = std::max<std::uint64_t>(4, (working_set + prefix - 1) / prefix);
  run.requests = 3 * run.groups;
  run.clients = clients;
  run.words = std::to_string(run.requests) + " prompts that share " + std::to_string(run.groups) + " prefixes of " +
              count_text(prefix) + ", from " + std::to_string(clients) + " clients: hits " + where;
  return run;
}

}  // namespace

std::vector<CandidateRun> candidate_runs(const Experiment& e, const Setup& setup) {
  const Tokens known = context_max_of(e);
  const std::uint64_t context = known == 0 ? kUnknownContext : known;
  const std::uint64_t device = tokens_of(setup.engine.device_pages, setup);
  const std::uint64_t host = tokens_of(setup.engine.host_pages, setup);
  const std::uint64_t most = std::min(context / 2, device / 4);
  const std::uint64_t long_prompt = std::clamp<std::uint64_t>(most, 64, kLongPrompt);
  // A small model with a small context gets small prompts.
  const auto scaled = [&](std::uint64_t tokens) {
    return std::max<std::uint64_t>(16, tokens * long_prompt / kLongPrompt);
  };
  const std::uint64_t answer = std::clamp<std::uint64_t>(most / 2, 16, 128);
  std::vector<CandidateRun> runs{
      plain_run("long-prompts", long_prompt, 16, 1, 24),
      plain_run("short-prompts", scaled(128), answer, 1, 16),
      plain_run("prompt-burst", long_prompt, 16, 8, 48),
      plain_run("mixed-load", scaled(2048), answer, 16, 96),
      plain_run("many-clients", scaled(512), answer, 64, 256),
      plain_run("short-answers-of-many", scaled(128), std::min<std::uint64_t>(answer, 64), 256, 768),
      plain_run("long-answers", long_prompt, 2 * answer, 4, 16),
  };
  const std::uint64_t longest = std::min(most, kLongestPrompt);
  if (longest >= 2 * long_prompt) runs.push_back(plain_run("longest-prompts", longest, 16, 1, 12));
  const std::uint64_t prefix = long_prompt / 2;
  runs.push_back(repeated_run("device-hits", "on the device", prefix, 4 * prefix, 1));
  // One and a half times the device: most prefixes have left it when they come again.
  const std::uint64_t past_device = device + device / 2;
  if (host > past_device) runs.push_back(repeated_run("host-hits", "on the host", prefix, past_device, 4));
  std::uint64_t storage = 0;
  for (const StorageTierConfig& tier : setup.engine.storage) storage += tokens_of(tier.pages, setup);
  const std::uint64_t past_host = (device + host) + (device + host) / 4;
  if (storage > past_host) runs.push_back(repeated_run("storage-hits", "in storage", prefix, past_host, 4));
  return runs;
}

Experiment experiment_of(const CandidateRun& run, const Experiment& server) {
  const Experiment defaults = Experiment::from_text("", kByAdvice);
  Experiment e = server;
  for (const ExperimentKey& key : experiment_keys()) {
    const bool of_requests = key.name.starts_with("workload.") || key.name.starts_with("report.") ||
                             key.name == "faults" || key.name == "seed";
    if (!of_requests || e.value(key.name) == key.fallback) continue;
    const bool is_text = std::holds_alternative<std::string>(key.fallback);
    const std::string value = is_text ? defaults.text(key.name) : defaults.as_toml(key.name);
    e.set(std::string(key.name) + "=" + value, kByAdvice);
  }
  const auto set = [&](const std::string& key, std::uint64_t value) {
    e.set(key + "=" + std::to_string(value), kByAdvice);
  };
  if (e.integer("cluster.prefill") == 0 && e.integer("cluster.decode") == 0) set("cluster.engines", 1);
  e.set("workload.loop=closed", kByAdvice);
  e.set("workload.generate.kind=groups", kByAdvice);
  set("workload.generate.groups", run.groups);
  set("workload.generate.prompts_per_group", run.requests / run.groups);
  set("workload.generate.prefix_tokens", run.prefix_tokens);
  set("workload.generate.question_tokens", run.question_tokens);
  set("workload.generate.output_tokens", run.output_tokens);
  set("workload.generate.concurrency", run.clients);
  return e;
}

RunCommand command_of(const CandidateRun& run, const Experiment& server, std::size_t number) {
  const std::string& engine = server.text("serving.engine");
  const bool vllm = engine == "vllm" || engine == "trtllm";
  const auto option = [](const char* name, std::uint64_t value) {
    return " " + std::string(name) + " " + std::to_string(value);
  };
  RunCommand command;
  command.file = "run" + std::to_string(number) + (vllm ? ".json" : ".jsonl");
  std::string& line = command.line;
  if (vllm) {
    line = "vllm bench serve";
    if (run.prefix_tokens == 0) {
      line += " --dataset-name random" + option("--random-input-len", run.question_tokens) +
              option("--random-output-len", run.output_tokens) + " --random-range-ratio 0";
    } else {
      line += " --dataset-name prefix_repetition" + option("--prefix-repetition-prefix-len", run.prefix_tokens) +
              option("--prefix-repetition-suffix-len", run.question_tokens) +
              option("--prefix-repetition-num-prefixes", run.groups) +
              option("--prefix-repetition-output-len", run.output_tokens);
    }
    line += option("--num-prompts", run.requests) + option("--max-concurrency", run.clients) +
            " --request-rate inf --ignore-eos --num-warmups 0" + option("--seed", number) +
            " --save-result --save-detailed --result-filename " + command.file;
    return command;
  }
  line = "python3 -m sglang.bench_serving --backend sglang";
  if (run.prefix_tokens == 0) {
    line += " --dataset-name random-ids" + option("--random-input-len", run.question_tokens) +
            option("--random-output-len", run.output_tokens) + " --random-range-ratio 1" +
            option("--num-prompts", run.requests);
  } else {
    line += " --dataset-name generated-shared-prefix" + option("--gsp-num-groups", run.groups) +
            option("--gsp-prompts-per-group", run.requests / run.groups) +
            option("--gsp-system-prompt-len", run.prefix_tokens) + option("--gsp-question-len", run.question_tokens) +
            option("--gsp-output-len", run.output_tokens);
  }
  line += option("--max-concurrency", run.clients) + " --warmup-requests 0 --flush-cache" + option("--seed", number) +
          " --cache-report --output-details --output-file " + command.file;
  return command;
}

}  // namespace kvtwin
