#include "lab/names.hpp"

#include <algorithm>
#include <vector>

#include "lab/error.hpp"
#include "models/names.hpp"

namespace kvtwin {

std::string_view name_of(Tier tier) { return static_cast<std::size_t>(tier) < kTiers ? spec_of(tier).name : "unknown"; }

std::string one_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text.append(text.empty() ? "one of " : ", ").append(name);
  return text;
}

std::string checked_name(std::string_view kind, const std::string& name, std::span<const std::string_view> names,
                         const std::string& where) {
  if (std::ranges::find(names, name) != names.end()) return name;
  throw InputError(where + ": " + unknown_name(kind, name, std::vector<std::string>(names.begin(), names.end())));
}

}  // namespace kvtwin
