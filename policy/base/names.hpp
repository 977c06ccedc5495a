// Enum values and their names. A name is written once: in `name_of(E)`, a constexpr switch without `default` beside the
// enum. If the switch lacks a value, the file does not compile (-Werror=switch). All other functions are derived from
// name_of.
//
// Requires: the values of E count from 0 without gaps, and name_of returns "" for a number that is no value.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace kvtwin {

template <typename E>
constexpr std::size_t count_of() {
  std::size_t count = 0;
  while (!name_of(static_cast<E>(count)).empty()) ++count;
  return count;
}

template <typename E>
inline constexpr auto kNamesOf = [] {
  std::array<std::string_view, count_of<E>()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = name_of(static_cast<E>(i));
  return names;
}();

// The names of all values, in the order of the values.
template <typename E>
constexpr std::span<const std::string_view> names_of() {
  return kNamesOf<E>;
}

// Returns the value with this name; none if no value has it.
template <typename E>
constexpr std::optional<E> value_named(std::string_view name) {
  for (std::size_t i = 0; i < count_of<E>(); ++i) {
    if (kNamesOf<E>[i] == name) return static_cast<E>(i);
  }
  return std::nullopt;
}

}  // namespace kvtwin
