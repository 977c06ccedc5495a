// The program `kvtwin` as a function of its arguments. The caller supplies the function: the program kvtwin starts
// itself again, and another program that uses the library starts an installed kvtwin.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kvtwin {

struct ProgramOutput {
  int exit_code = 0;
  std::string out, err;
  // Returns the last line of stderr without the name of the program: the error of a failed run.
  std::string sentence() const;
};

// Runs the program and waits for its end. Errors: WorkError if the program cannot start or is killed.
using KvtwinProgram = std::function<ProgramOutput(const std::vector<std::string>& arguments)>;

// Runs the program and requires exit code 0.
// Errors: InputError (exit code 2) or WorkError (others), with `whose` and the error of the program.
ProgramOutput run_to_its_end(const KvtwinProgram& program, const std::vector<std::string>& arguments,
                             const std::string& whose);

}  // namespace kvtwin
