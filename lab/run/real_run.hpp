// One experiment for real, on this machine: by one process, or by one a rank that mpirun started.
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
  // Gets the result on the rank that leads, before what went wrong in the run is thrown; may be empty.
  std::function<void(const RunResult&)> served;
  // Gets the sentences of ranks that fail, from the rank that tells them; may be empty.
  std::function<void(const std::string& sentence)> say;
};

// Sets what a real run fixes: ranks that are policies of their own. InputError where this build is without the real
// world.
void prepare_real_run(Experiment& experiment);
// Of an experiment that prepare_real_run has seen. With files.out set, the run's inputs are recorded there too.
// InputError for what can't be served; WorkError for wrong bytes; AlreadySaid where `say` has had the sentence.
void run_real(const Experiment& experiment, const RunFiles& files, const RealRun& run);

}  // namespace kvtwin
