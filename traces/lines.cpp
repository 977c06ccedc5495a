#include "traces/lines.hpp"

#include <simdjson.h>

#include <cstring>
#include <utility>

#include "traces/trace.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kInitialBufferBytes = std::size_t{64} << 10;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

TraceLines::TraceLines(std::string name, std::unique_ptr<ByteStream> bytes, std::size_t max_line_bytes)
    : name_(std::move(name)),
      bytes_(std::move(bytes)),
      max_line_(max_line_bytes),
      buffer_(kInitialBufferBytes + simdjson::SIMDJSON_PADDING) {}

void TraceLines::fail(std::string_view what) const { fail_at(line_, what); }

void TraceLines::fail_at(std::uint64_t line, std::string_view what) const {
  throw TraceLineError("trace \"" + name_ + "\", line " + std::to_string(line) + ": " + std::string(what) + ".");
}

void TraceLines::fail(std::string_view key, std::string_view what) const { fail_at(line_, key, what); }

void TraceLines::fail_at(std::uint64_t line, std::string_view key, std::string_view what) const {
  throw TraceLineError("trace \"" + name_ + "\", line " + std::to_string(line) + ": key \"" + std::string(key) + "\" " +
                       std::string(what) + ".");
}

void TraceLines::fail_whole(std::string_view what) const {
  throw TraceError("trace \"" + name_ + "\" " + std::string(what) + ".");
}

bool TraceLines::peek(std::string_view& text) {
  if (!has_peeked_) {
    if (!next(peeked_)) return false;
    has_peeked_ = true;
  }
  text = peeked_;
  return true;
}

bool TraceLines::next(std::string_view& text) {
  if (has_peeked_) {
    has_peeked_ = false;
    text = peeked_;
    return true;
  }
  try {
    do {
      const Result result = cut(text);
      if (result == Result::end) return false;
      ++line_;
      if (result == Result::too_long) {
        fail("the line is longer than the " + std::to_string(max_line_) +
             " bytes allowed; a trace holds one request a line");
      }
      if (line_ == 1 && text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
    } while (is_blank(text));
    return true;
  } catch (const ByteStreamError& error) {
    const std::string where = line_ == 0 ? "" : ", after line " + std::to_string(line_) + ",";
    throw TraceError("trace \"" + name_ + "\"" + where + " " + error.what() + ".");
  }
}

TraceLines::Result TraceLines::cut(std::string_view& line) {
  std::size_t searched = 0;
  while (true) {
    const char* const start = buffer_.data() + begin_;
    const void* const found = std::memchr(start + searched, '\n', end_ - begin_ - searched);
    if (found != nullptr) {
      const auto length = static_cast<std::size_t>(static_cast<const char*>(found) - start);
      begin_ += length + 1;
      searched = 0;
      if (std::exchange(in_long_line_, false)) continue;
      if (length > max_line_) return Result::too_long;
      line = {start, length};
      return Result::line;
    }
    searched = end_ - begin_;
    if (in_long_line_ || searched > max_line_) {
      begin_ = end_;
      searched = 0;
      if (!std::exchange(in_long_line_, true)) return Result::too_long;
    }
    if (!fill()) {
      if (searched == 0 || bytes_->is_silent()) return Result::end;
      line = {buffer_.data() + begin_, searched};
      begin_ = end_;
      return Result::line;
    }
  }
}

// Reads more bytes to the end of the buffer, after the bytes that are not used yet. Returns false at the end of the
// stream.
bool TraceLines::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t usable = buffer_.size() - simdjson::SIMDJSON_PADDING;
  if (end_ == usable) buffer_.resize(2 * usable + simdjson::SIMDJSON_PADDING);
  const std::size_t room = buffer_.size() - simdjson::SIMDJSON_PADDING - end_;
  const std::size_t got = bytes_->read(std::span(buffer_.data() + end_, room));
  end_ += got;
  return got > 0;
}

}  // namespace kvtwin
