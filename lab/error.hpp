// Bad input: one sentence for the user (what, where, what would be right); the program exits with 2.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace kvtwin {

class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The work itself failed (a full disk, say); the program exits with 1.
class WorkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user has been told everything, through a caller's sink or by a program that was run; only the exit code is left
// to pass on.
class AlreadySaid : public std::runtime_error {
 public:
  explicit AlreadySaid(int exit_code) : std::runtime_error("said already"), code(exit_code) {}
  int code;
};

// How the program ends by an exception, whatever it is.
struct Ending {
  int code = 0;  // 0: it went well, and there is no sentence
  std::string sentence;
};
Ending ending_of(const std::exception_ptr& error);

}  // namespace kvtwin
