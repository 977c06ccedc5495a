// One experiment in a simulated world: the library's shortest way from an experiment to figures.
//
//     kvtwin::Experiment experiment = kvtwin::Experiment::from_file("experiments/quickstart.toml");
//     experiment.set("tiers.host.gib=64");
//     const kvtwin::RunResult result = kvtwin::simulate(experiment);
#pragma once

#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/run/serve.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

// Who looks on, and what is kept besides the result.
struct Observers {
  Observer* events = nullptr;  // gets each event where no run folder is written; may be null
  Listener listener;
  RunFiles files;  // none unless `out` names a folder
  // Machines that this one may be, as far as its figures are known, simulated too (lab/sweep/draws.hpp); 0 = none.
  // Each is a forked process, `jobs` at once (0 = as many as there are cores).
  int draws = 0, jobs = 0;
};

// Returns the figures, the report and a summary; writes nothing unless `files.out` is set.
// Errors: InputError, TraceError or ModelError for bad input; WorkError if the run folder can't be written.
// Thread: one simulation at a time; SimGrid has one world a process, so a process simulates once in it (sim.world =
// "events" has no such limit).
RunResult simulate(const Experiment& experiment, const Observers& observers = {});

}  // namespace kvtwin
