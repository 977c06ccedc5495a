#include "cli/say.hpp"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "cli/environment.hpp"

namespace kvtwin {

namespace {

// Returns the text, in a colour of ANSI if stderr is a terminal that shows colours.
std::string coloured(const char* colour, const std::string& text) {
  if (isatty(STDERR_FILENO) == 0 || !environment_colour()) return text;
  return std::string("\033[") + colour + "m" + text + "\033[0m";
}

}  // namespace

std::string note_mark() { return coloured("33", "kvtwin: note:"); }

void say(std::string_view sentence) {
  std::string line = coloured("1;31", "kvtwin:") + " ";
  for (const char c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      line += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      line += escaped;
    }
  }
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", line.c_str());
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace kvtwin
