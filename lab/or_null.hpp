// JSON of a number that may be absent: null if it is.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace kvtwin {

inline nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace kvtwin
