// The table of experiment keys: name, type, default, range or choices, and help text of each key. A key may also set a
// member of the engine's or the world's configuration.
//
// Readers of the table: Experiment (checks values), apply_keys() (sets the members), `--help-keys` and the docs (print
// the keys).
// Units: the end of a key's name is the unit: _gbps (10^9 bytes/s), _us, _s, _gib, _tokens, _pages, _percent. Without
// such an end, the value is a count. A value may have a unit of its own, e.g. 1.5TB (lab/units.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "policy/config.hpp"
#include "sim/world.hpp"

namespace kvtwin {

using KeyValue = std::variant<std::string, std::int64_t, double, bool>;

struct ExperimentKey {
  struct Configuration {
    EngineConfig& engine;
    WorldConfig& world;
  };

  std::string_view name;
  KeyValue fallback;  // the default; sets the type of the key. A key of type double also takes integers
  // The range of a number. If min_nonzero > 0, the range is 0 (the key is not set) and [min_nonzero, max].
  double min = 0, max = 0;
  double min_nonzero = 0;
  std::vector<std::string_view> choices{};  // the valid values of a text; empty = any text
  bool chooses_file = false;                // each choice is a source file of the build: a policy or a trace format
  bool is_path = false;                     // a path, relative to the folder of the experiment file
  std::string_view help;  // one line without a full stop at the end; also stands in parentheses in error texts
  // Sets the member. Null: the key sets no member, and lab/experiment/setup.cpp or a command reads the value.
  void (*apply)(const KeyValue& value, const Configuration& to) = nullptr;

  // Returns the valid values: "true or false", "at least 1 and at most 64", "one of open, closed"; empty for any text.
  std::string range() const;
};

// Returns whether the key chooses a policy (cache, scheduler, cluster.route), which costs nothing. All other keys are
// circumstances: tiers, hardware, workload.
bool is_policy_key(std::string_view key);
// Whether engines with roles have the key in common, so that cluster.decode_set may not have it.
bool is_key_of_all_engines(std::string_view key);

constexpr double kMaxKeyValue = 9.2e18;  // fits into std::int64_t

// Returns all keys, in the order of experiment.resolved.toml.
std::span<const ExperimentKey> experiment_keys();

}  // namespace kvtwin
