// Reads flags of an inference server into an experiment: what the readers of all engines have in common.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/engine_flags/flag_table.hpp"
#include "lab/experiment/experiment.hpp"
#include "models/device_memory.hpp"
#include "models/geometry.hpp"

namespace kvtwin {

// Keys that the caller sets afterwards. There are no notes about their values.
using KeyList = std::span<const std::string>;

// A line of flags, or a whole command, that an experiment is written as.
struct ServerLine {
  std::string line;                // quoted for a shell
  std::vector<std::string> notes;  // keys of the experiment that no flag can express
};

// Returns the note that `server` divides a GPU's memory by another rule than the experiment's. `flag`: sizes L1.
std::string other_memory_rule(const DeviceMemory& memory, const std::string& server, const std::string& flag);

// Returns the flag of a name. It is null for a name that no known version has. `option`: for errors.
// Errors: InputError for a probable misspelling, and for a word that is no flag.
NamedFlag known_flag(const FlagTable& table, std::string_view option, const std::string& name);

class FlagReader {
 public:
  // `source`: the option and its file, for error texts and origins.
  FlagReader(const FlagTable& table, Experiment& experiment, std::string source, KeyList set_later)
      : table_(table), experiment_(experiment), source_(std::move(source)), set_later_(set_later) {}

  // `said`: the flag or field in the words of the user. A later value replaces an earlier one.
  void give(const EngineFlag& flag, std::string value, std::string said) {
    given_[flag.field] = {std::move(value), std::move(said), false};
  }
  // Adds a flag that no known version of the engine has.
  void give_unknown(std::string said) { unknown_.push_back(std::move(said)); }
  bool is_given(std::string_view field) const { return given_.contains(field); }

 protected:
  struct Given {
    std::string value, said;
    bool is_preset = false;  // the engine's default stands for a value that the engine does not have
  };

  FlagReader(const FlagReader&) = default;
  FlagReader(FlagReader&&) = default;
  virtual ~FlagReader() = default;

  bool is_set_later(std::string_view keys) const;
  const std::string& value(std::string_view field) const { return given_.find(field)->second.value; }
  // Returns the origin of what a field sets: the flag, or the engine's default of it.
  std::string where(std::string_view field) const;
  std::string as_given(std::string_view field) const;
  void note(const std::string& sentence) { experiment_.note(source_ + ": " + sentence); }
  // Adds a note about the value of a key, or of all keys with this prefix.
  void note_on(std::string_view keys, const std::string& sentence) {
    if (!is_set_later(keys)) note(sentence);
  }
  [[noreturn]] void refuse(const Given& given, const std::string& right) const;

  // Errors: InputError for a value that is no such number.
  void check_integer(const Given& given, std::int64_t least) const;
  void check_positive(const Given& given) const;
  // A value that is far from all valid values may belong to a later version. Then the default takes its place.
  void check_word(const EngineFlag& flag, Given& given);

  // Sets `engine`: the flags are of one engine, whatever the experiment has. `text`: "sglang 0.5.20".
  void set_engine(const std::string& text, bool replaces);
  // Sets the model of a path or name, and the format of the weights that the name tells. `field`: of the model;
  // `cache_field`: of the type of the KV cache.
  void set_model(std::string_view field, std::string_view cache_field);
  // Sets the format of the weights: --quantization names the checkpoint's, or makes the server quantise the weights.
  void set_quantization(std::string_view field, std::string_view model_field);
  // Returns the geometry of the experiment's model; empty if there is none.
  std::optional<ModelGeometry> geometry() const;
  // Sets the draft model of a target whose own prediction layer (MTP) is a preset, for `proposed` tokens a step.
  void set_own_draft(std::string_view field, std::int64_t proposed);
  // Sets the key by a default of the engine, unless the experiment gives it. `said`: for the note on assumptions.
  void set_preset(const std::string& key, const std::string& text, const std::string& origin, const std::string& said);
  // Sets a fixed behaviour of the engine that has no flag. It overrides the experiment.
  void set_fixed(const std::string& key, const std::string& value, const std::string& why);
  // Returns whether the experiment had the tier.
  bool remove_tier(const std::string& tier, const std::string& origin);
  // Also notes it.
  void replace_tier(const std::string& tier, const std::string& origin) {
    if (remove_tier(tier, origin)) note_on("tiers." + tier + ".", "the experiment's " + tier + " tier is left out");
  }
  // Returns the flag's default as the value of a flag; empty: none.
  virtual std::string preset_of(const EngineFlag& flag) const { return flag.preset; }
  bool is_preset(const EngineFlag& flag) const;
  // Notes the given flags that no known version has, and those that kvtwin has no model of.
  void note_unknown();
  void note_not_modelled();
  // Notes the given flags without effect on the cache.
  void note_without_effect();

  std::string engine() const { return std::string(table_.engine()); }

  // Returns whether the name, or the model's own file, says the format of the weights already.
  bool is_quantised(std::string_view model_field) const;

  const FlagTable& table_;
  Experiment& experiment_;
  std::string source_;
  KeyList set_later_;
  std::map<std::string, Given, std::less<>> given_;
  std::vector<std::string> unknown_;
  std::vector<std::string> assumed_;
};

}  // namespace kvtwin
