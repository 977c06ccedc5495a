// The table of experiment keys: name, type, default, range or choices, and help text of each key. A key may also set a
// member of the engine's or the world's configuration.
//
// Readers of the table: Experiment (checks values), apply_keys() (sets the members), `--help-keys` and the docs (print
// the keys).
// Units: the end of a key's name is the unit: _gbps (10^9 bytes/s), _us, _s, _gib, _tokens, _pages, _percent. Without
// such an end, the value is a count. A value may have a unit of its own, e.g. 1.5TB (lab/units.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lab/units.hpp"
#include "models/hardware.hpp"
#include "policy/choices.hpp"
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
  std::optional<PolicyKind> policy{};       // the text is a policy, with parameters or without
  bool is_path = false;                     // a path, relative to the folder of the experiment file
  std::string_view unit{};                  // of numbers without a unit: B, GB/s, us; empty = by the name
  bool is_list = false;                     // a text with commas, for which a file may have a list of texts
  std::string_view help;  // one line without a full stop at the end; also stands in parentheses in error texts
  // Sets the member. Null: the key sets no member, and lab/experiment/setup*.cpp or a command reads the value.
  void (*apply)(const KeyValue& value, const Configuration& to) = nullptr;

  // Returns the valid values: "true or false", "at least 1 and at most 64", "one of open, closed"; empty for any text.
  std::string range() const;
};

// Returns whether the key chooses a policy, which costs nothing: cache, scheduler, cluster.route, and how the pools of
// a hybrid model share the device's memory. All other keys are circumstances: tiers, hardware, workload.
bool is_policy_key(std::string_view key);
// Whether engines with roles have the key in common, so that cluster.decode_set may not have it.
bool is_key_of_all_engines(std::string_view key);

// A key whose text is a list of settings: hardware.set (figures of the hardware) and cache.rules (rules of the engine's
// prefix cache). Each setting is a key too, "hardware.set.drive_count". Their values make the text. They are in no
// other list of keys.
struct KeyTable {
  std::string_view name;
  std::string_view one, example;  // for errors: "figure", "drive_count=4"
  std::span<const ExperimentKey> keys;
};
std::span<const KeyTable> key_tables();
// Returns the table of such a setting, by its whole name, whether it is known or not; null for other keys.
const KeyTable* table_of(std::string_view key);
// The unit of a figure's key: its name, its size in the figure's own unit, and the help text.
struct FigureUnit {
  std::string_view name;
  double base;
  std::string_view help;
};
FigureUnit unit_of_figure(const HardwareField& field);
constexpr std::string_view kHardwareSetKey = "hardware.set";
// Returns whether the key is a figure that hardware files have; the others are of several figures, or of the network.
bool is_figure_of_a_file(const ExperimentKey& key);

// Returns a key of any list, an earlier key too; null for another name.
const ExperimentKey* find_key_of_experiment(std::string_view name);
// Returns the unit of a number that is given without one.
Unit unit_of(const ExperimentKey& key);

// A key of earlier versions for a parameter of policies or of faults, or with another name now. It can be given, and
// then sets the parameter in the texts of the keys `of`, if they choose one of the policies, or the key that takes its
// place. It is in no list of keys.
struct EarlierKey {
  ExperimentKey key;  // its name and range; the help is the new form
  // Of faults: the key `faults`, to whose list a fault with this name is added.
  std::vector<std::string_view> of, policies;
  std::string_view parameter;  // of faults: empty for a list of spans (faults_of_spans())
  // Of faults: the earlier key without whose value, other than its default, there is no fault. Else empty.
  std::string_view switched_by{};
};
std::span<const EarlierKey> earlier_keys();
// Returns null for another name.
const EarlierKey* find_earlier_key(std::string_view name);
// Returns the name of today of a key with another name now; else `key`.
std::string_view present_name(std::string_view key);

constexpr double kMaxKeyValue = 9.2e18;  // fits into std::int64_t

// Returns all keys, in the order of experiment.resolved.toml.
std::span<const ExperimentKey> experiment_keys();

}  // namespace kvtwin
