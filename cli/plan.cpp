// kvtwin plan: finds the cheapest hardware and settings that meet goals.
#include "lab/plan/plan.hpp"

#include <csignal>
#include <cstdio>
#include <string>

#include "cli/commands.hpp"
#include "cli/engine_options.hpp"
#include "cli/package_python.hpp"
#include "cli/say.hpp"
#include "cli/session_options.hpp"
#include "cli/terminal.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

// Options that are short for a key.
struct Short {
  const char* option;
  const char* key;
  const char* help;
};
constexpr Short kShorts[] = {
    {"--model", "model.name", "Model preset; short for --set model.name=..."},
    {"--hardware", "hardware.name", "Hardware preset; short for --set hardware.name=..."},
    {"--trace", "workload.trace", "Trace to serve; short for --set workload.trace=..."},
};

// Ctrl-C ends the search, and the best setting so far is printed. A second one ends the program.
volatile std::sig_atomic_t interrupted = 0;
void catch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

struct PlanCommand : PlanArguments {
  std::string shorts[std::size(kShorts)];
  WorkloadWords words;
};

// Makes report.html in the folder, where the Python of the figures is installed.
void write_page(const std::string& folder, Terminal& terminal) {
  try {
    run_package_module("plan", "report_page", {folder + "/report.html", folder});
  } catch (const InputError& error) {
    terminal.note(std::string("report.html is left out: ") + error.what());
  } catch (const AlreadySaid&) {  // a package is absent, and a sentence has its name
    terminal.note("report.html is left out");
  }
}

void plan_command(const CLI::App& command, PlanCommand& arguments) {
  WordSettings words = settings_of_words(command, arguments.words);
  std::vector<std::string>& sets = words.settings;
  for (std::size_t i = 0; i < std::size(kShorts); ++i) {
    if (command.count(kShorts[i].option) == 0) continue;
    sets.push_back(std::string(kShorts[i].key) + "=" + arguments.shorts[i]);
  }
  arguments.sets.insert(arguments.sets.begin(), sets.begin(), sets.end());
  Terminal terminal;
  for (const std::string& note : words.notes) terminal.note(note);
  Listener listener = terminal.listener();
  listener.stopped = [] { return interrupted != 0; };
  catch_interrupt();
  const PlanOutcome outcome = make_plan(arguments, listener);
  terminal.erase();
  if (!outcome.folder.empty()) std::fprintf(stderr, "plan folder: %s\n", outcome.folder.c_str());
  print(outcome.text);
  if (!outcome.folder.empty()) write_page(outcome.folder, terminal);
  if (outcome.stopped) throw AlreadySaid(128 + SIGINT);
  if (!outcome.found) throw AlreadySaid(3);
}

}  // namespace

void add_plan(CLI::App& program, const std::string& command_line) {
  static PlanCommand arguments;
  arguments.command = command_line;
  CLI::App* command = program.add_subcommand(
      "plan",
      "Find the cheapest hardware and settings that meet goals, with their price, what binds, and what more of each "
      "part would bring");
  command->footer(
      "Example: kvtwin plan --model llama-3.1-8b --requests-per-second 2 --prompt-tokens 4000 --output-tokens 300 "
      "--turns 5 --think 60s --prefix-tokens 800 --goal ttft_p90_s=1 --out out/plan\n"
      "         kvtwin plan --model qwen3-32b --users 50 --turns 30-60 --think 20s --context-max 60k --prefix-tokens "
      "4k "
      "--goal ttft_p90_s=2s --goal tpot_p90_s=40ms\n"
      "         kvtwin plan experiments/chat_hour.toml --goal ttft_p90_s=1 --goal tpot_p90_s=0.05 --vary "
      "parallel.tp=1,2,4 --vary cluster.engines=1..16 --vary tiers.host.gib=0,256,512 --vary drives=0,4\n"
      "         kvtwin plan out/plan --what-if tiers.host.gib=512\n"
      "Folder:  plan.json, recommended.toml (the experiment), recommended (its run folder), report.html (the page, if "
      "Python's packages are installed)\n"
      "Exit:    0 a setting meets the goals; 2 bad input; 3 no setting meets the goals; 130 interrupted: the best so "
      "far is printed");
  command->add_option("experiment", arguments.experiment,
                      "Experiment file (TOML) with the workload; optional. With --what-if the folder of a plan");
  for (std::size_t i = 0; i < std::size(kShorts); ++i) {
    command->add_option(kShorts[i].option, arguments.shorts[i], kShorts[i].help);
  }
  add_workload_words(*command, arguments.words, false);  // the rate scales a trace too
  command
      ->add_option("--requests-per-second", arguments.rate,
                   "Rate of the requests; scales the times of a trace (default: as the trace or the keys say)")
      ->check(CLI::Range(1e-6, 1e6));
  command
      ->add_option(
          "--goal", arguments.goals,
          "FIGURE=VALUE, e.g. ttft_p90_s=2; may be repeated. kvtwin presets lists the figures. Without a goal: "
          "good_share=0.9, if a limit of slo.* is set")
      ->allow_extra_args(false);
  command
      ->add_option("--probability", arguments.probability,
                   "Each goal on a time must hold with this probability, by the errors of measured runs, e.g. 0.8 "
                   "(default: as simulated; the probability is printed)")
      ->check(CLI::Range(0.5, 0.95));
  command
      ->add_option(
          "--vary", arguments.lists,
          "key=a,b,c: choose among these values. cluster.engines=1..64: a range. drives=0,2,4: drives of an engine, "
          "with a disk tier. prefill_share=0,0.25,0.5: share of the engines that only prefill, while the other engines "
          "decode (0: no roles). By default hardware.name, model.weights, parallel.tp, tiers.host.gib, drives, "
          "cluster.route and the number of engines vary, unless --vary names or the experiment sets them")
      ->allow_extra_args(false);
  command->add_option("--prices", arguments.prices, "Price list (TOML), over the built-in list; sets prices.file");
  command->add_option("--set", arguments.sets, "key=value: set a key; may be repeated")->allow_extra_args(false);
  add_engine_options(*command, arguments.server);
  command
      ->add_option("--seeds", arguments.seeds,
                   "Seeds with which a recommendation must meet the goals, if the workload is generated")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command
      ->add_option(
          "--draws", arguments.draws,
          "Machines to simulate in addition, with each hardware figure drawn from its interval (from 10 % if it has "
          "none); also prints the figures that matter most")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_option("--jobs", arguments.jobs, "Number of simulations at the same time (default: one per core)")
      ->check(CLI::Range(1, 64));
  command
      ->add_option(
          "--what-if", arguments.what_if,
          "key=value: with the folder of a finished plan instead of an experiment, simulates its recommendation "
          "with this change, and compares both; may be repeated, for several changes at once")
      ->allow_extra_args(false);
  command->add_flag(
      "--no-questions{false}", arguments.questions,
      "Leave out the questions that follow: highest load, a spare engine, twice and four times the traffic, "
      "no tiers, a pool, other GPUs");
  command->add_option("--out", arguments.out,
                      "Folder to write (default: none). A plan that was interrupted goes on in its folder");
  command->add_flag("--force", arguments.force, "Replace the plan in --out");
  command->add_flag("--json", arguments.json, "Print plan.json");
  command->callback([command] { plan_command(*command, arguments); });
}

}  // namespace kvtwin
