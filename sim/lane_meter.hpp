// A lane's figures over time in a bounded number of windows: they start one second wide; when the run
// outgrows kMaxWindows of them, neighbours are merged and the width doubles. Amortised O(1) an interval.
#pragma once

#include <cstddef>
#include <string>

#include "policy/types.hpp"
#include "sim/world.hpp"

namespace kvtwin {

class LaneMeter {
 public:
  static constexpr std::size_t kMaxWindows = 4096;

  // The lane was taken during [from, to).
  void add_busy(TimeNs from, TimeNs to);
  // `bytes` moved evenly during [from, to).
  void add_bytes(TimeNs from, TimeNs to, Bytes bytes);
  void count_transfer() { ++use_.transfers; }

  LaneUse use(std::string name) const;

 private:
  void reach(TimeNs time);

  LaneUse use_;
};

}  // namespace kvtwin
