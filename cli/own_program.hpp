// This program as a child of its own: what runs or simulates once a process, called by commands that do so many times.
#pragma once

#include <string>
#include <vector>

namespace kvtwin {

struct Said {
  int exit_code = 0;
  std::string out, err;
  // Its last line on stderr, without the program's name: the sentence of one that failed.
  std::string sentence() const;
};

// Waits for its end. WorkError if it can't be started, or was killed.
Said run_own_program(const std::vector<std::string>& arguments);
// The same, of one that must succeed (or end with `also`). Else its sentence after `whose`: InputError or WorkError, by
// its exit code.
Said run_own_program(const std::vector<std::string>& arguments, const std::string& whose, int also = 0);

}  // namespace kvtwin
