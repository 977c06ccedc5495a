// kvtwin hitrate: sequential replay of a trace, policies beside the bounds.
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/trace_options.hpp"
#include "lab/error.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/names.hpp"
#include "models/roofline.hpp"
#include "sim/bounds/hitrate.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 40;  // what is beyond was a negative number
constexpr double kHostLoad = 0.1;                        // first tokens; llama-3.1-8b's on an H100 take 0.07

struct HitRateCommand {
  std::string trace, capacity, eviction = "lru", model, hardware = "h100-pcie5";
  std::uint64_t block_tokens = 0, host_capacity = 0, limit = 0, queue_view = 0;
  unsigned end_hints = 0;
  double host_load = kHostLoad;
  TraceArguments how;
  bool exclusive = false, json = false;
};

std::vector<std::string> split_list(const std::string& text, const char* option) {
  std::vector<std::string> items;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    if (item.empty())
      throw InputError(std::string(option) + " " + text + ": an item is empty; separate items by one comma");
    items.push_back(item);
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

HitRateConfig make_config(const HitRateCommand& arguments, Tokens block_tokens) {
  HitRateConfig config;
  config.evictions = split_list(arguments.eviction, "--eviction");
  std::vector<std::string> known;
  for (const std::string_view name : hit_rate_evictions()) known.emplace_back(name);
  for (const std::string& name : config.evictions) {
    if (std::ranges::find(known, name) == known.end())
      throw InputError("--eviction: " + unknown_name("eviction", name, known));
  }
  for (const std::string& item : split_list(arguments.capacity, "--capacity")) {
    config.capacities.push_back(parse_capacity(item));
  }
  config.host_capacity = arguments.host_capacity;
  config.exclusive = arguments.exclusive;
  config.queue_view = arguments.queue_view;
  config.end_hints = arguments.end_hints;
  if (config.exclusive && config.host_capacity == 0) {
    throw InputError("--exclusive: needs a host tier; give --host-capacity N");
  }
  config.block_tokens = block_tokens;
  return config;
}

// A token's KV over the link at its full rate.
std::uint64_t host_load_ps(const ModelGeometry& model, const RooflineCost& cost) {
  const std::uint64_t rate = cost.coefficients().host_to_device.link_rate;
  return rate == 0 ? 0 : static_cast<std::uint64_t>(Wide128{model.kv_bytes_per_token} * 1'000'000'000'000 / rate);
}

// A ratio of nothing is no ratio.
nlohmann::ordered_json ratio_json(double ratio, std::uint64_t of) {
  return of == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(ratio);
}

std::string ratio_text(double ratio, bool known) {
  char text[32] = "-";
  if (known) std::snprintf(text, sizeof text, "%.4f", ratio);
  return text;
}

void print_json(const HitRate& r) {
  nlohmann::ordered_json line = {{"eviction", r.eviction},
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
  std::printf("%s\n", line.dump().c_str());
}

void print_table(const std::vector<HitRate>& results) {
  std::printf("%-13s %12s %12s %12s %12s %9s %9s %9s %9s\n", "eviction", "capacity", "host", "look-ups", "hits",
              "blocks", "tokens", "cost", "net");
  for (const HitRate& r : results) {
    const bool costs = r.total_cost > 0;
    std::printf("%-13s %12llu %12llu %12llu %12llu %9s %9s %9s %9s\n", r.eviction.c_str(),
                static_cast<unsigned long long>(r.capacity_blocks),
                static_cast<unsigned long long>(r.host_capacity_blocks),
                static_cast<unsigned long long>(r.lookup_blocks), static_cast<unsigned long long>(r.hit_blocks),
                ratio_text(r.block_hit_ratio, r.lookup_blocks != 0).c_str(),
                ratio_text(r.token_hit_ratio, r.lookup_tokens != 0).c_str(),
                ratio_text(r.saved_cost / r.total_cost, costs).c_str(),
                ratio_text(r.net_saved_cost / r.total_cost, costs).c_str());
  }
}

void hit_rates(const HitRateCommand& arguments) {
  TraceReader reader(arguments.trace, arguments.how.chosen());
  const Tokens block_tokens = arguments.block_tokens == 0 ? reader.block_tokens() : arguments.block_tokens;
  HitRateConfig config = make_config(arguments, block_tokens);
  std::unique_ptr<RooflineCost> cost;
  if (!(arguments.host_load >= 0))
    throw InputError("--host-load: must be a number from 0 to 1000");  // nan passed so far
  config.host_load_milli = static_cast<std::uint64_t>(arguments.host_load * 53'000'000 + 0.5);
  if (!arguments.model.empty()) {
    const ModelGeometry model = model_preset(arguments.model);
    cost = std::make_unique<RooflineCost>(model, hardware_preset(arguments.hardware), 1);
    config.cost = cost.get();
    config.host_load_milli = host_load_ps(model, *cost);
  }
  TraceInputOptions input;
  input.page_tokens = block_tokens;
  input.limit = arguments.limit;
  input.last_page = LastPage::partial;
  TraceInputSource source(reader, input);
  std::vector<HitRate> results;
  try {
    results = replay_hit_rates(source, config);
  } catch (const HitRateError& error) {
    throw InputError(error.what());
  }
  for (const std::string& note : reader.notes()) std::fprintf(stderr, "kvtwin: note: %s\n", note.c_str());
  if (!arguments.json) return print_table(results);
  for (const HitRate& result : results) print_json(result);
}

}  // namespace

void add_hitrate(CLI::App& program) {
  static HitRateCommand arguments;
  CLI::App* command =
      program.add_subcommand("hitrate", "Hit ratios by sequential replay, in which service takes no time");
  command->footer(
      "Example: kvtwin hitrate --trace traces/chat_small.jsonl.zst --capacity 1000,10000 --eviction lru,opt");
  command->add_option("--trace", arguments.trace, "Trace file (any format below; plain, gzip or zstd)")->required();
  command->add_option("--capacity", arguments.capacity, "Blocks of the device tier: N[,N...]")->required();
  command->add_option("--eviction", arguments.eviction, "Policies and bounds: P[,P...]")->capture_default_str();
  command
      ->add_option("--queue-view", arguments.queue_view,
                   "Requests that wait behind the one served; for policies that look ahead: queue, tide")
      ->check(CLI::Range(std::uint64_t{0}, kMost));
  command
      ->add_option("--end-hints", arguments.end_hints,
                   "After each request say whether its conversation has ended, right in so many of 100 cases (0: "
                   "don't); for tide")
      ->check(CLI::Range(0U, 100U));
  command->add_option("--block-tokens", arguments.block_tokens, "Tokens of a block (default: the trace's own)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 31));
  add_trace_options(*command, arguments.how, "--trace-block-tokens");
  command->add_option("--host-capacity", arguments.host_capacity, "Blocks of the host tier; 0 = none")
      ->check(CLI::Range(std::uint64_t{0}, kMost));
  command->add_flag("--exclusive", arguments.exclusive, "The host holds only what the device evicted");
  command->add_option("--limit", arguments.limit, "Requests to replay; 0 = all")
      ->check(CLI::Range(std::uint64_t{0}, kMost));
  CLI::Option* model = command->add_option("--model", arguments.model,
                                           "Weigh hits by this model's prefill time instead of 1 + depth/53,000");
  command->add_option("--hardware", arguments.hardware, "... on this machine")->capture_default_str();
  command
      ->add_option("--host-load", arguments.host_load,
                   "What it costs to load a token from the host, in first tokens computed; with --model its KV's bytes "
                   "over the machine's link")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str()
      ->excludes(model);
  command->add_flag("--json", arguments.json, "One JSON object a line");
  command->callback([] { hit_rates(arguments); });
}

}  // namespace kvtwin
