#include "cli/program.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/say.hpp"
#include "cli/shipped_files.hpp"
#include "lab/error.hpp"
#include "lab/shell_word.hpp"
#include "lab/units.hpp"
#include "lab/version.hpp"
#include "models/names.hpp"

namespace kvtwin {

namespace {

int print_error(const Ending& ending) {
  say(ending.sentence);
  return ending.code;
}

// The words of `kvtwin help COMMAND` as `kvtwin COMMAND --help`, and of `kvtwin` alone as `kvtwin --help`.
std::vector<std::string> with_help(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return {"--help"};
  if (words.front() != "help") return words;
  words.erase(words.begin());
  words.emplace_back("--help");
  return words;
}

// Returns the command that was given, e.g. "kvtwin trace info".
std::pair<const CLI::App*, std::string> given_command(const CLI::App& program) {
  const CLI::App* command = &program;
  std::string name = "kvtwin";
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  return {command, name};
}

// Returns the sentence for an error of the arguments. A mistyped option comes before what else is missing:
// `unknown option "--polcy" of kvtwin simulate: did you mean "--policy"?`.
std::string argument_error(const CLI::App& program, const CLI::ParseError& error) {
  const auto [command, name] = given_command(program);
  const std::vector<std::string> extras = program.remaining(true);
  const auto option = std::ranges::find_if(extras, [](const std::string& word) { return word.starts_with('-'); });
  if (option == extras.end()) {
    const bool extra = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
    const std::string sentence = extra ? "\"" + extras.front() + "\" is one word too many" : error.what();
    return sentence + (sentence.ends_with('.') ? " See " : "; see ") + name + " --help";
  }
  const std::string given = option->substr(0, option->find('='));
  std::vector<std::string> names;
  for (const CLI::Option* one : command->get_options()) {
    const std::vector<std::string>& own = one->get_lnames();
    names.insert(names.end(), own.begin(), own.end());
  }
  const std::size_t first = given.find_first_not_of('-');
  const std::string nearest = first == std::string::npos ? "" : nearest_name(given.substr(first), names);
  return "unknown option \"" + given + "\" of " + name +
         (nearest.empty() ? "; see " : ": did you mean \"--" + nearest + "\"? See ") + name + " --help";
}

// Refuses an unknown command by name. CLI11 would only say that a command is missing.
void check_command(const CLI::App& program, std::string_view word) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands(nullptr)) names.push_back(command->get_name());
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return;
  throw InputError(unknown_name("command", word, names));
}

constexpr const char* kNoStdout = "stdout can't be written; is the disk full?";

// Flushes stdout. Returns false if any write has failed; an earlier failure shows only in the state of the streams.
bool stdout_works() {
  std::cout.flush();
  return std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

// Returns the words of the command, quoted for a shell where needed.
std::string command_line(int argc, char** argv) {
  std::string text = "kvtwin";
  for (int i = 1; i < argc; ++i) text += " " + shell_word(argv[i]);
  return text;
}

// CLI::Range lets NaN pass, because NaN is neither below nor above. No option means anything with NaN or infinity.
void refuse_odd_numbers(CLI::App& command) {
  const CLI::Validator finite(
      [](const std::string& text) {
        double value = 0;
        const bool odd = CLI::detail::lexical_cast(text, value) && !std::isfinite(value);
        return odd ? text + " is no finite number" : std::string();
      },
      "");
  for (CLI::Option* option : command.get_options()) {
    if (option->get_type_name().find("FLOAT") != std::string::npos) option->check(finite);
  }
  for (CLI::App* inner : command.get_subcommands(nullptr)) refuse_odd_numbers(*inner);
}

// Lets each option of a number have a unit: --duration 1h, --prompt-tokens 4k. The name of an option says its unit, as
// that of a key does (lab/units.hpp).
void read_units(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    if (!type.starts_with("UINT") && !type.starts_with("INT") && !type.starts_with("FLOAT")) continue;
    const std::string name = option->get_name();
    const bool time = name == "--duration" || name == "--session-gap";
    const Unit unit = unit_named(time ? name + "-s" : name);
    option->transform(CLI::Validator(
        [name, unit](std::string& text) {
          double number = 0;
          const bool plain = CLI::detail::lexical_cast(text, number) || !begins_as_number(text);
          if (!plain) text = plain_number(number_in(unit, text, name));
          return std::string();
        },
        ""));
  }
  for (CLI::App* inner : command.get_subcommands(nullptr)) read_units(*inner);
}

// Lets `kvtwin simulate experiments/quickstart.toml` find the file that is installed with the program.
void find_shipped_files(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (!reads_experiment_or_trace(option->get_name())) continue;
    option->transform(CLI::Validator(
        [](std::string& text) {
          text = shipped_file(text);
          return std::string();
        },
        ""));
  }
  for (CLI::App* inner : command.get_subcommands(nullptr)) find_shipped_files(*inner);
}

// CLI11 throws CLI::Success for --help and --version.
void parse(CLI::App& program, std::vector<std::string> words) {
  check_command(program, words.front());
  std::ranges::reverse(words);  // as CLI11 wants them
  try {
    program.parse(std::move(words));
  } catch (const CLI::Success& help) {
    program.exit(help);
  }
  if (!stdout_works()) throw WorkError(kNoStdout);
}

}  // namespace

int run_program(int argc, char** argv) {
  CLI::App program{
      "kvtwin: hierarchical KV caches for LLM serving, simulated or on real hardware, with one policy library.\n"
      "Example: kvtwin simulate experiments/quickstart.toml --out out/quickstart"};
  program.name("kvtwin");
  program.set_version_flag("-V,--version", std::string(kVersion) + " (" + kGitCommit + ")");
  program.require_subcommand(1);
  program.footer(environment_help());
  add_simulate(program);
  add_run(program);
  add_replay(program);
  add_explain(program);
  add_compare(program, command_line(argc, argv));
  add_plan(program, command_line(argc, argv));
  add_validate(program);
  add_record(program);
  add_watch(program);
  add_hitrate(program);
  add_trace(program);
  add_presets(program);
  add_calibrate(program);
  add_figures(program);
  add_report(program);
  add_import_ops(program);
  add_check(program);
  add_completion(program);
  try {
    check_environment();
    refuse_odd_numbers(program);
    read_units(program);
    find_shipped_files(program);
    parse(program, with_help(argc, argv));
    return 0;
  } catch (const CLI::ParseError& error) {
    return print_error({2, argument_error(program, error)});
  } catch (const AlreadySaid& said) {
    return stdout_works() ? said.code : print_error({1, kNoStdout});
  } catch (...) {
    return print_error(ending_of(std::current_exception()));
  }
}

}  // namespace kvtwin
