// Two runs decided again, side by side: what differs in their keys and figures, and the first decision in which they
// part.
#pragma once

#include <string>

namespace kvtwin {

struct RunComparison {
  std::string text;    // for a person, or JSON
  bool equal = false;  // every decision is, and each run is decided again as it was
  std::string cut;     // not empty: nothing differs but that a run is cut short, as this sentence says
};

// Of two run folders or journals. InputError if one can't be read; WorkError if deciding it again broke off.
RunComparison compare_runs(const std::string& path_a, const std::string& path_b, bool json);

}  // namespace kvtwin
