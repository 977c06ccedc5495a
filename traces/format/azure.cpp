// Reads Azure's CSV traces. Columns: TIMESTAMP, ContextTokens, GeneratedTokens.
#include "traces/lengths.hpp"

namespace kvtwin {
namespace {

constexpr LengthColumns kAzure{"TIMESTAMP", "ContextTokens", "GeneratedTokens", nullptr, nullptr, true};

}  // namespace

int matches_azure(const FirstLine& line) {
  return !line.is_object() && line.text().find("ContextTokens") != std::string_view::npos ? 2 : 0;
}

std::unique_ptr<FormatReader> make_azure_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<LengthsReader>(lines, options, kAzure);
}

}  // namespace kvtwin
