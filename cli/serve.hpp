// Serving an experiment in a world, from the first arrival to the run folder: what `simulate` and `run` share.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/experiment.hpp"
#include "cli/real_ranks.hpp"
#include "cli/run_folder.hpp"
#include "cli/setup.hpp"
#include "cli/sglang_options.hpp"
#include "policy/event.hpp"
#include "policy/world.hpp"

namespace kvtwin {

struct ServeArguments {
  std::string experiment, out;
  SglangArguments sglang;
  std::vector<std::string> sets;
  bool json = false, force = false, help_keys = false;
  bool to_sglang = false;                  // only say the experiment as SGLang's flags
  bool journal = false, timeline = false;  // written into the run folder
};

void add_serve_options(CLI::App& command, ServeArguments& arguments);
// The experiment with everything that the command line changes. `command`: for sentences.
Experiment read_experiment(const ServeArguments& arguments, const char* command);
// --help-keys
void list_keys();
// --to-sglang-flags
void print_sglang_flags(const Experiment& experiment, const Setup& setup);

// How one world's runs differ from another's, in what is written about them.
struct ServeTerms {
  const char* world = "";   // simgrid, events, real
  const char* device = "";  // model, host, cuda
  bool at_once = false;     // the run folder grows in place, for who is killed; else it appears when whole
  bool checked = false;     // the seam's contract is checked (policy/contract.hpp)
  bool notes_said = false;  // the caller prints notes, as of a sweep's cells; they still stand in the report
  std::uint64_t dram_bytes_per_second = 0;   // a simulated host's; 0 = its memory's use isn't known
  Observer* rows = nullptr;                  // told of each event where there is no run folder; may be null
  std::vector<std::string> notes;            // for the report, beside the experiment's
  std::function<void(RunFacts&)> add_facts;  // after the run; may be empty
  RealRanks* ranks = nullptr;                // the others of a real run of several, each a process that serves too
};

// Runs the experiment's requests through a fresh engine in `world`, writes the run folder and prints the report.
// WorkError when that fails. Of several ranks rank 0 does so; the others leave their journals in its folder.
void serve(const Experiment& experiment, const Setup& setup, World& world, const ServeArguments& arguments,
           const ServeTerms& terms);

}  // namespace kvtwin
