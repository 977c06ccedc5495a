#include "lab/validate/kvtwin_program.hpp"

#include <string_view>

#include "lab/error.hpp"

namespace kvtwin {

std::string ProgramOutput::sentence() const {
  constexpr std::string_view kName = "kvtwin: ";
  std::string last = err;
  while (!last.empty() && last.back() == '\n') last.pop_back();
  last.erase(0, last.find_last_of('\n') + 1);  // npos + 1 is 0
  if (last.starts_with(kName)) last.erase(0, kName.size());
  return last;
}

ProgramOutput run_to_its_end(const KvtwinProgram& program, const std::vector<std::string>& arguments,
                             const std::string& whose) {
  ProgramOutput said = program(arguments);
  if (said.exit_code == 0) return said;
  const std::string sentence = whose + ": " + said.sentence();
  if (said.exit_code == 2) throw InputError(sentence);
  throw WorkError(sentence);
}

}  // namespace kvtwin
