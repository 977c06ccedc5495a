// The output of a command. Each simulation of a benchmark is a process of its own, because SimGrid's engine is global.
#pragma once

#include <cstdio>
#include <string>

namespace kvtwin::test {

// Returns an empty text if the command failed.
inline std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  for (std::size_t n = 0; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  return pclose(pipe) == 0 ? text : std::string();
}

}  // namespace kvtwin::test
