// The flags of SGLang's server, version 0.5.23: every field of its ServerArgs, how its flag takes a value, SGLang's
// default, and the key of an experiment that means the same. Flags of earlier versions that scripts still use are in it
// too. Data only; lab/sglang/sglang_flags knows the flags that need more than a key. A test holds the table against
// tests/fixtures/sglang/server_flags.tsv, which SGLang's own parser wrote.
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
    modelled,      // by `key`, or by hand in sglang_flags.cpp
    not_modelled,  // but it would change what kvtwin computes: `why`
    without_effect,
  };
  std::string field;  // of ServerArgs
  std::string name;   // --page-size
  Takes takes = Takes::text;
  Is is = Is::without_effect;
  std::string preset;         // SGLang's default as a flag would say it; empty: none, or found out from the GPU
  std::string_view words;     // of Takes::word: all that SGLang takes
  std::string_view key;       // of the experiment; empty: see `is`. Of a flag that isn't modelled: may stand for it
  std::string_view why;       // of what isn't modelled
  bool hierarchical = false;  // only read with --enable-hierarchical-cache
};

// In the order in which a flag line is written.
std::span<const SglangFlag> sglang_flags();
// By exact name, alias or, as argparse does, a prefix of one flag's name only; else null.
const SglangFlag* find_sglang_flag(std::string_view name);
// By a field's name, in this version or an earlier one; else null.
const SglangFlag* find_sglang_field(std::string_view field);
// Every name that a flag line may use.
const std::vector<std::string>& sglang_flag_names();
// What /get_server_info says beside ServerArgs.
bool is_server_info_field(std::string_view field);

// A value of a flag under SGLang's name and kvtwin's. With `unlike` kvtwin doesn't model the value: `ours` is what
// stands for it, and `unlike` is the difference.
struct SglangWord {
  std::string_view field, theirs, ours, unlike = "";
};
std::span<const SglangWord> sglang_words();

// Preset and the repository that SGLang is given for it; the first of a preset is what a flag line is written with.
std::span<const std::pair<std::string_view, std::string_view>> sglang_models();

}  // namespace kvtwin
