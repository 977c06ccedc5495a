// What SGLang's server can be told, as of commit 001067ff of sgl-project/sglang (September 2026): every field of its
// ServerArgs, how its flag takes a value, SGLang's default, and which key of an experiment says the same. Data only;
// cli/sglang_flags knows what needs more than a key.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtwin {

inline constexpr std::string_view kSglangVersion = "as of September 2026, commit 001067ff";

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
  std::string_view key;       // of the experiment; empty: see `is`
  std::string_view why;       // of what isn't modelled
  bool hierarchical = false;  // only read with --enable-hierarchical-cache
};

// In the order in which a flag line is written.
std::span<const SglangFlag> sglang_flags();
// By exact name, alias or, as argparse does, a prefix of one flag's name only; else null.
const SglangFlag* find_sglang_flag(std::string_view name);
const SglangFlag* find_sglang_field(std::string_view field);
// Every name that a flag line may use.
const std::vector<std::string>& sglang_flag_names();
// What /get_server_info says beside ServerArgs.
bool is_server_info_field(std::string_view field);

// A value that the two call differently: SGLang's word for a field, kvtwin's.
struct SglangWord {
  std::string_view field, theirs, ours;
};
std::span<const SglangWord> sglang_words();

// Preset and the repository that SGLang is given for it; the first of a preset is what a flag line is written with.
std::span<const std::pair<std::string_view, std::string_view>> sglang_models();

}  // namespace kvtwin
