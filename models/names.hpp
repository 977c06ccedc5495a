// Help for mistyped names: the nearest known one, and the sentence that lists them all.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvtwin {

// Insertions, deletions and substitutions that turn `a` into `b`, upper and lower case being equal.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The known name with the least edit distance (the first one of equals); empty when all are farther than
// half of the longer name's length.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

// E.g.: unknown model "lama-3.1-8b": did you mean "llama-3.1-8b"? Known: deepseek-v3, gpt-oss-120b.
std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known);

}  // namespace kvtwin
