// How late a medium's batches come, and what that makes of waiting for the one under way: a histogram of how long
// batches took, by how many times as long as they should have. Batches that were given up count for as long as they
// were waited for. Where little is known, it is taken for heavy-tailed: who has waited so long has as much to wait
// again. Old batches are forgotten by and by. Integers only; O(kBins) a question.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/base/types.hpp"

namespace kvtwin {

class Lateness {
 public:
  // What hangs on a batch. All in nanoseconds, and all but `unit` and `waited` may be weighed by who bears them.
  struct Stake {
    TimeNs unit = 1;           // that it should take; >= 1
    TimeNs waited = 0;         // since it began
    std::int64_t waiting = 1;  // that a nanosecond more costs
    TimeNs rest = 0;           // to come once it is there
    TimeNs instead = 0;        // of giving it up
  };
  struct Outlook {
    TimeNs give_up = 0;  // best after so long since it began, if it hasn't come by then; <= Stake::waited: now
    TimeNs wait = 0;     // until it comes or is given up, on average
    TimeNs cost = 0;     // of that and of what comes then; Stake::instead at most
  };

  Lateness();

  void came(TimeNs unit, TimeNs took);
  void given_up(TimeNs unit, TimeNs waited);

  Outlook weigh(const Stake& stake) const;

 private:
  // Bin i is of batches that took 2^(i/4) to 2^((i+1)/4) times as long as they should, the first one of faster ones
  // too, the last one of all that are slower.
  static constexpr std::size_t kBins = 49;
  struct Bin {
    std::uint32_t came = 0, given_up = 0;  // in 1/16 batches
    std::uint64_t took = 0;                // of those that came: the sum of how many times as long, in 1/1024
  };

  Bin& count(TimeNs unit, TimeNs took);

  std::array<Bin, kBins> bins_{};
  std::uint32_t counted_ = 0;  // since something was forgotten
};

}  // namespace kvtwin
