// An experiment: every key that kvtwin knows, its value, and where that came from. Read from TOML, then
// overridden by --set; written back whole into each run folder. Unknown keys, wrong types and values out of
// range are InputErrors that name the place and the nearest known key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/keys.hpp"

namespace kvtwin {

constexpr std::size_t kMaxExperimentBytes = std::size_t{1} << 20;
constexpr std::string_view kWantedExperiment = "give the path of an experiment file (TOML)";

class Experiment {
 public:
  static Experiment from_file(const std::filesystem::path& path);
  static Experiment from_text(std::string_view text, const std::string& name);

  // `assignment` is key=value; a value that is no TOML literal is taken as a string.
  void set(std::string_view assignment, const std::string& origin = "--set");
  // What a reader of its results must know of how it came about.
  void note(std::string_view sentence);
  const std::vector<std::string>& notes() const { return notes_; }

  const std::string& text(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  bool flag(std::string_view key) const;
  const KeyValue& value(std::string_view key) const { return entry(key).value; }
  // Its value as TOML.
  std::string as_toml(std::string_view key) const;
  // "experiments/quickstart.toml:12", "--set", "default", ...
  const std::string& origin(std::string_view key) const;
  bool is_from_file(std::string_view key) const { return entry(key).from_file; }
  // "cache.layout (experiments/x.toml:12)", for error sentences.
  std::string where(std::string_view key) const;
  // A path relative to the experiment file's folder unless it came from the command line.
  std::filesystem::path path(std::string_view key) const;

  // Sets every member that a key sets.
  void apply_keys(const ExperimentKey::Configuration& to) const;

  // Every key, its value and where it came from, as TOML that gives the same experiment again.
  std::string resolved() const;

 private:
  struct Entry {
    KeyValue value;
    std::string origin = "default";
    bool from_file = false;
  };
  Experiment();
  Entry& entry(std::string_view key);
  const Entry& entry(std::string_view key) const;
  void assign(const ExperimentKey& key, KeyValue value, const std::string& origin, bool from_file);

  std::map<std::string, Entry, std::less<>> entries_;
  std::filesystem::path folder_;
  std::vector<std::string> notes_;
};

}  // namespace kvtwin
