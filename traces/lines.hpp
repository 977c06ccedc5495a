// A trace file as numbered lines, and the sentences that refuse one. Internal to traces/.
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

  // The next line that isn't blank, without its '\n'; false at the end. It lives until the next call, with
  // simdjson::SIMDJSON_PADDING readable bytes behind it. TraceError.
  bool next(std::string_view& text);
  // The same line again from the next call of next().
  bool peek(std::string_view& text);

  std::uint64_t number() const { return line_; }  // of the last one, from 1
  double fraction_read() const { return bytes_->fraction_read(); }

  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void fail(std::string_view key, std::string_view what) const;
  // The same of the whole file.
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
};

}  // namespace kvtwin
