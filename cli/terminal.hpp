// The messages on stderr while the library works: notes, steps, and one progress line. The progress line is rewritten
// in place; there is none if stderr is not a terminal, or a dumb one, or KVTWIN_PROGRESS is off.
#pragma once

#include "lab/listener.hpp"

namespace kvtwin {

class Terminal {
 public:
  Terminal();
  ~Terminal() { erase(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Returns a listener that prints. Requires: this object outlives the listener.
  Listener listener();
  void note(const std::string& sentence);
  // Erases the progress line. Call it before other output.
  void erase();

 private:
  void draw(const RequestProgress& progress);
  void draw(const CellProgress& progress);

  bool shown_ = false, drawn_ = false;
};

}  // namespace kvtwin
