// Text of up to 199 characters as std::printf makes it.
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
