// Compares two past runs: the keys and figures that differ, and the first decision that differs.
#pragma once

#include <string>

namespace kvtwin {

struct RunComparison {
  std::string text;    // a table, or JSON
  bool equal = false;  // all decisions of both runs are equal, and each rerun has the decisions of its run
  std::string cut;     // not empty: the only difference is that one run is cut short; a sentence about the cut
};

// `path_a`, `path_b`: run folders or journals. Both runs are decided again, in two child processes.
// Errors: InputError if a run cannot be read; WorkError if a child process ends early.
// Cost: memory does not grow with the length of the runs.
RunComparison compare_runs(const std::string& path_a, const std::string& path_b, bool json);

}  // namespace kvtwin
