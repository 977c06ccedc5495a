// What a command prints on stderr while the library works for it: notes, steps, and one line of progress that is
// rewritten in place where stderr is a terminal (KVTWIN_PROGRESS silences it).
#pragma once

#include "lab/listener.hpp"

namespace kvtwin {

class Terminal {
 public:
  Terminal();
  ~Terminal() { erase(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Refers to this.
  Listener listener();
  void note(const std::string& sentence);
  // Takes the line of progress away, before something else is printed.
  void erase();

 private:
  void draw(const RequestProgress& progress);
  void draw(const CellProgress& progress);

  bool shown_ = false, drawn_ = false;
};

}  // namespace kvtwin
