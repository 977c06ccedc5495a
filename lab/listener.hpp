// What the library tells its caller while it works. Every member may be empty: then nobody is told.
// Thread: called by the thread that called the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "policy/base/types.hpp"

namespace kvtwin {

struct RequestProgress {
  std::uint64_t completed = 0;
  TimeNs now = 0;         // the world's time
  double share_read = 0;  // of the workload, 0 to 1; 0 = not known
  double seconds = 0;     // since serving began
};

struct CellProgress {
  std::size_t done = 0, of = 0;  // cells of a sweep
  double seconds = 0;            // since the first began
};

struct Listener {
  std::function<void(const std::string& sentence)> note;  // about the experiment
  std::function<void(const std::string& line)> step;      // of long work: a step begins or is left out
  std::function<void(const RequestProgress&)> requests;   // at most five times a second
  std::function<void(const CellProgress&)> cells;         // after each cell

  void tell(const std::string& sentence) const {
    if (note) note(sentence);
  }
  void begin(const std::string& line) const {
    if (step) step(line);
  }
};

}  // namespace kvtwin
