// The keys of an experiment, each declared once: name, type, default, range or choices, help, and the configuration's
// member that it sets where it sets one. Experiment checks values by this table, `--help-keys` prints it, and
// apply_keys() sets the members. A key's unit is the end of its name: _gbps (GB/s), _us, _s, _gib, _tokens, _pages,
// _percent; a bare number counts what the name says.
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
  KeyValue fallback;  // its type is the key's type; a double takes integers too
  double least = 0;   // of numbers
  double most = 0;
  double least_but_0 = 0;                   // where 0 stands for something else than a quantity: the least quantity
  std::vector<std::string_view> choices{};  // all values that a text may have; empty = any
  bool chooses_file = false;                // each choice is a file of the build: a policy, a trace format
  bool is_path = false;                     // relative to the experiment's file
  std::string_view help;                    // one line
  void (*apply)(const KeyValue& value, const Configuration& to) = nullptr;  // null: lab/experiment/setup.cpp reads it

  // What values it takes: "true or false", "at least 1 and at most 64", "one of open, closed"; empty for any text.
  std::string range() const;
};

constexpr double kMostOfAnyKey = 9.2e18;

// In the order of the resolved file.
std::span<const ExperimentKey> experiment_keys();

}  // namespace kvtwin
