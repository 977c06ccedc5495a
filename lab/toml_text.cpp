#include "lab/toml_text.hpp"

#include <cstddef>

#include "lab/error.hpp"

namespace kvtwin {
namespace {

void check_depth(std::string_view text, const std::string& name) {
  constexpr std::size_t kMaxDotsPerLine = 64;
  std::size_t dots = 0, line = 1;
  for (const char c : text) {
    if (c == '\n') {
      dots = 0;
      ++line;
    } else if (c == '.' && ++dots > kMaxDotsPerLine) {
      throw InputError(name + ":" + std::to_string(line) +
                       ": more than 64 dots in a line; keys have at most four parts");
    }
  }
}

}  // namespace

toml::table parse_toml(std::string_view text, const std::string& name) {
  check_depth(text, name);
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw InputError(name + ":" + std::to_string(error.source().begin.line) +
                     ": not TOML: " + std::string(error.description()));
  }
}

std::string text_of_list(const toml::array& list, const std::string& where) {
  std::string joined;
  for (const toml::node& item : list) {
    const auto* text = item.as_string();
    if (text == nullptr) throw InputError(where + ": must be a list of strings");
    joined += (joined.empty() ? "" : ", ") + text->get();
  }
  return joined;
}

}  // namespace kvtwin
