// The flags of SGLang's server, version 0.5.23: each field of its ServerArgs, the kind of value of its flag, SGLang's
// default, and the experiment key with the same meaning. Also flags of earlier versions that scripts still use. Data
// only: sglang_flags.cpp has the code for flags that need more than a key.
//
// For a new release: `tools/sglang-parity --flags --renew` writes tests/fixtures/sglang/server_flags.tsv with SGLang's
// own parser, and the tests SglangServer.* then name each row of this table that is missing, gone, or differs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtwin {

inline constexpr std::string_view kSglangVersion = "0.5.23";

struct SglangFlag {
  enum class Takes : std::uint8_t { nothing, integer, tokens, number, word, text, list };
  enum class Is : std::uint8_t {
    modelled,        // by `key`, or by code in sglang_flags.cpp
    not_modelled,    // kvtwin has no model, although the flag would change its results; `why` has the reason
    without_effect,  // the flag does not change what kvtwin computes
  };
  std::string field;  // of ServerArgs
  std::string name;   // --page-size
  Takes takes = Takes::text;
  Is is = Is::without_effect;
  std::string preset;      // SGLang's default as the value of a flag; empty: none, or SGLang derives it from the GPU
  std::string_view words;  // for Takes::word: all valid values
  std::string_view key;    // experiment key; empty: see `is`. For a flag without a model: a key that may take its place
  std::string_view why;    // for Is::not_modelled
  bool earlier = false;    // the flag belongs to an earlier release, and kSglangVersion does not have it
  bool hierarchical = false;  // SGLang reads the flag only with --enable-hierarchical-cache
};

// Returns all flags, in the order of a written flag line.
std::span<const SglangFlag> sglang_flags();
// Finds a flag by exact name, by alias, or by an unambiguous prefix (as argparse does). Returns null for an unknown
// name.
const SglangFlag* find_sglang_flag(std::string_view name);
// Finds a flag by the name of its field, in this version or an earlier one. Returns null for an unknown name.
const SglangFlag* find_sglang_field(std::string_view field);
// Returns all valid names in a flag line.
const std::vector<std::string>& sglang_flag_names();
// Returns whether the field is one of /get_server_info that is not in ServerArgs.
bool is_server_info_field(std::string_view field);

// A value of a flag: SGLang's name and kvtwin's. If `unlike` is not empty, kvtwin has no model of the value; `ours`
// takes its place, and `unlike` describes the difference.
struct SglangWord {
  std::string_view field, theirs, ours, unlike = "";
};
std::span<const SglangWord> sglang_words();

// Returns pairs of preset and model repository. The first repository of a preset is used in a written flag line.
std::span<const std::pair<std::string_view, std::string_view>> sglang_models();

}  // namespace kvtwin
