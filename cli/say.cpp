#include "cli/say.hpp"

#include <cstdio>
#include <string>

namespace kvtwin {

void say(std::string_view sentence) {
  std::string line = "kvtwin: ";
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
