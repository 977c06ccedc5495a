// The program `kvtwin` as a function of its arguments. The caller brings it: the program starts itself again, and who
// embeds the library starts an installed one.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace kvtwin {

struct Said {
  int exit_code = 0;
  std::string out, err;
  // Its last line on stderr, without the program's name: the sentence of one that failed.
  std::string sentence() const;
};

// Waits for the program's end. WorkError if it can't be started, or was killed.
using KvtwinProgram = std::function<Said(const std::vector<std::string>& arguments)>;

// The same, of one that must succeed. Else its sentence after `whose`: InputError or WorkError, by its exit code.
Said run_to_its_end(const KvtwinProgram& program, const std::vector<std::string>& arguments, const std::string& whose);

}  // namespace kvtwin
