// The names that keys, reports and sentences have for the policy's enumerators. Each switch names every enumerator, so
// that the compiler (-Wswitch) points here when one is added.
#pragma once

#include <string_view>

#include "policy/base/types.hpp"
#include "policy/engine.hpp"

namespace kvtwin {

// Returns "unknown" for a value that is no enumerator.
std::string_view name_of(Tier tier);

}  // namespace kvtwin
