// A trace format: how a file's first line tells it, and a reader of its lines. Internal to traces/ and to formats that
// a build adds.
//
// A format is one file, traces/format/NAME.cpp, that defines two functions; the build finds the file by its name:
//   int matches_NAME(const FirstLine& line);
//   std::unique_ptr<FormatReader> make_NAME_reader(TraceLines& lines, const TraceOptions& options);
//
// matches_NAME() returns 0 if the file isn't of this format, otherwise the larger the surer. The surest format reads
// the file, of equals the first of trace_format_names(). Those of this tree return 1 to 6: 1 is mooncake's for any JSON
// object, 6 is for lines that no other writer makes.
//
// make_NAME_reader() may read lines already; `lines` outlives the reader. What is wrong with a line is a TraceError, by
// lines.fail(). TraceReader does the rest: it counts times from the first request, refuses a time that goes back, and
// serves an answer of 0 tokens as 1.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "traces/fields.hpp"
#include "traces/lines.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// A file's first line that isn't blank.
class FirstLine {
 public:
  // `object`: what the line holds, null if it isn't a JSON object. Both outlive this.
  FirstLine(std::string_view text, const JsonObject* object) : text_(text), object_(object) {}

  std::string_view text() const { return text_; }
  bool is_object() const { return object_ != nullptr; }
  // Returns true if the line is a JSON object that has the key.
  bool has(std::string_view key) const {
    return object_ != nullptr && object_->at_key(key).error() == simdjson::SUCCESS;
  }

 private:
  std::string_view text_;
  const JsonObject* object_;
};

class FormatReader {
 public:
  virtual ~FormatReader() = default;
  // Clears and fills `request`, its times as the file has them; false at the end.
  virtual bool next(TraceRequest& request) = 0;
  // Tokens of a block; options.block_tokens, or the format's own if that is 0.
  virtual Tokens block_tokens() const = 0;
  // True if block_tokens() is the file's, whatever the options say; TraceReader then joins blocks.
  virtual bool has_own_blocks() const { return false; }
  // Appends what TraceSource::notes() returns.
  virtual void add_notes(std::vector<std::string>& /*notes*/) const {}
  virtual std::uint64_t ignored_keys() const { return 0; }
};

struct TraceFormat {
  std::string_view name;
  int (*matches)(const FirstLine& line);
  std::unique_ptr<FormatReader> (*make)(TraceLines& lines, const TraceOptions& options);
};

// All, in the order of trace_format_names().
std::span<const TraceFormat> trace_formats();

constexpr Tokens kLargestBlock = Tokens{1} << 31;
// Ids of blocks that are one request's alone lie from here on; a file's own ids lie below where the format says so.
constexpr std::uint64_t kPrivateBlocks = std::uint64_t{1} << 63;

}  // namespace kvtwin
