#include "models/names.hpp"

#include <cstddef>

namespace kvtwin {

namespace {
constexpr std::size_t kMostListed = 32;
}  // namespace

std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known) {
  std::string sentence = "unknown ";
  sentence.append(kind).append(" \"").append(name).append("\"");
  const std::string nearest = nearest_name(name, known);
  sentence += nearest.empty() ? "." : ": did you mean \"" + nearest + "\"?";
  if (!nearest.empty() && known.size() > kMostListed) return sentence;
  sentence += " Known:";
  for (std::size_t i = 0; i < known.size(); ++i) sentence += (i == 0 ? " " : ", ") + known[i];
  return sentence + ".";
}

}  // namespace kvtwin
