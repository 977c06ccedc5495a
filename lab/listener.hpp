// Callbacks for progress and messages while the library works. Each callback may be empty.
// Thread: the thread that called the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

struct RequestProgress {
  std::uint64_t completed = 0;
  TimeNs now = 0;         // world time
  double share_read = 0;  // part of the workload that has been read, 0 to 1; 0 = not known
  double seconds = 0;     // since the start of serving
};

struct CellProgress {
  std::size_t done = 0, of = 0;  // cells of a sweep
  double seconds = 0;            // since the start of the first cell
  const char* what = "cells";
};

struct Listener {
  std::function<void(const std::string& sentence)> note;  // a message about the experiment
  std::function<void(const std::string& line)> step;      // a step of long work begins or is left out
  std::function<void(const RequestProgress&)> requests;   // at most five times per second
  std::function<void(const CellProgress&)> cells;         // after each cell
  std::function<bool()> stopped;                          // asked while children work: true = the caller wants to end

  void tell(const std::string& sentence) const {
    if (note) note(sentence);
  }
  void begin(const std::string& line) const {
    if (step) step(line);
  }
};

}  // namespace kvtwin
