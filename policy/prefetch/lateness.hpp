// How late the batches of a medium come, and what this means for waiting: a histogram of the batches' ratio of time
// taken to time expected. docs/internals/cost_stop.md explains the rule.
//
// A batch that was given up counts with the time that it was waited for. Where little is known, the distribution is
// taken to be heavy-tailed: the mean remaining time is the time that has passed. Old batches fade. Integers only. Cost:
// O(kBins) per question.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/base/types.hpp"

namespace kvtwin {

class Lateness {
 public:
  // What depends on a batch. All in nanoseconds. All but `unit` and `waited` may be weighted with the number of
  // requests that bear the cost.
  struct Stake {
    TimeNs unit = 1;           // the time that the batch should take; >= 1
    TimeNs waited = 0;         // the time since the batch began
    std::int64_t waiting = 1;  // cost of each further nanosecond
    TimeNs rest = 0;           // cost of what comes after the batch
    TimeNs instead = 0;        // cost of giving up
  };
  struct Outlook {
    TimeNs give_up = 0;  // best time to give up, since the batch began; <= Stake::waited: now
    TimeNs wait = 0;     // mean time until the batch comes or is given up
    TimeNs cost = 0;     // mean cost of waiting and of what comes then; at most Stake::instead
  };

  Lateness();

  void came(TimeNs unit, TimeNs took);
  void given_up(TimeNs unit, TimeNs waited);

  Outlook weigh(const Stake& stake) const;

 private:
  // Bin i has the batches that took 2^(i/4) to 2^((i+1)/4) times the expected time. The first bin also has the faster
  // ones, the last bin the slower ones.
  static constexpr std::size_t kBins = 49;
  struct Bin {
    std::uint32_t came = 0, given_up = 0;  // in 1/16 batches
    std::uint64_t took = 0;  // sum of the ratios of the batches that came, in 1/1024; each counts 16 times
  };

  Bin& count(TimeNs unit, TimeNs took);

  std::array<Bin, kBins> bins_{};
  std::uint32_t counted_ = 0;  // batches since the last time that old batches faded
};

}  // namespace kvtwin
