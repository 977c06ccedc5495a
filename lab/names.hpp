// Names in keys, reports and sentences, and the check of a name that the user gives.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "policy/base/tiers.hpp"

namespace kvtwin {

// Returns "unknown" for a value that is no enumerator.
std::string_view name_of(Tier tier);

// Returns "one of A, B, C".
std::string one_of(std::span<const std::string_view> names);
// Returns `name` if it is one of `names`. Otherwise throws InputError: `where`, then the sentence of unknown_name().
std::string checked_name(std::string_view kind, const std::string& name, std::span<const std::string_view> names,
                         const std::string& where);

}  // namespace kvtwin
