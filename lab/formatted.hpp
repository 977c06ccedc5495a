// std::printf() into a string. A text of more than 199 characters is cut.
#pragma once

#include <cstdio>
#include <string>

namespace kvtwin {

template <typename... Values>
std::string formatted(const char* format, Values... values) {
  char text[200];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace kvtwin
