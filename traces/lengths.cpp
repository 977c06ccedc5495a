#include "traces/lengths.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "traces/fields.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kLengthsBlockTokens = 64;

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

void split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  while (true) {
    const std::size_t comma = line.find(',');
    fields.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    line.remove_prefix(comma + 1);
  }
}

}  // namespace

LengthsReader::LengthsReader(TraceLines& lines, const TraceOptions& options, const LengthColumns& columns)
    : lines_(lines),
      columns_(columns),
      block_tokens_(options.block_tokens == 0 ? kLengthsBlockTokens : options.block_tokens),
      shared_blocks_(options.shared_tokens / block_tokens_),
      max_tokens_(options.max_input_tokens) {
  std::string_view header;
  if (!lines_.next(header)) return;
  split(header, fields_);
  width_ = fields_.size();
  time_at_ = column(columns_.time, true);
  input_at_ = column(columns_.input, true);
  output_at_ = column(columns_.output, true);
  if (columns_.session != nullptr) session_at_ = column(columns_.session, false);
  if (columns_.type != nullptr) type_at_ = column(columns_.type, false);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const bool is_read = i == time_at_ || i == input_at_ || i == output_at_ || i == session_at_ || i == type_at_;
    if (!is_read) unread_.emplace_back(i, fields_[i]);
  }
}

std::size_t LengthsReader::column(const char* name, bool needed) {
  const auto found = std::find(fields_.begin(), fields_.end(), std::string_view(name));
  if (found != fields_.end()) return static_cast<std::size_t>(found - fields_.begin());
  if (needed) {
    lines_.fail("the header has no column \"" + std::string(name) + "\"; it needs " + columns_.time + ", " +
                columns_.input + " and " + columns_.output);
  }
  return kAbsent;
}

bool LengthsReader::next(TraceRequest& request) {
  std::string_view line;
  while (lines_.next(line)) {
    split(line, fields_);
    if (fields_.size() != width_) {
      lines_.fail("has " + std::to_string(fields_.size()) + " fields, and the header names " + std::to_string(width_));
    }
    for (const auto& [at, name] : unread_) {
      if (!fields_[at].empty()) passed_over_.add(name);
    }
    request.clear();
    request.arrival = time(fields_[time_at_]);
    request.input = tokens(columns_.input, fields_[input_at_]);
    request.output = tokens(columns_.output, fields_[output_at_]);
    if (request.input == 0 || request.output == 0) {
      ++skipped_rows_;
      continue;
    }
    if (session_at_ != kAbsent && !fields_[session_at_].empty()) request.session = string_id(fields_[session_at_]);
    if (type_at_ != kAbsent && !fields_[type_at_].empty()) request.type = string_id(fields_[type_at_]);
    make_blocks(request);
    return true;
  }
  return false;
}

TimeNs LengthsReader::time(std::string_view text) const {
  if (columns_.dates) return date_field(lines_, columns_.time, text);
  constexpr double kMaxSeconds = 9e9;
  double seconds = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0 && seconds <= kMaxSeconds)) {
    lines_.fail(columns_.time, "must be a number of seconds from 0 to 9e9");
  }
  return static_cast<TimeNs>(seconds * static_cast<double>(kNsPerSecond) + 0.5);
}

// Accepts integers, and decimals with zeros only (12.0), because some programs write integers like this.
Tokens LengthsReader::tokens(const char* column, std::string_view text) const {
  while (text.find('.') != std::string_view::npos && text.back() == '0') text.remove_suffix(1);
  if (text.ends_with('.')) text.remove_suffix(1);
  Tokens value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max_tokens_) {
    lines_.fail(column, "must be an integer from 0 to " + std::to_string(max_tokens_));
  }
  return value;
}

void LengthsReader::make_blocks(TraceRequest& request) {
  const std::uint64_t blocks = (request.input - 1) / block_tokens_ + 1;
  const std::uint64_t shared = std::min<std::uint64_t>(shared_blocks_, request.input / block_tokens_);
  request.blocks.reserve(blocks);
  for (std::uint64_t block = 0; block < shared; ++block) request.blocks.push_back(block);
  while (request.blocks.size() < blocks) request.blocks.push_back(next_private_++);
}

void LengthsReader::add_notes(std::vector<std::string>& notes) const {
  notes.push_back("trace: the file holds lengths and times only; which prefixes come back is made up: " +
                  (shared_blocks_ == 0
                       ? std::string("none does")
                       : "every prompt begins with the same " + std::to_string(shared_blocks_ * block_tokens_) +
                             " tokens, nothing else "
                             "is shared"));
  if (skipped_rows_ > 0) {
    notes.push_back("trace: " + std::to_string(skipped_rows_) +
                    " rows of 0 prompt or 0 answer tokens (failed requests) were passed over");
  }
}

}  // namespace kvtwin
