// kvtwin explain: prints the life of one request.
#include "lab/past_run/explain.hpp"

#include <cstdint>
#include <string>

#include "cli/commands.hpp"
#include "cli/say.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

struct ExplainCommand {
  std::string run;
  std::int64_t request = 0;
  bool json = false;
};

void print_explanation(const ExplainCommand& arguments) {
  const Explanation told = explain(arguments.run, arguments.request, arguments.json);
  print(told.text);
  if (told.exit_code != 0) throw AlreadySaid(told.exit_code);
}

}  // namespace

void add_explain(CLI::App& program) {
  static ExplainCommand arguments;
  CLI::App* command = program.add_subcommand(
      "explain", "Print the life of one request: replay or simulate the run again, and follow the request");
  command->footer(
      "Example: kvtwin simulate experiments/quickstart.toml --out out/quickstart\n"
      "         kvtwin explain out/quickstart --request 17\n"
      "Exit:    0 done; 2 no such request, or no run folder; 3 the second run made other decisions than the first");
  command->add_option("run_dir", arguments.run, "A run folder, or a journal")->required();
  command->add_option("--request", arguments.request, "Number of the request: 0, 1, 2, ... in the order of arrival")
      ->required()
      ->check(CLI::Range(0.0, 1e18));
  command->add_flag("--json", arguments.json, "Print JSON with the column names of requests.csv");
  command->callback([] { print_explanation(arguments); });
}

}  // namespace kvtwin
