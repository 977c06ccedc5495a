// kvtwin check: reads a file as kvtwin would, and says what it is. Tests the rules of a policy library.
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"
#include "cli/trace_options.hpp"
#include "lab/check/file_check.hpp"
#include "lab/error.hpp"
#include "lab/experiment/key_schema.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

struct CheckArguments {
  std::vector<std::string> files, sets;
  TraceArguments how;
  bool schema = false, json = false;
};

CheckedFile checked(const std::string& file, const CheckArguments& arguments) {
  if (arguments.sets.empty()) return check_file(file, arguments.how.chosen());
  Experiment experiment = Experiment::from_file(file);
  for (const std::string& set : arguments.sets) experiment.set(set);
  return check_experiment(experiment);
}

void check_command(const CheckArguments& arguments) {
  if (arguments.schema) return print(experiment_schema().dump(2) + "\n");
  if (arguments.files.empty()) throw InputError("check: give a file, or --schema");
  Json all = Json::array();
  Terminal terminal;
  int code = 0;
  for (const std::string& file : arguments.files) {  // also those after one that is not fine
    try {
      const CheckedFile one = checked(file, arguments);
      all.push_back({{"file", file}, {"kind", one.kind}, {"facts", one.facts}, {"notes", one.notes}});
      if (arguments.json) continue;
      print(file + ": " + one.kind + ": " + one.facts + "\n");
      for (const std::string& note : one.notes) terminal.note(note);
    } catch (const std::exception&) {
      const Ending ending = ending_of(std::current_exception());
      all.push_back({{"file", file}, {"error", ending.sentence}});
      say(ending.sentence);
      code = ending.code;
    }
  }
  if (arguments.json) print(all.dump(2) + "\n");
  if (code != 0) throw AlreadySaid{code};
}

}  // namespace

void add_check(CLI::App& program) {
  static CheckArguments arguments;
  CLI::App* command = program.add_subcommand("check",
                                             "Read files as kvtwin would, and say what they are: experiment, price "
                                             "list, trace, model, hardware, policy library");
  command->footer(
      "Example: kvtwin check experiments/chat_hour.toml\n"
      "         kvtwin check prices.toml trace.jsonl config.json\n"
      "         kvtwin check build/role_age.so   # a policy library: also tests the rules of policies\n"
      "         kvtwin check --schema > experiment.schema.json   # for editors of TOML\n"
      "Exit:    0 every file is fine; 2 one is not, with the place and the cure");
  command->add_option("file", arguments.files,
                      "Files: an experiment or price list (.toml), a config.json, a hardware "
                      "file or operator table (.json), a policy library (.so), or a trace");
  command->add_option("--set", arguments.sets, "key=value: set a key of the experiment; may be repeated")
      ->allow_extra_args(false);
  add_trace_options(*command, arguments.how, "--block-tokens");
  CLI::Option* json = command->add_flag("--json", arguments.json, "Print JSON");
  command->add_flag("--schema", arguments.schema, "Print the JSON schema of experiment files")->excludes(json);
  command->callback([] { check_command(arguments); });
}

}  // namespace kvtwin
