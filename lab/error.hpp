// Exceptions for the user, and the exit codes that they become.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace kvtwin {

// Bad input. The text is one sentence for the user: what, where, and what would be right. Exit code 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The work failed, for example because the disk is full. Exit code 1.
class WorkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The error text has already been printed, by a callback or by a child process. Only the exit code is left.
class AlreadySaid : public std::runtime_error {
 public:
  explicit AlreadySaid(int exit_code) : std::runtime_error("said already"), code(exit_code) {}
  int code;
};

// The caller asked to end early (Listener::stopped).
class Stopped : public std::runtime_error {
 public:
  Stopped() : std::runtime_error("stopped") {}
};

// How the program ends.
struct Ending {
  int code = 0;  // 0: success, and the sentence is empty
  std::string sentence;
};
// Returns exit code and sentence for any exception.
Ending ending_of(const std::exception_ptr& error);

}  // namespace kvtwin
