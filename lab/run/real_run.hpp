// Runs one experiment on this machine with real copies and storage. An engine with several ranks needs one process per
// rank, started with mpirun.
#pragma once

#include <functional>
#include <string>

#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/run/serve.hpp"
#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

struct RealRun {
  StorageSecrets secrets;
  Listener listener;
  // Receives the result, on rank 0 only, before run_real() throws an error of the run. May be empty.
  std::function<void(const RunResult&)> served;
  // Receives the error sentences of ranks that fail. May be empty.
  std::function<void(const std::string& sentence)> say;
};

// Sets the keys that a real run requires: with several ranks of one engine, parallel.rank_model = instances; with
// engines with roles, cluster.hand_over = chunks instead of layers. Errors: InputError if the build has no real world.
void prepare_real_run(Experiment& experiment);
// Runs the experiment. If files.out is set, the run folder also has the journal.
// Requires: prepare_real_run(experiment) was called.
// Errors: InputError if the experiment cannot run here; WorkError for wrong bytes, and for a failed run; AlreadySaid if
// `say` has received the sentence.
void run_real(const Experiment& experiment, const RunFiles& files, const RealRun& run);

}  // namespace kvtwin
