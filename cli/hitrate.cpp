// kvtwin hitrate: replays a trace without timing, with eviction policies and the bounds of any policy.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "cli/commands.hpp"
#include "cli/one_of.hpp"
#include "cli/session_options.hpp"
#include "cli/terminal.hpp"
#include "cli/trace_options.hpp"
#include "impl/runtime/policy_library.hpp"
#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/units.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "models/roofline.hpp"
#include "policy/base/names.hpp"
#include "policy/choices.hpp"
#include "policy/config.hpp"
#include "policy/write.hpp"
#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"
#include "traces/session_hits.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 40;  // CLI11 turns a negative number into a larger one
constexpr double kHostLoadCost = 0.1;  // in first tokens computed; llama-3.1-8b on an H100 has 0.07

struct HitRateCommand {
  std::string trace, capacity, eviction = "lru", write_policy, engine, model, hardware = "h100-sxm";
  std::uint64_t block_tokens = 0, host_capacity = 0, limit = 0, warm_up = 0, queue_view = 0;
  SessionsConfig sessions;
  unsigned end_hints = 0;
  std::string evict_unit = "page", hints = "policy";
  std::optional<std::uint64_t> slru_protected_touches, tlru_threshold, tlru_next_prompt;
  double host_load = kHostLoadCost;
  TraceArguments how;
  bool exclusive = false, split_refreshes = false, sglang_rules = false, json = false, session_radix = false;
};

std::vector<std::string> items_of(const std::string& text, const char* option) {
  std::vector<std::string> items;
  for (const std::string_view item : split_list(text)) {
    if (item.empty())
      throw InputError(std::string(option) + " " + text + ": an item is empty; separate items by one comma");
    items.emplace_back(item);
  }
  if (items.empty()) throw InputError(std::string(option) + " is empty; give at least one");
  return items;
}

Pages parse_capacity(const std::string& text) {
  Pages value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0) {
    throw InputError("--capacity " + text + ": must be a whole number of blocks, at least 1");
  }
  return value;
}

void set_session_rules(Experiment& experiment, const HitRateCommand& arguments) {
  experiment.set("cache.hints=" + arguments.hints, "--hints");
  if (arguments.session_radix) experiment.set("cache.session_radix=true", "--session-radix");
}

// Returns the engine that `simulate` runs for --engine, for a capacity in blocks or with a unit of size. Adds to
// `notes` what is not there yet.
EngineConfig make_served_engine(const HitRateCommand& arguments, const std::string& capacity,
                                std::vector<std::string>& notes) {
  Experiment experiment = Experiment::from_text("engine = \"" + arguments.engine + "\"", "hitrate");
  const auto set = [&](const char* key, const std::string& value, const char* origin) {
    experiment.set(std::string(key) + "=" + value, origin);
  };
  set("model.name", arguments.model, "--model");
  set("hardware.name", arguments.hardware, "--hardware");
  set("hardware.operators", "none", "hitrate");
  const Tokens page = arguments.block_tokens != 0 ? arguments.block_tokens : arguments.engine == "vllm" ? 16 : 64;
  set("cache.page_tokens", std::to_string(page), "--block-tokens");
  if (has_unit(capacity)) {
    set("tiers.device.gib", capacity, "--capacity");
  } else {
    set("tiers.device.tokens", std::to_string(parse_capacity(capacity) * page), "--capacity");
  }
  set("tiers.host.tokens", std::to_string(arguments.host_capacity * page), "--host-capacity");
  if (!arguments.write_policy.empty()) set("cache.write_policy", arguments.write_policy, "--write-policy");
  set_session_rules(experiment, arguments);
  const Setup setup = make_setup(experiment);
  for (const std::string& note : setup.notes) {
    if (std::ranges::find(notes, note) == notes.end()) notes.push_back(note);
  }
  return setup.engine;
}

// Returns the engine that `simulate` runs with these options, and with passes that take a whole prompt.
EngineConfig make_engine(const HitRateCommand& arguments, Tokens block_tokens, Pages capacity) {
  constexpr Pages kMaxPages = 4'000'000'000;
  for (const auto& [option, pages] :
       {std::pair{"--capacity ", capacity}, {"--host-capacity ", arguments.host_capacity}}) {
    if (pages > kMaxPages) {
      throw InputError(option + std::to_string(pages) + ": with --write-policy a tier has at most 4 billion blocks");
    }
  }
  Experiment experiment = Experiment::from_text("engine = \"none\"", "hitrate");
  const auto set = [&](const char* key, const std::string& value, const std::string& origin) {
    experiment.set(std::string(key) + "=" + value, origin);
  };
  const auto set_number = [&](const char* key, std::uint64_t value, const std::string& origin) {
    set(key, std::to_string(value), origin);
  };
  if (!arguments.model.empty()) {
    set("model.name", arguments.model, "--model");
    set("hardware.name", arguments.hardware, "--hardware");
  }
  set_number("cache.page_tokens", block_tokens, "--block-tokens");
  set_number("tiers.device.tokens", capacity * block_tokens, "--capacity");
  set_number("tiers.host.tokens", arguments.host_capacity * block_tokens, "--host-capacity");
  set("cache.write_policy", arguments.write_policy, "--write-policy");
  set("cache.evict_unit", arguments.evict_unit, "--evict-unit");
  if (arguments.split_refreshes) set("cache.rules.split_refreshes", "true", "--split-refreshes");
  if (arguments.exclusive) set("cache.tiering", "exclusive", "--exclusive");
  set("scheduler.chunk_tokens", "1000000000", "hitrate");
  if (arguments.sglang_rules) apply_sglang_cache_rules(experiment, "--sglang-rules");
  set_session_rules(experiment, arguments);
  return make_setup(experiment).engine;
}

// Adds the parameters of --slru-protected-touches, --tlru-threshold and --tlru-next-prompt. Errors: InputError if the
// text has parameters too.
std::string with_earlier_options(const std::string& eviction, const HitRateCommand& arguments) {
  const PolicyText parts = policy_text(eviction);
  std::string list;
  for (const auto& [policy, parameter, option, value] :
       {std::tuple{"slru", "protected", "--slru-protected-touches", arguments.slru_protected_touches},
        std::tuple{"tlru", "threshold", "--tlru-threshold", arguments.tlru_threshold},
        std::tuple{"tlru", "next_prompt", "--tlru-next-prompt", arguments.tlru_next_prompt}}) {
    if (!value || parts.name != policy) continue;
    if (!parts.parameters.empty()) {
      throw InputError(std::string(option) + ": --eviction " + eviction + " has parameters; give " + parameter +
                       " there");
    }
    list += (list.empty() ? "" : ", ") + (std::string(parameter) + "=" + std::to_string(*value));
  }
  return list.empty() ? eviction : std::string(parts.name) + "(" + list + ")";
}

// Returns the policy or the bound, with the parameters that are given. Errors: InputError.
std::string checked_eviction(const std::string& text) {
  const std::string name(policy_text(text).name);
  if (std::ranges::find(hit_rate_bounds(), text) != hit_rate_bounds().end()) return text;
  install_policy_loader();
  std::vector<std::string> known;
  for (const std::string_view one : hit_rate_evictions()) known.emplace_back(one);
  if (std::ranges::find(known, name) == known.end() && !is_policy_name(PolicyKind::eviction, name)) {
    throw InputError("--eviction: " + unknown_name("eviction", name, known));
  }
  if (std::ranges::find(hit_rate_bounds(), name) != hit_rate_bounds().end()) {
    throw InputError("--eviction " + text + ": a bound has no parameters; write " + name);
  }
  const PolicyFacts facts = facts_of_policy(PolicyKind::eviction, text);
  if (!facts.error.empty()) throw InputError("--eviction " + text + ": " + facts.error);
  return facts.text(ParameterTexts::given);
}

void check_served_engine(const HitRateCommand& arguments, const HitRateConfig& config) {
  const std::string engine = "--engine " + arguments.engine;
  for (const auto& [given, option] : {std::pair{arguments.exclusive, "--exclusive"},
                                      {arguments.split_refreshes, "--split-refreshes"},
                                      {arguments.sglang_rules, "--sglang-rules"},
                                      {arguments.queue_view > 0, "--queue-view"},
                                      {arguments.evict_unit != "page", "--evict-unit"}}) {
    if (given) throw InputError(std::string(option) + ": " + engine + " has rules of its own; leave it out");
  }
  for (const std::string& name : config.evictions) {
    if (std::ranges::find(hit_rate_bounds(), name) != hit_rate_bounds().end()) {
      throw InputError("--eviction " + name + ": is a bound, and knows one kind of KV; leave out --engine");
    }
    if (!config.engines.front().block_groups.groups.empty() && name != "lru") {
      throw InputError("--eviction " + name + ": vLLM's groups of blocks have one queue; leave it out");
    }
  }
}

HitRateConfig make_config(const HitRateCommand& arguments, Tokens block_tokens) {
  HitRateConfig config;
  for (const std::string& item : items_of(arguments.eviction, "--eviction")) {
    config.evictions.push_back(checked_eviction(with_earlier_options(item, arguments)));
  }
  std::vector<std::string> notes;
  for (const std::string& item : items_of(arguments.capacity, "--capacity")) {
    if (arguments.engine.empty()) {
      config.capacities.push_back(parse_capacity(item));
      continue;
    }
    config.engines.push_back(make_served_engine(arguments, item, notes));
    config.capacities.push_back(config.engines.back().device_pages);
    block_tokens = config.engines.back().shape.page_tokens;
  }
  for (const std::string& note : notes) std::fprintf(stderr, "kvtwin: note: %s\n", note.c_str());
  config.host_capacity = arguments.host_capacity;
  config.exclusive = arguments.exclusive && arguments.write_policy.empty();
  config.queue_view = arguments.queue_view;
  config.warm_up = arguments.warm_up;
  config.end_hints = arguments.end_hints;
  config.hints = arguments.hints == name_of(HintRule::obey)     ? HintRule::obey
                 : arguments.hints == name_of(HintRule::ignore) ? HintRule::ignore
                                                                : HintRule::policy;
  config.session_radix = arguments.session_radix;
  if (arguments.sglang_rules && arguments.write_policy.empty()) {
    throw InputError("--sglang-rules: needs --write-policy; without one, give --evict-unit node --split-refreshes");
  }
  if (!arguments.engine.empty()) {
    check_served_engine(arguments, config);
  } else if (!arguments.write_policy.empty()) {
    if (config.host_capacity == 0) throw InputError("--write-policy: needs a host tier; give --host-capacity N");
    if (config.queue_view > 0) {
      throw InputError("--queue-view: with --write-policy a request ends before the next one arrives; leave out one");
    }
    for (const std::string& name : config.evictions) {
      if (std::ranges::find(hit_rate_bounds(), name) == hit_rate_bounds().end()) continue;
      throw InputError("--eviction " + name + ": is a bound, and has no write policy; leave out --write-policy");
    }
    for (const Pages capacity : config.capacities) {
      config.engines.push_back(make_engine(arguments, block_tokens, capacity));
    }
  }
  if (config.exclusive && config.host_capacity == 0) {
    throw InputError("--exclusive: needs a host tier; give --host-capacity N");
  }
  config.whole_nodes = arguments.evict_unit == name_of(EvictUnit::node);
  if (config.exclusive && config.whole_nodes) {
    throw InputError("--evict-unit node: exclusive tiers evict single blocks; leave out --exclusive");
  }
  config.split_refreshes = arguments.split_refreshes;
  config.block_tokens = block_tokens;
  return config;
}

// Returns the time of one token's KV on the host link at the full rate, in ps; 0 if the link has no rate.
std::uint64_t host_load_ps(const ModelGeometry& model, const RooflineCost& cost) {
  const std::uint64_t rate = cost.coefficients().moves.host_to_device.link_rate;
  return rate == 0 ? 0 : static_cast<std::uint64_t>(Wide128{model.kv_bytes_per_token} * 1'000'000'000'000 / rate);
}

// Returns null for a ratio whose divisor is 0.
Json ratio_json(double ratio, std::uint64_t divisor) { return divisor == 0 ? Json() : Json(ratio); }

std::string ratio_text(double ratio, bool known) {
  char text[32] = "-";
  if (known) std::snprintf(text, sizeof text, "%.4f", ratio);
  return text;
}

// `write_policy`, `engine`: empty without one.
void print_json(const HitRate& r, const std::string& write_policy, const std::string& engine) {
  Json line = {{"eviction", r.eviction},
               {"capacity_blocks", r.capacity_blocks},
               {"host_capacity_blocks", r.host_capacity_blocks},
               {"requests", r.requests},
               {"lookup_blocks", r.lookup_blocks},
               {"hit_blocks", r.hit_blocks},
               {"device_hit_blocks", r.device_hit_blocks},
               {"host_hit_blocks", r.host_hit_blocks},
               {"block_hit_ratio", ratio_json(r.block_hit_ratio, r.lookup_blocks)},
               {"lookup_tokens", r.lookup_tokens},
               {"hit_tokens", r.hit_tokens},
               {"token_hit_ratio", ratio_json(r.token_hit_ratio, r.lookup_tokens)},
               {"saved_cost", r.saved_cost},
               {"total_cost", r.total_cost},
               {"net_saved_cost", r.net_saved_cost}};
  if (r.hints > 0) {
    line["hints"] = r.hints;
    line["idle_hints"] = r.idle_hints;
  }
  if (!engine.empty()) {
    line["engine"] = engine;
    line["unusable_tokens"] = r.unusable_tokens;
    line["without_window_tokens"] = r.without_window_tokens;
    line["without_state_tokens"] = r.without_state_tokens;
    line["rejected"] = r.rejected;
  }
  if (!write_policy.empty()) {
    line["write_policy"] = write_policy;
    line["rejected"] = r.rejected;
  }
  std::printf("%s\n", line.dump().c_str());
}

// `tiers`: with the hit ratio of each tier. `unusable`: with the share of the tokens that were in memory and not
// usable.
void print_table(const std::vector<HitRate>& results, bool tiers, bool unusable) {
  std::size_t longest = 13;
  for (const HitRate& r : results) longest = std::max(longest, r.eviction.size());
  const int width = static_cast<int>(longest);
  std::printf("%-*s %12s %12s %12s %12s %9s %9s %9s %9s%s%s\n", width, "eviction", "capacity", "host", "look-ups",
              "hits", "blocks", "tokens", "cost", "net", tiers ? " on device   on host" : "",
              unusable ? "  unusable" : "");
  for (const HitRate& r : results) {
    const bool costs = r.total_cost > 0;
    std::printf("%-*s %12llu %12llu %12llu %12llu %9s %9s %9s %9s", width, r.eviction.c_str(),
                static_cast<unsigned long long>(r.capacity_blocks),
                static_cast<unsigned long long>(r.host_capacity_blocks),
                static_cast<unsigned long long>(r.lookup_blocks), static_cast<unsigned long long>(r.hit_blocks),
                ratio_text(r.block_hit_ratio, r.lookup_blocks != 0).c_str(),
                ratio_text(r.token_hit_ratio, r.lookup_tokens != 0).c_str(),
                ratio_text(r.saved_cost / r.total_cost, costs).c_str(),
                ratio_text(r.net_saved_cost / r.total_cost, costs).c_str());
    if (tiers) {
      const auto lookups = static_cast<double>(r.lookup_blocks);
      std::printf(" %9s %9s", ratio_text(static_cast<double>(r.device_hit_blocks) / lookups, lookups > 0).c_str(),
                  ratio_text(static_cast<double>(r.host_hit_blocks) / lookups, lookups > 0).c_str());
    }
    if (unusable) {
      const auto tokens = static_cast<double>(r.lookup_tokens);
      std::printf(" %9s", ratio_text(static_cast<double>(r.unusable_tokens) / tokens, r.lookup_tokens != 0).c_str());
    }
    std::printf("\n");
  }
}

// Prints the estimates of LRU for the capacities of `config`, and for a cache that holds everything.
void print_estimates(const HitRateConfig& config, const SessionsConfig& sessions, bool json) {
  std::vector<double> capacities;
  for (const Pages device : config.capacities) {
    const Pages most = std::max(device, config.host_capacity);
    capacities.push_back(static_cast<double>(config.exclusive ? device + config.host_capacity : most));
  }
  capacities.push_back(std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    const bool all = i == config.capacities.size();
    const SessionHits hits = estimate_session_hits(sessions, capacities[i] * static_cast<double>(config.block_tokens),
                                                   config.block_tokens, false);
    if (json) {
      Json line = {{"eviction", "estimate"}, {"capacity_blocks", nullptr}};
      if (!all) line["capacity_blocks"] = config.capacities[i];
      line["host_capacity_blocks"] = config.host_capacity;
      line["token_hit_ratio"] = hits.hit_ratio;
      line["residence_s"] = std::isfinite(hits.residence_s) ? Json(hits.residence_s) : nullptr;
      std::printf("%s\n", line.dump().c_str());
    } else {
      const std::string capacity = all ? "infinite" : std::to_string(config.capacities[i]);
      std::printf("%-13s %12s %12llu %12s %12s %9s %9.4f %9s %9s\n", "estimate", capacity.c_str(),
                  static_cast<unsigned long long>(config.host_capacity), "-", "-", "-", hits.hit_ratio, "-", "-");
    }
  }
}

// Passes the inputs on, and tells how many requests have been read: at the first one, then at most five times per
// second.
class WatchedInputs final : public InputSource {
 public:
  // `limit`: number of requests; 0 = all of the trace.
  WatchedInputs(InputSource& source, const TraceSource& trace, std::uint64_t limit, const Listener& listener)
      : source_(source), trace_(trace), limit_(limit), listener_(listener) {}

  bool next(Input& input) override {
    if (!source_.next(input)) return false;
    requests_ += std::holds_alternative<Arrival>(input.what) ? 1 : 0;
    const Clock::time_point now = Clock::now();
    if (listener_.requests && now - last_ >= kBetween) {
      last_ = now;
      double read = trace_.fraction_read();
      if (limit_ != 0) read = std::max(read, static_cast<double>(requests_) / static_cast<double>(limit_));
      listener_.requests({requests_, input.now, read, std::chrono::duration<double>(now - start_).count()});
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBetween{200};
  InputSource& source_;
  const TraceSource& trace_;
  const std::uint64_t limit_;
  const Listener& listener_;
  std::uint64_t requests_ = 0;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_ - kBetween;  // so the first request shows
};

// Replays the requests of `trace`.
std::vector<HitRate> replay(TraceSource& trace, const HitRateCommand& arguments, HitRateConfig config) {
  std::unique_ptr<RooflineCost> cost;
  if (!(arguments.host_load >= 0))
    throw InputError("--host-load: must be a number from 0 to 1000");  // CLI11's range check accepts nan
  config.host_load_milli = static_cast<std::uint64_t>(arguments.host_load * 53'000'000 + 0.5);
  if (!arguments.model.empty()) {
    const ModelGeometry model = model_preset(arguments.model);
    cost = std::make_unique<RooflineCost>(model, hardware_preset(arguments.hardware), 1);
    config.cost = cost.get();
    config.host_load_milli = host_load_ps(model, *cost);
  }
  TraceInputOptions input;
  input.page_tokens = config.block_tokens;
  input.limit = arguments.limit;
  input.last_page = config.engines.empty() ? LastPage::partial : LastPage::full_only;
  TraceInputSource source(trace, input);
  Terminal terminal;
  const Listener listener = terminal.listener();
  WatchedInputs watched(source, trace, arguments.limit, listener);
  try {
    return replay_hit_rates(watched, config);
  } catch (const HitRateError& error) {
    throw InputError(error.what());
  }
}

void note_idle_hints(const std::vector<HitRate>& results) {
  for (const HitRate& result : results) {  // the same for each capacity
    if (result.idle_hints == 0 || &result != &*std::ranges::find(results, result.eviction, &HitRate::eviction))
      continue;
    std::fprintf(stderr,
                 "kvtwin: note: %llu of %llu hints have no effect on %s here: pin, unpin and session_end need a policy "
                 "that takes hints, or --hints obey; share needs that too; demote a host with --write-policy too; "
                 "tool_call_pending needs a policy that takes hints, also with --hints obey; prefetch needs a storage "
                 "tier\n",
                 static_cast<unsigned long long>(result.idle_hints), static_cast<unsigned long long>(result.hints),
                 result.eviction.c_str());
  }
}

void print_results(const std::vector<HitRate>& results, const HitRateCommand& arguments, std::size_t capacities) {
  for (std::size_t i = 0; i < capacities; ++i) {  // the same for each eviction policy
    if (results[i].rejected == 0) continue;
    std::fprintf(stderr, "kvtwin: note: %llu of %llu requests do not fit into %llu blocks, and are rejected\n",
                 static_cast<unsigned long long>(results[i].rejected),
                 static_cast<unsigned long long>(results[i].requests),
                 static_cast<unsigned long long>(results[i].capacity_blocks));
  }
  note_idle_hints(results);
  const bool engine = !arguments.engine.empty();
  if (!arguments.json) return print_table(results, engine || !arguments.write_policy.empty(), engine);
  for (const HitRate& result : results) print_json(result, arguments.write_policy, arguments.engine);
}

void trace_hit_rates(const HitRateCommand& arguments) {
  TraceReader reader(arguments.trace, arguments.how.chosen());
  const Tokens block_tokens = arguments.block_tokens == 0 ? reader.block_tokens() : arguments.block_tokens;
  const HitRateConfig config = make_config(arguments, block_tokens);
  const std::vector<HitRate> results = replay(reader, arguments, config);
  for (const std::string& note : reader.notes()) std::fprintf(stderr, "kvtwin: note: %s\n", note.c_str());
  print_results(results, arguments, config.capacities.size());
}

void session_hit_rates(const CLI::App& command, HitRateCommand arguments) {
  constexpr std::uint64_t kRequests = 20'000;
  require_session_options(command);
  if (arguments.limit == 0) arguments.limit = kRequests;
  if (command.count("--warm-up") == 0) arguments.warm_up = arguments.limit / 2;
  arguments.sessions.requests = arguments.limit;
  arguments.sessions.duration = 0;
  const std::unique_ptr<SessionsGenerator> traffic = make_sessions(arguments.sessions);
  const Tokens block_tokens = arguments.block_tokens == 0 ? traffic->block_tokens() : arguments.block_tokens;
  const HitRateConfig config = make_config(arguments, block_tokens);
  print_results(replay(*traffic, arguments, config), arguments, config.capacities.size());
  if (config.engines.empty()) print_estimates(config, arguments.sessions, arguments.json);
}

void hit_rates(const CLI::App& command, const HitRateCommand& arguments) {
  if (!arguments.engine.empty() && arguments.model.empty()) {
    throw InputError("--engine " + arguments.engine + ": give the model too, e.g. --model gpt-oss-120b");
  }
  if (arguments.trace.empty() && !has_session_options(command)) {
    throw InputError(
        "--trace: is not given; give a trace, or the averages of conversations: --requests-per-second, "
        "--prompt-tokens, --output-tokens, --turns, --think-s and --prefix-tokens");
  }
  if (arguments.trace.empty()) return session_hit_rates(command, arguments);
  if (has_session_options(command)) {
    throw InputError("--trace: is given together with averages of conversations; give one of them");
  }
  trace_hit_rates(arguments);
}

}  // namespace

void add_hitrate(CLI::App& program) {
  static HitRateCommand arguments;
  const auto one_of = [](std::span<const std::string_view> names) {
    return is_one_of(std::vector<std::string>(names.begin(), names.end()));
  };
  CLI::App* command = program.add_subcommand(
      "hitrate",
      "Print the hit ratios of eviction policies on a trace, without timing, next to the best possible ratio");
  command->footer(
      "Example: kvtwin hitrate --trace traces/chat_small.jsonl.zst --capacity 1000,10000 --eviction lru,opt\n"
      "         kvtwin hitrate --trace traces/chat_small.jsonl.zst --capacity 10000 --host-capacity 30000 "
      "--write-policy write_back");
  command->add_option(
      "--trace", arguments.trace,
      "Trace file, in a format of --format; plain, gzip or zstd. Without a trace: conversations from averages, with "
      "the estimated hit ratio of lru (not with --write-policy)");
  command
      ->add_option("--capacity", arguments.capacity, "Capacity of the device tier in blocks: N[,N...], e.g. 1000,10000")
      ->required();
  command
      ->add_option("--eviction", arguments.eviction,
                   "Eviction policies and bounds: P[,P...], e.g. lru,\"slru(protected=3)\",tide,opt; kvtwin presets "
                   "lists the names and the parameters; the path of a policy library, NAME.so, is a name, too")
      ->capture_default_str();
  command
      ->add_option("--queue-view", arguments.queue_view,
                   "Number of requests that wait behind the served one, for policies that read the queue: queue, tide "
                   "(default: 0)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxCount));
  command
      ->add_option("--end-hints", arguments.end_hints,
                   "After each request, give a hint whether the conversation has ended. N of 100 hints are right. Only "
                   "tide uses hints, unless --hints obey (default: 0, no hints)")
      ->check(CLI::Range(0U, 100U));
  command
      ->add_option(
          "--hints", arguments.hints,
          "What hints of the trace do, as cache.hints: policy (policies that take hints receive them: tide), obey "
          "(also, pins and shares hold blocks and ended sessions are evicted first, under every policy; with "
          "--write-policy or --engine, demote moves blocks too), or ignore")
      ->check(one_of(names_of<HintRule>()))
      ->capture_default_str();
  command->add_flag("--session-radix", arguments.session_radix,
                    "Evict blocks that no session refers to first, as cache.session_radix");
  command
      ->add_option("--block-tokens", arguments.block_tokens,
                   "Tokens per block of the cache (default: the trace's block size)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31));
  add_trace_options(*command, arguments.how, "--trace-block-tokens");
  command
      ->add_option("--host-capacity", arguments.host_capacity,
                   "Capacity of the host tier in blocks (default: 0, no host tier)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxCount));
  command->add_flag("--exclusive", arguments.exclusive,
                    "The host tier holds only blocks that the device evicted; with --write-policy write_back: blocks "
                    "that are loaded back leave the host");
  command
      ->add_option(
          "--write-policy", arguments.write_policy,
          "Replay the whole cache with this cache.write_policy, as simulate does with requests far apart. Only full "
          "blocks are cached, and answers are cached too (default: no write policy; each tier is a separate cache)")
      ->check(one_of(write_policy_names()));
  command
      ->add_option("--engine", arguments.engine,
                   "With --model: replay the whole cache under the rules of this engine as simulate does, requests far "
                   "apart, with windows and states too; --capacity may have a unit, e.g. 40GiB")
      ->check(one_of(std::array<std::string_view, 2>{"sglang", "vllm"}));
  command->add_flag(
      "--sglang-rules", arguments.sglang_rules,
      "With --write-policy: the rules of SGLang's cache, as of --from-sglang-flags; includes --evict-unit "
      "node and --split-refreshes");
  command
      ->add_option("--evict-unit", arguments.evict_unit,
                   "page: evict just enough blocks, from the tail of a leaf; node: evict whole leaves, as SGLang does "
                   "(bounds evict single blocks)")
      ->check(one_of(names_of<EvictUnit>()))
      ->capture_default_str();
  command->add_flag("--split-refreshes", arguments.split_refreshes,
                    "A prompt that leaves a cached node in the middle makes the rest of the node recently used, as in "
                    "SGLang");
  // Of earlier versions; not listed.
  command->add_option("--slru-protected-touches", arguments.slru_protected_touches, "Of --eviction slru(protected=N)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}))
      ->group("");
  command->add_option("--tlru-threshold", arguments.tlru_threshold, "Of --eviction tlru(threshold=N)")->group("");
  command->add_option("--tlru-next-prompt", arguments.tlru_next_prompt, "Of --eviction tlru(next_prompt=N)")->group("");
  command
      ->add_option("--limit", arguments.limit, "Number of requests to replay (default: 0, all; without a trace: 20000)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxCount));
  command
      ->add_option(
          "--warm-up", arguments.warm_up,
          "Number of requests at the start that are replayed and not counted (default: 0; without a trace: half "
          "of them)")
      ->check(CLI::Range(std::uint64_t{0}, kMaxCount));
  add_session_options(*command, arguments.sessions);
  command->add_option("--seed", arguments.sessions.seed, "sessions: seed of all random draws")->capture_default_str();
  CLI::Option* model =
      command->add_option("--model", arguments.model,
                          "Count a hit token with this model's prefill time (a preset), instead of 1 + depth / 53,000");
  command->add_option("--hardware", arguments.hardware, "Hardware preset for the prefill time of --model")
      ->capture_default_str();
  command
      ->add_option(
          "--host-load", arguments.host_load,
          "Cost to load one token from the host, in units of the cost to compute the first token of a prompt; with "
          "--model: the time of the token's KV bytes on the host link")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str()
      ->excludes(model);
  command->add_flag("--json", arguments.json, "Print one JSON object per line");
  command->callback([command] { hit_rates(*command, arguments); });
}

}  // namespace kvtwin
