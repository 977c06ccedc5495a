// Serving an experiment in a world, from the first arrival to the run folder: what simulations and real runs share.
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
#include "lab/run/real_ranks.hpp"
#include "lab/run/run_folder.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/journal.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// What is written of a run.
struct RunFiles {
  std::string out;                         // the run folder; empty = none
  bool force = false;                      // replaces a run folder that is there
  bool journal = false, timeline = false;  // written into it
};

// A run's main figures; the report has all.
struct MainFigures {
  std::uint64_t requests = 0, completed = 0, rejected = 0, failed = 0;
  Tokens prompt_tokens = 0, hit_tokens = 0, output_tokens = 0;
  std::optional<double> ttft_mean_s, ttft_p50_s, ttft_p99_s, tpot_mean_s;  // none without a request that has them
  double seconds = 0;                                                      // of the world's time
  DecisionMark decisions;
};

struct RunResult {
  MainFigures figures;
  std::string report;            // report.json's text; empty on a rank that doesn't lead
  std::string summary;           // one screen for a person
  std::filesystem::path folder;  // the run folder; empty if none was written
};

// How one world's runs differ from another's, in what is written about them.
struct ServeTerms {
  const char* world = "";   // simgrid, events, real
  const char* device = "";  // model, host, cuda
  bool at_once = false;     // the run folder grows in place, for who is killed; else it appears when whole
  bool checked = false;     // the seam's contract is checked (policy/seam/contract.hpp)
  std::uint64_t dram_bytes_per_second = 0;   // a simulated host's; 0 = its memory's use isn't known
  Observer* rows = nullptr;                  // told of each event where there is no run folder; may be null
  std::vector<std::string> notes;            // for the report, beside the experiment's
  std::function<void(RunFacts&)> add_facts;  // after the run; may be empty
  RealRanks* ranks = nullptr;                // the others of a real run of several, each a process that serves too
};

// Runs the experiment's requests through a fresh engine in `world` and writes the run folder, if one is wanted.
// WorkError when that fails. Of several ranks rank 0 writes and returns the results; the others leave their journals in
// its folder.
RunResult serve(const Experiment& experiment, const Setup& setup, World& world, const RunFiles& files,
                const ServeTerms& terms, const Listener& listener);

}  // namespace kvtwin
