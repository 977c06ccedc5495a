// The keys whose values are names of policies or trace formats. Each name is a file (cmake/Choices.cmake); errors, help
// and `kvtwin presets` list what the build has found.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvtwin {

struct NamedChoice {
  std::string_view key;
  std::span<const std::string_view> (*names)();
};
// All but cache.eviction, whose names `hitrate` takes too.
std::span<const NamedChoice> named_choices();

// Returns `name` if it is one of `names`. Otherwise throws InputError: `where`, then the sentence of unknown_name().
std::string checked_name(std::string_view kind, const std::string& name, std::span<const std::string_view> names,
                         const std::string& where);

// Returns `help` followed by the names that it doesn't mention: those of policies that a build adds.
std::string with_other_names(std::string_view help, std::span<const std::string_view> names);

}  // namespace kvtwin
