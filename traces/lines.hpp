// Splits a trace file into numbered lines, and throws the errors about a line. Internal to traces/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/byte_stream.hpp"

namespace kvtwin {

class TraceLines {
 public:
  TraceLines(std::string name, std::unique_ptr<ByteStream> bytes, std::size_t max_line_bytes);

  // Stores the next line that is not blank in `text`, without the '\n'. Returns false at the end, and while the stream
  // is silent, which keeps a part of a line for later. The text is valid until the next call, and
  // simdjson::SIMDJSON_PADDING bytes after the text are readable. Errors: TraceError; after TraceLineError, the next
  // call returns the line behind.
  bool next(std::string_view& text);
  // Like next(), but the next call of next() returns the same line again.
  bool peek(std::string_view& text);
  // The next call of next() returns the line behind the one that peek() has returned, if there is one.
  void drop_peeked() { has_peeked_ = false; }

  std::uint64_t number() const { return line_; }  // of the last line, counted from 1
  double fraction_read() const { return bytes_->fraction_read(); }
  // After next() has returned false: true if more lines may come later.
  bool is_silent() const { return bytes_->is_silent(); }

  // Throw TraceLineError.
  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;
  // The error of an earlier line.
  [[noreturn]] void fail_at(std::uint64_t line, std::string_view key, std::string_view what) const;
  [[noreturn]] void fail_at(std::uint64_t line, std::string_view what) const;
  // Throws TraceError, which names the file and not a line.
  [[noreturn]] void fail_whole(std::string_view what) const;

 private:
  enum class Result : std::uint8_t { line, end, too_long };
  Result cut(std::string_view& line);
  bool fill();

  std::string name_;
  std::unique_ptr<ByteStream> bytes_;
  std::size_t max_line_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t line_ = 0;
  std::string_view peeked_;
  bool has_peeked_ = false;
  bool in_long_line_ = false;  // the rest of the line is passed over
};

}  // namespace kvtwin
