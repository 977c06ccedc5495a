// One sentence: what to change, what it gains, and how sure that is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lab/watch/watch.hpp"

namespace kvtwin {

// A figure with the interval in which it lies with 80 %, from the spread between intervals of time.
struct Spread {
  double middle = 0, low = 0, high = 0;
};

struct WatchAdvice {
  bool is_ready = false;   // enough was seen
  bool is_change = false;  // else: change nothing
  std::string sentence;
  std::string flags;                               // to paste; empty for no change
  std::uint64_t blocks = 0;                        // of the tier, for each engine
  Spread gain;                                     // share of the prompt's blocks that hit more
  std::optional<Spread> prefill_seconds_per_hour;  // that the hits save
  std::optional<Spread> money_per_month;           // saved minus the tier's price; of all engines
  std::string currency;
};

// `server`: null without a description; then there are no times, prices and sizes in GiB.
WatchAdvice recommend(const WatchFigures& figures, const WatchedServer* server);

// Returns hits(to) - hits(from) over all intervals, as a share of the blocks; nothing with fewer than 4 intervals that
// have look-ups.
std::optional<Spread> gain_between(const std::vector<WatchInterval>& intervals, std::uint64_t from, std::uint64_t to);

}  // namespace kvtwin
