// Reads BurstGPT's CSV traces. Columns: Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type;
// optional: Session ID, Elapsed time.
#include "traces/lengths.hpp"

namespace kvtwin {
namespace {

constexpr LengthColumns kBurstGpt{"Timestamp", "Request tokens", "Response tokens", "Session ID", "Model", false};

}  // namespace

int matches_burstgpt(const FirstLine& line) {
  return !line.is_object() && line.text().find("Request tokens") != std::string_view::npos ? 1 : 0;
}

std::unique_ptr<FormatReader> make_burstgpt_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<LengthsReader>(lines, options, kBurstGpt);
}

}  // namespace kvtwin
