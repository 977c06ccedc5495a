// An experiment: all keys, their values, and the origin of each value. The values come from a TOML file and from later
// settings such as --set. The keys `engine` and workload.recipe set keys that none of them gives (engine_word.hpp,
// workload_recipe.hpp). Each run folder has the whole experiment; one that was recorded before there was a key `engine`
// keeps its values.
//
// The text of a key that chooses a policy has the parameters that differ from their defaults: "slru(protected=3)". Keys
// of earlier versions for such parameters (earlier_keys()) can be given too. They then are a part of that text.
//
// Errors: unknown keys, wrong types and values out of range are InputErrors with the place and the nearest known key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lab/experiment/keys.hpp"

namespace kvtwin {

constexpr std::size_t kMaxExperimentBytes = std::size_t{1} << 20;
constexpr std::string_view kWantedExperiment = "give the path of an experiment file (TOML)";

class Experiment {
 public:
  static Experiment from_file(const std::filesystem::path& path);
  static Experiment from_text(std::string_view text, const std::string& name);

  // Sets one key. `assignment`: key=value; a value that is no TOML literal is a string. `origin`: for origin() and
  // errors. Errors: InputError.
  void set(std::string_view assignment, const std::string& origin = "--set");
  // Adds a note for the reader of the results, e.g. an assumption. Control and non-ASCII characters become \xNN.
  void note(std::string_view sentence);
  const std::vector<std::string>& notes() const { return notes_; }

  const std::string& text(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  bool flag(std::string_view key) const;
  const KeyValue& value(std::string_view key) const { return entry(key).value; }
  // Returns what is known about the policy that the key chooses.
  PolicyFacts policy(std::string_view key) const;
  // Returns whether the file, a setting or flags gave the parameter of the policy that the key chooses.
  bool gives_parameter(std::string_view key, std::string_view parameter) const;
  // Returns the value as TOML text.
  std::string as_toml(std::string_view key) const;
  // Returns the origin of the value: "experiments/quickstart.toml:12", "--set", "default", "engine = sglang", ...
  const std::string& origin(std::string_view key) const;
  // Returns whether the file, a setting or flags gave the value; false for a default and for what the keys `engine` and
  // workload.recipe set.
  bool is_given(std::string_view key) const;
  bool is_from_file(std::string_view key) const { return entry(key).from_file; }
  // Returns key and origin for error texts: "cache.layout (experiments/x.toml:12)".
  std::string where(std::string_view key) const;
  // Returns a path. A relative path in the file counts from the folder of the file, one from the command line does not.
  std::filesystem::path path(std::string_view key) const;

  // Sets the members of `to` by all keys that set a member.
  void apply_keys(const ExperimentKey::Configuration& to) const;

  // Returns all keys with value and origin, as TOML text that gives the same experiment.
  std::string resolved() const;

 private:
  struct Entry {
    KeyValue value;
    std::string origin = "default";
    bool from_file = false;
    bool by_earlier_keys = false;      // a policy that is not given, with parameters that are
    bool is_recorded_default = false;  // of a recorded experiment that was not given the key
    std::uint64_t order = 0;           // of the assignments
    std::string_view given_as{};       // the earlier name that was given; else empty
  };
  Experiment();
  static bool is_by_a_word(const Entry& e);  // set by `engine` or workload.recipe
  Entry& entry(std::string_view key);
  const Entry& entry(std::string_view key) const;
  void assign(const ExperimentKey& key, KeyValue value, const std::string& origin, bool from_file);
  void apply_words();  // of the keys `engine` and workload.recipe
  void read_recorded(const std::string& name, const std::vector<const ExperimentKey*>& defaults);
  void apply_earlier_keys();
  void apply_earlier_faults();
  void assign_renamed(const EarlierKey& earlier);
  void assign_table(const KeyTable& table, const std::string& origin, bool from_file);
  void list_table(const KeyTable& table);
  void note_earlier_key(const EarlierKey& key);
  bool gives_earlier(const EarlierKey& key) const;

  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
  };
  std::unordered_map<std::string, Entry, NameHash, std::equal_to<>> entries_;  // with those of earlier keys
  std::map<std::string, Entry, std::less<>> given_policies_;  // policies and faults as they were given, by key
  std::uint64_t assignments_ = 0;
  bool has_earlier_keys_ = false, is_recorded_ = false;
  std::filesystem::path folder_;
  std::vector<std::string> notes_;
};

}  // namespace kvtwin
