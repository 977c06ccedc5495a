// The interface of a trace format: recognize a file by its first line, and read the lines. Internal to traces/ and to
// formats that a build adds.
//
// A format is one file, traces/format/NAME.cpp, that defines two functions. The build finds the file by its name:
//   int matches_NAME(const FirstLine& line);
//   std::unique_ptr<FormatReader> make_NAME_reader(TraceLines& lines, const TraceOptions& options);
//
// matches_NAME() returns 0 if the file does not have this format, otherwise a confidence. The format with the largest
// confidence reads the file; among equals, the first one in trace_format_names(). The formats of this folder return 1
// to 6: 1 (mooncake) for any JSON object, 6 for lines that only one program writes.
//
// make_NAME_reader() may read lines already; `lines` outlives the reader. Errors: call lines.fail(), which throws
// TraceLineError; FormatReader::next() may be called again, and goes on with the next line. A reader counts in
// passed_over_ what it does not read. TraceReader does the rest: times count from the first request, a time earlier
// than the previous one is an error, and an answer of 0 tokens becomes 1 token.
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

// The first line of a file that is not blank.
class FirstLine {
 public:
  // `object`: the JSON object in the line; null if the line has none. Requires: both outlive this object.
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
  // Clears and fills `request`, with the times as in the file. Returns false at the end.
  virtual bool next(TraceRequest& request) = 0;
  // Returns the number of tokens per block: options.block_tokens, or the default of the format if the option is 0.
  virtual Tokens block_tokens() const = 0;
  // Returns true if the file determines block_tokens(). TraceReader then joins blocks to get options.block_tokens.
  virtual bool has_own_blocks() const { return false; }
  // Returns true if a date so far had no zone, and was taken to be of options.zone.
  virtual bool has_local_dates() const { return false; }
  // Appends the sentences that TraceSource::notes() returns.
  virtual void add_notes(std::vector<std::string>& /*notes*/) const {}
  // The keys and columns of the file that are not read, so far. TraceReader names them in a note.
  const PassedOver& passed_over() const { return passed_over_; }

 protected:
  PassedOver passed_over_;
};

struct TraceFormat {
  std::string_view name;
  int (*matches)(const FirstLine& line);
  std::unique_ptr<FormatReader> (*make)(TraceLines& lines, const TraceOptions& options);
};

// Returns all formats, in the order of trace_format_names().
std::span<const TraceFormat> trace_formats();

// Readers that sort requests by arrival hold this many.
constexpr std::size_t kSortWindowRequests = 4096;
constexpr Tokens kMaxBlockTokens = Tokens{1} << 31;
// Block ids from here on belong to blocks that only one request has. Formats whose readers make such ids accept only
// smaller ids from the file.
constexpr std::uint64_t kPrivateBlocks = std::uint64_t{1} << 63;

}  // namespace kvtwin
