// The flags of an inference server: each field of its arguments, the kind of value of its flag, the server's default,
// and the experiment key with the same meaning. lab/sglang/sglang_table and lab/vllm/vllm_table have the rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtwin {

struct EngineFlag {
  enum class Takes : std::uint8_t { nothing, integer, tokens, number, word, text, list };
  enum class Is : std::uint8_t {
    modelled,        // by `key`, or by code of the engine's reader
    not_modelled,    // kvtwin has no model, although the flag would change its results; `why` has the reason
    without_effect,  // the flag does not change what kvtwin computes
  };
  std::string field;  // of the server's arguments
  std::string name;   // --page-size
  Takes takes = Takes::text;
  Is is = Is::without_effect;
  std::string preset;      // the server's default as the value of a flag; empty: none, or derived from the GPU
  std::string_view words;  // for Takes::word: all valid values
  std::string_view key;    // experiment key; empty: see `is`. For a flag without a model: a key that may take its place
  std::string_view why;    // for Is::not_modelled
  bool earlier = false;    // the flag belongs to an earlier release than the table's
  bool hierarchical = false;  // SGLang reads the flag only with --enable-hierarchical-cache
};

// A value of a flag: the server's name and kvtwin's. If `unlike` is not empty, kvtwin has no model of the value; `ours`
// takes its place, and `unlike` describes the difference.
struct FlagWord {
  std::string_view field, theirs, ours, unlike = "";
};

// A flag that a line names. `off`: the name negates the flag (--no-enable-x, --disable-x).
struct NamedFlag {
  const EngineFlag* flag = nullptr;
  bool off = false;
};

class FlagTable {
 public:
  struct Alias {
    std::string name, field;
    bool off = false;
  };

  // `engine` and `version`: for notes. `flags`: in the order of a written flag line.
  FlagTable(std::string_view engine, std::string_view version, std::vector<EngineFlag> flags,
            std::vector<Alias> aliases, std::span<const FlagWord> words);

  std::string_view engine() const { return engine_; }
  std::string_view version() const { return version_; }
  std::span<const EngineFlag> flags() const { return flags_; }
  std::span<const FlagWord> words() const { return words_; }
  // Returns all valid names in a flag line.
  const std::vector<std::string>& names() const { return names_; }

  // Finds a flag by exact name, by alias, or by an unambiguous prefix (as argparse does). The flag is null for an
  // unknown name.
  NamedFlag named(std::string_view name) const;
  const EngineFlag* find(std::string_view name) const { return named(name).flag; }
  // Finds a flag by the name of its field, in this version or an earlier one. Returns null for an unknown name.
  const EngineFlag* find_field(std::string_view field) const;
  // Returns the row of a value; without one, both names are the value.
  FlagWord word(std::string_view field, std::string_view theirs) const;

 private:
  std::string_view engine_, version_;
  std::vector<EngineFlag> flags_;
  std::vector<Alias> aliases_;
  std::span<const FlagWord> words_;
  std::vector<std::string> names_;
};

// Returns "--page-size" for the field page_size.
std::string flag_name_of(std::string_view field);
// Adds a flag for each field of a list, divided by blanks. A field takes one value. Behind the name: "!" = no value,
// "*" = several values, "=x" = the default.
void add_listed_flags(std::vector<EngineFlag>& flags, std::string_view fields, EngineFlag::Is is,
                      std::string_view why = "", std::string_view key = "");

}  // namespace kvtwin
