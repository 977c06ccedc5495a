// Keys without effect: a user gave them, and nothing in this experiment reads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

struct IdleKey {
  std::string_view key;
  std::string sentence;  // which key, who gave it, why it has no effect, what would give it one
};

// In the order of experiment_keys(). Of keys that a file, --set, --vary or SGLang's flags gave; a value that switches
// something off is not listed. Default values are not listed either where a file lists all keys (a resolved
// experiment), or has generator keys beside a trace for readers (as experiments/quickstart.toml does). Keys of the
// other mode (sim.*, real.*, places of real storage) are not listed: one file serves both modes.
std::vector<IdleKey> idle_keys(const Experiment& experiment);

}  // namespace kvtwin
