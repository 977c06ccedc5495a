// Help for mistyped names: the nearest known name.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kvtwin {

// Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`. Ignores
// upper and lower case.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the shortest known name that begins with `name`; otherwise the one with the smallest edit distance, among
// equal ones the first. Empty if every distance is more than half the length of the longer name.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace kvtwin
