// Simulates one experiment: the shortest way from an experiment to figures.
//
//     kvtwin::Experiment experiment = kvtwin::Experiment::from_file("experiments/quickstart.toml");
//     experiment.set("tiers.host.gib=64");
//     const kvtwin::RunResult result = kvtwin::simulate(experiment);
#pragma once

#include <optional>

#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/run/serve.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

// Observers of a simulation, and files to write.
struct Observers {
  Observer* events = nullptr;  // receives each event if no run folder is written; may be null
  Listener listener;
  RunFiles files;  // no files if `out` is empty
  // draws: number of hardware variants to simulate too (lab/sweep/draws.hpp); 0 = none. Each variant is a forked
  // process. jobs: processes at the same time; 0 = one per core.
  int draws = 0, jobs = 0;
  // Traffic that is made longer until it is steady is not made longer once its mean wait is above this. Nothing: no
  // limit.
  std::optional<double> hopeless_wait_s;
};

// Returns the figures, the report and a summary. Writes files only if `files.out` is set.
// Errors: InputError, TraceError or ModelError for bad input; WorkError if the run folder cannot be written.
// Thread: one simulation at a time. SimGrid has one world per process, so a process simulates only once with
// sim.world=simgrid. sim.world=events has no such limit.
RunResult simulate(const Experiment& experiment, const Observers& observers = {});

}  // namespace kvtwin
