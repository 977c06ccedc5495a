// JSON of a number that may be absent: null if it is.
#pragma once

#include <optional>

#include "models/json.hpp"

namespace kvtwin {

inline Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace kvtwin
