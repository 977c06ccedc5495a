#include "lab/experiment/workload.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/generated.hpp"
#include "lab/experiment/setup_parts.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/experiment/workload_recipe.hpp"
#include "lab/formatted.hpp"
#include "lab/names.hpp"
#include "models/serving_times.hpp"
#include "sim/bounds/hitrate.hpp"
#include "traces/clients.hpp"
#include "traces/closed_loop.hpp"
#include "traces/figure_error.hpp"
#include "traces/groups.hpp"
#include "traces/returning.hpp"
#include "traces/shrink.hpp"

namespace kvtwin {
namespace {

constexpr const char* kWarmOrigin = "the warm part of generated traffic";

// Returns the content of workload.salt_file without trailing line ends; empty if the key is empty. Errors: InputError.
std::string page_salt(const Experiment& e) {
  constexpr std::size_t kMinBytes = 16, kMaxBytes = 4096;
  if (e.text("workload.salt_file").empty()) return {};
  const std::filesystem::path path = e.path("workload.salt_file");
  const std::string where = e.where("workload.salt_file") + ": " + path.string();
  std::error_code error;
  std::ifstream in;
  if (std::filesystem::is_regular_file(path, error)) in.open(path, std::ios::binary);
  if (!in.is_open()) throw InputError(where + ": is no file that can be read; give one with a secret of your own");
  std::string salt(kMaxBytes + 2, '\0');
  in.read(salt.data(), static_cast<std::streamsize>(salt.size()));
  salt.resize(static_cast<std::size_t>(in.gcount()));
  while (salt.ends_with('\n') || salt.ends_with('\r')) salt.pop_back();
  if (salt.size() < kMinBytes || salt.size() > kMaxBytes) {
    throw InputError(where + ": holds " + (salt.size() > kMaxBytes ? "more than 4096" : std::to_string(salt.size())) +
                     " bytes; a salt has from 16 to 4096, say what head -c 32 /dev/urandom | base64 prints");
  }
  return salt;
}

// The keys give rate and working set in tokens, so both stay the same for prompts of another length.
std::unique_ptr<TraceSource> returning_workload(const Experiment& e) {
  ReturningConfig config;
  config.seed = static_cast<std::uint64_t>(e.integer("seed"));
  config.prompt_tokens = static_cast<Tokens>(e.integer("workload.generate.prompt_tokens"));
  config.question_tokens = static_cast<Tokens>(e.integer("workload.generate.question_tokens"));
  config.output_tokens = static_cast<Tokens>(e.integer("workload.generate.output_tokens"));
  if (config.question_tokens >= config.prompt_tokens) {
    throw InputError(e.where("workload.generate.question_tokens") + ": is " + std::to_string(config.question_tokens) +
                     ", and a prompt has " + std::to_string(config.prompt_tokens) + " tokens (" +
                     e.where("workload.generate.prompt_tokens") + "); make it smaller than that");
  }
  const auto working_set = static_cast<std::uint64_t>(e.integer("workload.generate.working_set_tokens"));
  config.contexts = std::max<std::uint64_t>(1, working_set / config.prompt_tokens);
  if (config.contexts > ReturningGenerator::kMaxContexts) {
    throw InputError(e.where("workload.generate.working_set_tokens") + ": is " + std::to_string(working_set) +
                     ", which is " + std::to_string(config.contexts) + " contexts of " +
                     std::to_string(config.prompt_tokens) + " tokens (" + e.where("workload.generate.prompt_tokens") +
                     "); it must be at most " + std::to_string(ReturningGenerator::kMaxContexts) + " of them");
  }
  const double prompt = static_cast<double>(config.prompt_tokens);
  config.requests_per_second = e.number("workload.generate.prompt_tokens_per_second") / prompt;
  if (!(config.requests_per_second >= 1e-6 && config.requests_per_second <= 1e6)) {
    throw InputError(e.where("workload.generate.prompt_tokens_per_second") + ": prompts of " +
                     std::to_string(config.prompt_tokens) + " tokens (" + e.where("workload.generate.prompt_tokens") +
                     ") must arrive at 0.000001 to 1000000 a second");
  }
  config.at_once = static_cast<std::uint64_t>(e.integer("workload.generate.at_once"));
  config.requests = static_cast<std::uint64_t>(e.integer("workload.generate.requests"));
  if (config.requests == 0) {
    const double visits = static_cast<double>(config.contexts) * e.number("workload.generate.visits");
    config.requests = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(visits + 0.5));
  }
  return std::make_unique<ReturningGenerator>(config);
}

std::unique_ptr<TraceSource> groups_workload(const Experiment& e) {
  const auto figure = [&](const char* key) {
    return static_cast<std::uint64_t>(e.integer(std::string("workload.generate.") + key));
  };
  GroupsConfig config;
  config.seed = static_cast<std::uint64_t>(e.integer("seed"));
  config.groups = figure("groups");
  config.prompts_per_group = figure("prompts_per_group");
  config.prefix_tokens = figure("prefix_tokens");
  config.question_tokens = figure("question_tokens");
  config.output_tokens = figure("output_tokens");
  config.requests = figure("requests");
  config.range_ratio = e.number("workload.generate.range_ratio");
  config.requests_per_second = e.number("workload.generate.requests_per_second");
  config.clients = figure("concurrency");
  // Stages send the prompts in one order, each stage from where the stage before has ended. A ladder with more requests
  // than prompts goes on with the first prompt, as AIPerf's sequential sampling does; vLLM's `bench serve` draws the
  // prompts that it repeats (maybe_oversample_requests of vllm/benchmarks/datasets).
  const std::vector<WorkloadStage> stages = stages_of(e);
  if (!stages.empty()) config.requests = 0;
  for (const WorkloadStage& stage : stages) {
    config.requests += stage.requests;
    if (stage.clients == 0) config.rates.push_back({stage.requests, stage.requests_per_second});
  }
  if (config.clients != 0 && e.text("workload.loop") != "closed") {
    throw InputError(e.where("workload.generate.concurrency") +
                     ": clients wait for their answers in a closed loop only, and " + e.where("workload.loop") +
                     " is " + e.text("workload.loop") + "; set that to closed, or this to 0");
  }
  return std::make_unique<GroupsGenerator>(config);
}

TimeNs generated_duration(const Experiment& e) {
  const bool counted = e.integer("workload.generate.requests") != 0;
  const TimeNs duration = counted ? 0 : static_cast<TimeNs>(e.number("workload.generate.duration_s") * 1e9 + 0.5);
  if (!counted && duration == 0 && e.integer("workload.limit") == 0) {
    throw InputError(e.where("workload.generate.duration_s") +
                     ": is 0, as workload.generate.requests is: that is traffic without an end; set one of them");
  }
  return duration;
}

std::unique_ptr<TraceSource> trace_workload(const Experiment& e, Tokens block) {
  TraceOptions options;
  options.format = e.text("workload.format");
  options.block_tokens = block;
  options.shared_tokens = static_cast<Tokens>(e.integer("workload.shared_tokens"));
  options.session_gap_seconds = e.number("workload.session_gap_s");
  options.seed = static_cast<std::uint64_t>(e.integer("seed"));
  options.salt = page_salt(e);
  try {
    return std::make_unique<TraceReader>(e.path("workload.trace").string(), options);
  } catch (const TraceError& error) {
    throw InputError(e.where("workload.trace") + ": " + error.what());
  }
}

std::unique_ptr<TraceSource> generated_workload(const Experiment& e, Tokens block, const TrafficLength& length) {
  if (block != 0 && block != 512)
    throw InputError(e.where("workload.block_tokens") + ": generated traces have blocks of their own; leave it out");
  const std::string& kind = e.text("workload.generate.kind");
  if (kind == "returning") return returning_workload(e);
  if (kind == "groups") return groups_workload(e);
  if (kind == "sessions") {
    SessionsConfig config = sessions_config(e);
    config.requests = length.requests;
    config.duration = length.duration;
    return std::make_unique<SessionsGenerator>(config);
  }
  const auto seed = static_cast<std::uint64_t>(e.integer("seed"));
  return generated_traffic(kind, seed, length.requests, length.duration,
                           e.number("workload.generate.sessions_per_second"),
                           e.number("workload.generate.requests_per_second"));
}

// `length`: of chat, agentic, tools and sessions; 0 and 0: without an end.
std::unique_ptr<TraceSource> full_size_workload(const Experiment& e, const TrafficLength& length) {
  const auto block = static_cast<Tokens>(e.integer("workload.block_tokens"));
  if (!e.text("workload.trace").empty() && has_recipe(e)) {
    throw InputError(e.where(kRecipeKey) + ": generates the requests, and " + e.where("workload.trace") +
                     " has others; set that to \"\", or this to none");
  }
  if (has_recipe(e) && e.text("workload.generate.kind") != "groups") {
    throw InputError(e.where(kRecipeKey) + ": has prompts of the kind groups, and " +
                     e.where("workload.generate.kind") + " is " + e.text("workload.generate.kind") +
                     "; leave that out or set it to groups, or set this to none");
  }
  if (!e.text("workload.trace").empty()) return trace_workload(e, block);
  try {
    return generated_workload(e, block, length);
  } catch (const FigureError& error) {
    throw InputError(e.where("workload.generate." + error.figure()) + ": " + error.range());
  }
}

std::unique_ptr<TraceSource> workload_of(const Experiment& e, const TrafficLength& length) {
  std::unique_ptr<TraceSource> full_size = full_size_workload(e, length);
  const auto factor = static_cast<Tokens>(e.integer("workload.shrink"));
  if (factor == 1) return full_size;
  if (full_size->block_tokens() % factor != 0) {
    throw InputError(e.where("workload.shrink") + ": is " + std::to_string(factor) + ", which doesn't divide " +
                     std::to_string(full_size->block_tokens()) + ", the tokens of a block; take a divisor");
  }
  return std::make_unique<ShrunkTrace>(std::move(full_size), factor);
}

TrafficLength given_length(const Experiment& e) {
  return {static_cast<std::uint64_t>(e.integer("workload.generate.requests")), generated_duration(e)};
}

// Returns the stages in which clients send the requests; none if no client does.
std::vector<ClientStage> client_stages(const Experiment& e) {
  std::vector<ClientStage> stages;
  for (const WorkloadStage& stage : stages_of(e)) stages.push_back({stage.clients, stage.requests});
  const auto clients = static_cast<std::uint64_t>(e.integer("workload.generate.concurrency"));
  const bool generated = e.text("workload.trace").empty() && e.text("workload.generate.kind") == "groups";
  if (stages.empty() && generated && clients != 0) stages.push_back({clients, 0});
  return stages;
}

}  // namespace

Tokens context_max_of(const Experiment& e) {
  const auto given = static_cast<Tokens>(e.integer("workload.generate.context_max_tokens"));
  return given != 0 ? given : model_of(e, KvDtype::automatic).context_tokens;
}

std::string assumed_traffic(const Experiment& e) {
  if (!e.text("workload.trace").empty() || e.text("workload.generate.kind") != "sessions") return "";
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
  const std::string generate = "workload.generate.";
  if (e.integer(generate + "context_max_tokens") == 0) {
    const Tokens longest = context_max_of(e);
    const std::string model = e.text("model.config").empty() ? e.text("model.name") : e.text("model.config");
    add("context_max_tokens = " + (longest == 0 ? "none, as the longest context of " + model + " is not known"
                                                : std::to_string(longest) + " (the longest context of " + model + ")"));
  }
  const bool follow_ups =
      e.integer(generate + "users") != 0 || e.integer(generate + "turns_most") > 1 || e.number(generate + "turns") > 1;
  for (const char* key : {"length_spread", "think_spread"}) {
    if (key == std::string_view("think_spread") && !follow_ups) continue;
    if (!e.is_given(generate + key)) add(std::string(key) + " = " + e.as_toml(generate + key));
  }
  const bool ends = e.integer(generate + "requests") != 0 || e.integer("workload.limit") != 0;
  if (!ends && !e.is_given(generate + "duration_s")) add("duration_s = " + e.as_toml(generate + "duration_s"));
  return text.empty() ? "" : "not given for the conversations, so workload.generate." + text;
}

SessionsConfig sessions_config(const Experiment& e) {
  const std::string generate = "workload.generate.";
  const bool users = e.integer(generate + "users") != 0, ranged = e.integer(generate + "turns_most") != 0;
  for (const std::string_view key :
       {"requests_per_second", "prompt_tokens", "output_tokens", "turns", "prefix_tokens", "think_s"}) {
    bool needed = true;
    if (key == "think_s") needed = users || ranged || e.number(generate + "turns") > 1;
    if (key == "requests_per_second") needed = !users;
    if (key == "turns") needed = !ranged;
    if (key == "prompt_tokens") needed = e.integer(generate + "new_tokens") == 0;
    if (needed && !e.is_given(generate + std::string(key))) {
      throw InputError(e.where(generate + "kind") + ": sessions need averages of your traffic, and " + generate +
                       std::string(key) + " is not given; set that");
    }
  }
  const std::int64_t least = e.integer(generate + "turns_least"), most = e.integer(generate + "turns_most");
  if (least > most && e.is_given(generate + "turns_least")) {
    throw InputError(e.where(generate + "turns_least") + ": is " + std::to_string(least) + ", and " +
                     e.where(generate + "turns_most") + " is " + std::to_string(most) + "; set that to " +
                     std::to_string(least) + " or more");
  }
  if (users && e.text("workload.loop") != "closed") {
    throw InputError(e.where(generate + "users") + ": users wait for their answers in a closed loop only, and " +
                     e.where("workload.loop") + " is " + e.text("workload.loop") +
                     "; set that to closed, or this to 0");
  }
  const auto refuse_both = [&](const std::string& one, const std::string& other, const char* why) {
    if (!e.is_given(generate + other)) return;
    // experiment.resolved.toml of a run lists every key, also at its default.
    const auto key = std::ranges::find(experiment_keys(), generate + other, &ExperimentKey::name);
    if (e.is_from_file(key->name) && e.value(key->name) == key->fallback) return;
    throw InputError(e.where(generate + other) + ": " + e.where(generate + one) + " is given too, and " + why +
                     "; leave one of them out");
  };
  if (users)
    refuse_both("users", "requests_per_second", "the users set the rate, by their think times and the answers");
  if (ranged) refuse_both("turns_most", "turns", "a range of turns has its own mean");
  if (e.integer(generate + "new_tokens") != 0) {
    refuse_both("new_tokens", "prompt_tokens", "the mean prompt follows from the new tokens");
  }
  const auto tokens = [&](const char* key) { return static_cast<Tokens>(e.integer(generate + key)); };
  SessionsConfig config;
  config.seed = static_cast<std::uint64_t>(e.integer("seed"));
  config.users = static_cast<std::uint64_t>(e.integer(generate + "users"));
  config.start_spread_s = e.number(generate + "start_spread_s");
  config.requests_per_second = e.number(generate + "requests_per_second");
  config.new_tokens = tokens("new_tokens");
  config.turns_least = static_cast<std::uint64_t>(e.integer(generate + "turns_least"));
  config.turns_most = static_cast<std::uint64_t>(e.integer(generate + "turns_most"));
  if (const Tokens longest = context_max_of(e); longest != 0) config.context_max = longest;
  config.prompt_tokens = tokens("prompt_tokens");
  config.output_tokens = tokens("output_tokens");
  config.turns = e.number(generate + "turns");
  config.think_s = e.number(generate + "think_s");
  config.service_s = e.number("workload.service_s");
  config.prefix_tokens = tokens("prefix_tokens");
  config.length_spread = e.number(generate + "length_spread");
  config.think_spread = e.number(generate + "think_spread");
  if (config.context_max < config.prefix_tokens + 2) {
    throw InputError(e.where(generate + "prefix_tokens") + ": is " + std::to_string(config.prefix_tokens) +
                     ", and a conversation may have " + std::to_string(config.context_max) + " tokens (" +
                     e.where(generate + "context_max_tokens") + "); must be at least 2 less");
  }
  try {
    config.check();
  } catch (const FigureError& error) {
    throw InputError(e.where(generate + error.figure()) + ": " + error.range());
  }
  return config;
}

bool names_workload(const Experiment& e) {
  return e.is_given("workload.trace") || e.is_given("workload.generate.kind") || has_recipe(e);
}

std::unique_ptr<TraceSource> open_workload(const Experiment& e) {
  const bool generated = e.text("workload.trace").empty();
  return workload_of(e, generated ? given_length(e) : TrafficLength{});
}

std::optional<TrafficLength> steady_traffic(const Experiment& e) {
  if (!e.text("workload.trace").empty() || e.integer("workload.limit") != 0) return std::nullopt;
  const std::string& kind = e.text("workload.generate.kind");
  if (kind == "returning" || kind == "groups") return std::nullopt;
  return given_length(e);
}

std::optional<double> confirming_duration_s(const Experiment& e) {
  if (!e.where("workload.generate.duration_s").ends_with(std::string("(") + kWarmOrigin + ")")) return std::nullopt;
  constexpr double kConversations = 3, kSecondsPerToken = 0.03;
  const double turn = e.number("workload.generate.think_s") +
                      kSecondsPerToken * static_cast<double>(e.integer("workload.generate.output_tokens"));
  const double seconds = std::ceil(kConversations * sessions_config(e).mean_turns() * turn);
  return seconds > e.number("workload.generate.duration_s") ? std::optional(seconds) : std::nullopt;
}

std::unique_ptr<TraceSource> open_endless_workload(const Experiment& e) { return workload_of(e, {}); }

void measure_warm(Experiment& e) {
  if (e.is_given("report.warm") || e.integer("workload.warmup_requests") != 0 || !steady_traffic(e)) return;
  e.set("report.warm=true", kWarmOrigin);
  // Traffic that is not steady after this grows up to GrowingSource::kMostTimes of it.
  const std::string& kind = e.text("workload.generate.kind");
  const bool has_length = e.is_given("workload.generate.duration_s") || e.integer("workload.generate.requests") != 0;
  if (has_length || kind != "sessions") return;
  constexpr double kThinkTimes = 30, kLeastSeconds = 600;
  const double seconds = std::max(kLeastSeconds, kThinkTimes * e.number("workload.generate.think_s"));
  if (seconds >= e.number("workload.generate.duration_s")) return;
  e.set(formatted("workload.generate.duration_s=%.0f", seconds), kWarmOrigin);
}

bool seed_changes_work(const Experiment& e) {
  if (!faults_of(e, "stall").empty() || e.text("workload.trace").empty()) return true;
  TraceOptions options;
  options.format = checked_name("format", e.text("workload.format"), trace_format_names(), e.where("workload.format"));
  return TraceReader(e.path("workload.trace").string(), options).format() == "agentic";
}

TraceInputOptions input_options(const Experiment& e) {
  return input_options(e, static_cast<Tokens>(e.integer("cache.page_tokens")));
}

TraceInputOptions input_options(const Experiment& e, Tokens page_tokens) {
  TraceInputOptions options;
  options.page_tokens = page_tokens;
  try {  // for example more digits than it keeps
    options.time_scale = time_scale_of(e.number("workload.time_scale"));
  } catch (const TraceError& error) {
    throw InputError(e.where("workload.time_scale") + ": " + error.what());
  }
  options.limit = static_cast<std::uint64_t>(e.integer("workload.limit"));
  options.salt = page_salt(e);
  return options;
}

WorkloadInputs::WorkloadInputs(const Experiment& e, Tokens page_tokens, TraceSource& workload,
                               const ServingTimes& serving) {
  const auto set = [&](std::unique_ptr<AnsweredSource> source) {
    source->add_front_end([serving](Tokens prompt) { return front_end_ns(serving, prompt); });
    answered_ = source.get();
    source_ = std::move(source);
  };
  ClientsConfig clients;
  clients.stages = client_stages(e);
  if (!clients.stages.empty()) {
    clients.seed = static_cast<std::uint64_t>(e.integer("seed"));
    clients.start_spread_ns = nanoseconds(e, "workload.generate.start_spread_s");
    clients.think_ns = nanoseconds(e, "workload.generate.think_s");
    set(std::make_unique<ClientSource>(workload, input_options(e, page_tokens), std::move(clients)));
  } else if (e.text("workload.loop") == "closed") {
    set(std::make_unique<ClosedLoopSource>(workload, input_options(e, page_tokens),
                                           nanoseconds(e, "workload.service_s")));
  } else {
    source_ = std::make_unique<TraceInputSource>(workload, input_options(e, page_tokens));
  }
}

Observer* WorkloadInputs::observer(Observer* observer) {
  if (answered_ == nullptr) return observer;
  answered_->pass_events_to(observer);
  return answered_;
}

}  // namespace kvtwin
