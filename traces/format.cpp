#include "traces/format.hpp"

#include <array>
#include <cstddef>
#include <iterator>

namespace kvtwin {

// CMake generates traces/format.inc: one KV_CHOICE(NAME) for each traces/format/NAME.cpp (cmake/Choices.cmake).
#define KV_CHOICE(name)                      \
  int matches_##name(const FirstLine& line); \
  std::unique_ptr<FormatReader> make_##name##_reader(TraceLines& lines, const TraceOptions& options);
#include "traces/format.inc"
#undef KV_CHOICE

namespace {

constexpr TraceFormat kFormats[] = {
#define KV_CHOICE(name) {#name, matches_##name, make_##name##_reader},
#include "traces/format.inc"
#undef KV_CHOICE
};

constexpr auto kFormatNames = [] {
  std::array<std::string_view, 1 + std::size(kFormats)> names{"auto"};
  for (std::size_t i = 0; i < std::size(kFormats); ++i) names[i + 1] = kFormats[i].name;
  return names;
}();

}  // namespace

std::span<const TraceFormat> trace_formats() { return kFormats; }
std::span<const std::string_view> trace_format_names() { return kFormatNames; }

}  // namespace kvtwin
