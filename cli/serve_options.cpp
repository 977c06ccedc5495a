#include "cli/serve_options.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <variant>

#include "cli/engine_options.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/vllm/vllm_flags.hpp"

namespace kvtwin {

void add_serve_options(CLI::App& command, ServeArguments& arguments) {
  command.add_option("experiment", arguments.experiment,
                     "Experiment file (TOML); optional with the flags or the log of a server");
  command
      .add_option("--set", arguments.sets,
                  "key=value: set a key, instead of the file's value, e.g. tiers.host.gib=64; may be repeated")
      ->allow_extra_args(false);
  add_engine_options(command, arguments.server);
  CLI::Option* sglang = command.add_flag("--to-sglang-flags", arguments.to_sglang,
                                         "Print the experiment as flags of an SGLang server, and run nothing");
  command
      .add_flag("--to-vllm-flags", arguments.to_vllm,
                "Print the experiment as the command line of a vLLM server, and run nothing")
      ->excludes(sglang);
  command.add_option("--out", arguments.out, "Run folder to write, e.g. out/run (default: none)")
      ->check([](const std::string& path) { return std::string(path.empty() ? "must name a folder" : ""); });
  command.add_flag("--force", arguments.force, "Replace the run folder if it exists");
  command.add_flag("--timeline", arguments.timeline,
                   "Write timeline.json into the run folder: lanes and requests over time, for chrome://tracing or "
                   "ui.perfetto.dev");
  command.add_flag("--json", arguments.json, "Print report.json instead of the summary");
  command.add_flag("--help-keys", arguments.help_keys,
                   "List all experiment keys with range and default, and run nothing");
}

// The parameters of a kind of policies stand below one key, the last one of the kind.
bool has_parameters_below(const ExperimentKey& key) {
  const auto keys = experiment_keys();
  const auto later = std::find_if(&key + 1, keys.data() + keys.size(),
                                  [&](const ExperimentKey& other) { return other.policy == key.policy; });
  return key.policy && later == keys.data() + keys.size();
}

// `facts`: returns the parameters of a name.
template <typename Facts>
void list_parameters(std::span<const std::string_view> names, const Facts& facts) {
  for (const std::string_view name : names) {
    for (const Parameter& one : facts(name).parameters) {
      const std::string text = "  " + std::string(name) + "(" + one.name + "=...)";
      std::printf("%-40s %s [%s]; default %s\n", text.c_str(), one.help.c_str(), one.range.c_str(),
                  one.fallback.c_str());
    }
  }
}

void list_keys() {
  const auto shown = [](const KeyValue& value) -> std::string {
    if (const auto* text = std::get_if<std::string>(&value)) return *text;
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
    char number[32];
    std::snprintf(number, sizeof number, "%g", std::get<double>(value));
    return number;
  };
  const auto list = [&](const ExperimentKey& key, const char* indent) {
    std::string line(key.help);
    if (const std::string range = key.range(); !range.empty()) line += " [" + range + "]";
    if (const std::string fallback = shown(key.fallback); !fallback.empty()) line += "; default " + fallback;
    std::printf("%-40s %s\n", (indent + std::string(key.name)).c_str(), line.c_str());
  };
  for (const ExperimentKey& key : experiment_keys()) {
    list(key, "");
    for (const KeyTable& table : key_tables()) {
      if (table.name != key.name) continue;
      for (const ExperimentKey& one : table.keys) {
        if (!is_figure_of_a_file(one)) list(one, "  ");
      }
    }
    const auto of_policy = [&](std::string_view name) { return facts_of_policy(*key.policy, name); };
    if (has_parameters_below(key)) list_parameters(policy_names(*key.policy), of_policy);
    if (key.name == kFaultsKey) list_parameters(fault_names(), facts_of_fault);
  }
}

void print_flags(const ServeArguments& arguments, const Experiment& experiment) {
  const Setup setup = make_setup(experiment);
  const ServerLine line = arguments.to_vllm ? to_vllm_line(experiment, setup) : to_sglang_flags(experiment, setup);
  std::printf("%s\n", line.line.c_str());
  Terminal terminal;
  for (const std::string& note : experiment.notes()) terminal.note(note);
  for (const std::string& note : line.notes) terminal.note(note);
}

Experiment read_experiment(const ServeArguments& arguments, const char* command) {
  const EngineArguments& server = arguments.server;
  const bool of_a_server =
      !server.sglang_flags.empty() || server.sglang_server_info || server.vllm_flags || server.server_log;
  if (arguments.experiment.empty() && !of_a_server) {
    throw InputError(std::string(command) +
                     " needs an experiment file, e.g. experiments/quickstart.toml, or the flags of a server, e.g. "
                     "--from-vllm-flags");
  }
  Experiment experiment =
      arguments.experiment.empty() ? Experiment::from_text("", command) : Experiment::from_file(arguments.experiment);
  apply_engine_arguments(arguments.server, arguments.sets, experiment);
  for (const std::string& assignment : arguments.sets) experiment.set(assignment);
  return experiment;
}

Listener run_listener(Terminal& terminal, bool json) {
  Listener listener = terminal.listener();
  if (!json) listener.note = nullptr;
  return listener;
}

void print_result(const RunResult& result, bool json) {
  if (!result.folder.empty()) std::fprintf(stderr, "run folder: %s\n", result.folder.c_str());
  print(json ? result.report : result.summary);  // its warnings stand last
}

}  // namespace kvtwin
