// Conversations that a generator drew, beside the figures that it was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

struct DrawnTraffic {
  struct Mean {
    const char* figure = "";  // the key of workload.generate
    double asked = 0;
    std::uint64_t count = 0;
    double sum = 0, squares = 0;
    void add(double value) {
      ++count;
      sum += value;
      squares += value * value;
    }
    double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
    // Returns whether the mean is more than 10 % off, and more than three standard errors.
    bool differs() const;
  };
  // turns, new_tokens, output_tokens, think_s: of the requests so far; turns of the conversations that have ended, with
  // the turns before the trace.
  std::vector<Mean> means;
  std::uint64_t ended = 0, cut = 0;               // conversations; cut: by the longest context
  Tokens longest_context = 0, context_limit = 0;  // prompt and answer of a request; 0 = no limit
};

// Returns "turns 4.1 (asked 4), new_tokens 1640 (asked 1638) ...".
std::string drawn_text(const DrawnTraffic& drawn);
// Returns a note on the figures that differ, and why; empty if none differs.
std::string drawn_note(const DrawnTraffic& drawn);

}  // namespace kvtwin
