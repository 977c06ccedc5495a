#include "policy/base/nearest_name.hpp"

#include <algorithm>
#include <vector>

namespace kvtwin {

namespace {

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }
bool same_letter(char a, char b) { return lower(a) == lower(b); }

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table of prefixes: of two letters less, of one letter less, and the present one.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = above[j - 1] + (same_letter(a[i - 1], b[j - 1]) ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, changed});
      const bool swapped = i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> known) {
  const std::string* best = nullptr;
  for (const std::string& candidate : known) {  // h100 means h100-sxm, not h20
    const bool begins = name.size() > 1 && candidate.size() >= name.size() &&
                        std::ranges::equal(name, std::string_view(candidate).substr(0, name.size()), same_letter);
    if (begins && (best == nullptr || candidate.size() < best->size())) best = &candidate;
  }
  if (best != nullptr) return *best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (2 * distance > std::max(name.size(), candidate.size())) continue;
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::string{} : *best;
}

}  // namespace kvtwin
