// Keys without effect: the user set the key, and this experiment never reads it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

struct IdleKey {
  std::string_view key;
  std::string where;     // the key and its origin
  std::string why;       // the reason, and a setting that gives the key an effect
  std::string sentence;  // both, of this key alone
};

// Returns the keys without effect, in the order of experiment_keys(). Only keys that a file, --set, --vary or an
// engine's flags set. Not listed:
// - values that switch something off;
// - default values in a file that sets all keys (a resolved experiment), and default generator keys next to a trace,
// which
//   explain the file (experiments/quickstart.toml);
// - keys of the other mode (sim.*, real.*, paths of real storage), because one file serves both modes.
std::vector<IdleKey> idle_keys(const Experiment& experiment);

// Returns one sentence for each reason, with all keys that have the reason, in the order of the first of them.
std::vector<std::string> idle_sentences(const std::vector<IdleKey>& keys);

}  // namespace kvtwin
