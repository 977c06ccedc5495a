// Serves an experiment in a world, from the first arrival to the run folder. Simulations and real runs both use it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/listener.hpp"
#include "lab/run/real_engines.hpp"
#include "lab/run/real_ranks.hpp"
#include "lab/run/run_folder.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/journal.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// The files to write.
struct RunFiles {
  std::string out;                         // the run folder; empty = none
  bool force = false;                      // replace an existing run folder
  bool journal = false, timeline = false;  // also write these files into the run folder
};

// The main figures of a run. The report has all figures.
struct MainFigures {
  std::uint64_t requests = 0, completed = 0, rejected = 0, failed = 0;
  Tokens prompt_tokens = 0, hit_tokens = 0, output_tokens = 0;
  std::optional<double> ttft_mean_s, ttft_p50_s, ttft_p99_s, tpot_mean_s;  // nothing if no request has the figure
  double seconds = 0;                                                      // world time
  DecisionMark decisions;
};

struct RunResult {
  MainFigures figures;
  std::string report;            // text of report.json; empty on ranks other than 0
  std::string summary;           // text for the screen
  std::filesystem::path folder;  // the run folder; empty if none was written
};

// The differences between simulations and real runs.
struct ServeTerms {
  const char* world = "";   // simgrid, events, real
  const char* device = "";  // model, host, cuda
  bool at_once = false;     // true: the run folder grows in place; false: it appears when it is complete
  bool checked = false;     // check the seam's contract (policy/seam/contract.hpp)
  std::uint64_t dram_bytes_per_second = 0;   // of a simulated host; 0 = no lane for host memory
  Observer* rows = nullptr;                  // receives each event if there is no run folder; may be null
  std::vector<std::string> notes;            // for the report, in addition to the experiment's
  std::optional<double> hopeless_wait_s;     // lab/simulate.hpp
  std::function<void(RunFacts&)> add_facts;  // called after the run; may be empty
  RealRanks* ranks = nullptr;                // the ranks of a real run with several processes; else null
  RealEngines* engines = nullptr;            // of a real run with several engines; else null
};

// Returns the terms of a simulation, without rows and facts. Requires: the experiment outlives them.
ServeTerms simulated_terms(const Experiment& experiment, const Setup& setup);

// Serves the experiment's requests with a fresh engine in `world`, and writes the run folder if files.out is set. With
// several processes, rank 0 writes and returns the results; the other ranks only write their journals into the folder.
// Errors: InputError or TraceError for bad input; WorkError if the run fails or a file cannot be written; AlreadySaid
// from other ranks.
RunResult serve(const Experiment& experiment, const Setup& setup, World& world, const RunFiles& files,
                const ServeTerms& terms, const Listener& listener);

}  // namespace kvtwin
