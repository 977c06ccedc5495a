#include "traces/trace.hpp"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "traces/byte_stream.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kFirstBuffer = std::size_t{64} << 10;
constexpr double kNsPerMs = 1e6;
constexpr double kLargestMs = 9.0e12;  // 285 years; the next power of ten would not fit TimeNs

// The keys we know, as bits, to notice repeats and absences.
enum Key : unsigned {
  key_timestamp = 1U << 0,
  key_input_length = 1U << 1,
  key_output_length = 1U << 2,
  key_hash_ids = 1U << 3,
  key_session = 1U << 4,
  key_turn = 1U << 5,
  key_tenant = 1U << 6,
  key_priority = 1U << 7,
  key_type = 1U << 8,
  key_hint = 1U << 9,
  key_value = 1U << 10,
};

struct KeyName {
  std::string_view name;
  Key key;
};
constexpr KeyName kKeys[] = {
    {"timestamp", key_timestamp},
    {"input_length", key_input_length},
    {"output_length", key_output_length},
    {"hash_ids", key_hash_ids},
    {"session", key_session},
    {"turn", key_turn},
    {"tenant", key_tenant},
    {"priority", key_priority},
    {"type", key_type},
    {"hint", key_hint},
    {"value", key_value},
};

struct HintName {
  std::string_view name;
  HintKind kind;
};
constexpr HintName kHints[] = {{"session_end", HintKind::session_end},
                               {"tool_call_pending", HintKind::tool_call_pending},
                               {"pin", HintKind::pin},
                               {"unpin", HintKind::unpin}};

// FNV-1a over the bytes and a finishing mix; the top bit keeps it away from small integers and from kSessionZero.
std::uint64_t string_id(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  h ^= h >> 32;
  h *= 0x9e3779b97f4a7c15ULL;
  h ^= h >> 29;
  h |= kSessionZero;
  return h == kSessionZero ? h + 1 : h;
}

// Cuts a byte stream into lines inside one buffer, with room behind each for the parser to read past its end.
class LineReader {
 public:
  LineReader(std::unique_ptr<ByteStream> bytes, std::size_t max_line)
      : bytes_(std::move(bytes)), max_line_(max_line), buffer_(kFirstBuffer + simdjson::SIMDJSON_PADDING) {}

  enum class Result { line, end, too_long };

  // A line without its '\n', valid until the next call.
  Result next(std::string_view& line) {
    std::size_t searched = 0;
    while (true) {
      const char* const start = buffer_.data() + begin_;
      const void* const found = std::memchr(start + searched, '\n', end_ - begin_ - searched);
      if (found != nullptr) {
        const auto length = static_cast<std::size_t>(static_cast<const char*>(found) - start);
        if (length > max_line_) return Result::too_long;
        line = {start, length};
        begin_ += length + 1;
        return Result::line;
      }
      searched = end_ - begin_;
      if (searched > max_line_) return Result::too_long;
      if (!fill()) {
        if (searched == 0) return Result::end;
        line = {buffer_.data() + begin_, searched};
        begin_ = end_;
        return Result::line;
      }
    }
  }

  double fraction_read() const { return bytes_->fraction_read(); }

 private:
  // Reads more bytes behind those not yet given out; false at the end of the stream.
  bool fill() {
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

  std::unique_ptr<ByteStream> bytes_;
  std::size_t max_line_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

}  // namespace

void TraceRequest::clear() {
  arrival = 0;
  input = output = 0;
  blocks.clear();
  session = turn = tenant = type = 0;
  priority = 0;
  is_hint = false;
  hint = {};
}

struct TraceReader::State {
  State(std::string file_name, std::unique_ptr<ByteStream> bytes, const TraceOptions& given)
      : name(std::move(file_name)),
        options(given),
        lines(std::move(bytes), given.max_line_bytes),
        parser(given.max_line_bytes + 1) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw TraceError("trace \"" + name + "\", line " + std::to_string(line) + ": " + std::string(what) + ".");
  }
  [[noreturn]] void fail(std::string_view key, std::string_view what) const {
    fail("key \"" + std::string(key) + "\" " + std::string(what));
  }

  bool next_line(std::string_view& text);
  bool next(TraceRequest& request);
  void read_keys(const simdjson::dom::object& object, TraceRequest& request);
  void read_key(Key key, std::string_view name_of_key, const simdjson::dom::element& value, TraceRequest& request);
  void check_request(TraceRequest& request);
  void check_hint(TraceRequest& request);
  void check_order(const TraceRequest& request);

  TimeNs time(std::string_view key, const simdjson::dom::element& value) const;
  std::uint64_t natural(std::string_view key, const simdjson::dom::element& value, std::uint64_t largest) const;
  std::int64_t integer(std::string_view key, const simdjson::dom::element& value, std::int64_t least,
                       std::int64_t largest) const;
  std::uint64_t id(std::string_view key, const simdjson::dom::element& value) const;
  void ids(const simdjson::dom::element& value, std::vector<std::uint64_t>& into) const;

  std::string name;
  TraceOptions options;
  LineReader lines;
  simdjson::dom::parser parser;
  std::uint64_t line = 0, ignored = 0;
  unsigned seen = 0;  // keys of this line
  TimeNs last_arrival = 0;
};

bool TraceReader::State::next_line(std::string_view& text) {
  try {
    do {
      const LineReader::Result result = lines.next(text);
      if (result == LineReader::Result::end) return false;
      ++line;
      if (result == LineReader::Result::too_long) {
        fail("the line is longer than the " + std::to_string(options.max_line_bytes) +
             " bytes allowed; a trace holds one JSON object a line");
      }
      if (line == 1 && text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
    } while (is_blank(text));
    return true;
  } catch (const ByteStreamError& error) {
    const std::string where = line == 0 ? "" : ", after line " + std::to_string(line) + ",";
    throw TraceError("trace \"" + name + "\"" + where + " " + error.what() + ".");
  }
}

bool TraceReader::State::next(TraceRequest& request) {
  std::string_view text;
  if (!next_line(text)) return false;
  request.clear();
  simdjson::dom::element document;
  // The line lies in a buffer with SIMDJSON_PADDING readable bytes behind it: no copy.
  if (const auto error = parser.parse(text.data(), text.size(), false).get(document); error != simdjson::SUCCESS) {
    fail(std::string("not one whole JSON object (") + simdjson::error_message(error) + ")");
  }
  simdjson::dom::object object;
  if (document.get(object) != simdjson::SUCCESS) fail("must be a JSON object in braces, like {\"timestamp\": 0, ...}");
  seen = 0;
  read_keys(object, request);
  if ((seen & key_timestamp) == 0) fail("timestamp", "is missing; every line needs its time in milliseconds");
  request.is_hint ? check_hint(request) : check_request(request);
  check_order(request);
  return true;
}

void TraceReader::State::read_keys(const simdjson::dom::object& object, TraceRequest& request) {
  for (const auto& [key, value] : object) {
    const std::string_view wanted = key;
    const auto* const known =
        std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeyName& k) { return k.name == wanted; });
    if (known == std::end(kKeys)) {
      ++ignored;
      continue;
    }
    if ((seen & known->key) != 0) fail(known->name, "is given twice; once is right");
    seen |= known->key;
    read_key(known->key, known->name, value, request);
  }
}

void TraceReader::State::read_key(Key key, std::string_view name_of_key, const simdjson::dom::element& value,
                                  TraceRequest& request) {
  switch (key) {
    case key_timestamp: request.arrival = time(name_of_key, value); break;
    case key_input_length: request.input = natural(name_of_key, value, kMaxTraceTokens); break;
    case key_output_length: request.output = natural(name_of_key, value, kMaxTraceTokens); break;
    case key_hash_ids: ids(value, request.blocks); break;
    case key_session:
      request.session = id(name_of_key, value);
      if (request.session == 0) request.session = kSessionZero;
      break;
    case key_turn: request.turn = natural(name_of_key, value, std::numeric_limits<std::uint64_t>::max()); break;
    case key_tenant: request.tenant = id(name_of_key, value); break;
    case key_type: request.type = id(name_of_key, value); break;
    case key_priority:
      request.priority = static_cast<std::int32_t>(integer(name_of_key, value, std::numeric_limits<std::int32_t>::min(),
                                                           std::numeric_limits<std::int32_t>::max()));
      break;
    case key_value:
      request.hint.value = integer(name_of_key, value, std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max());
      break;
    case key_hint: {
      std::string_view text;
      if (value.get(text) != simdjson::SUCCESS) text = {};
      const auto* const hint =
          std::find_if(std::begin(kHints), std::end(kHints), [&](const HintName& h) { return h.name == text; });
      if (hint == std::end(kHints)) {
        fail(name_of_key, "must be one of \"session_end\", \"tool_call_pending\", \"pin\", \"unpin\"");
      }
      request.is_hint = true;
      request.hint.kind = hint->kind;
      break;
    }
  }
}

void TraceReader::State::check_request(TraceRequest& request) {
  if ((seen & key_value) != 0) {
    ++ignored;  // only a hint has a value
    request.hint = {};
  }
  for (const KeyName& k : kKeys) {
    if ((k.key & (key_input_length | key_output_length | key_hash_ids)) != 0 && (seen & k.key) == 0) {
      fail(k.name, "is missing; a request needs timestamp, input_length, output_length and hash_ids");
    }
  }
  if (request.input == 0) fail("input_length", "is 0; a request has at least 1 input token");
  const Tokens blocks = (request.input - 1) / options.block_tokens + 1;
  if (request.blocks.size() != blocks) {
    fail("hash_ids", "holds " + std::to_string(request.blocks.size()) + " ids, but input_length " +
                         std::to_string(request.input) + " needs " + std::to_string(blocks) + " blocks of " +
                         std::to_string(options.block_tokens) + " tokens");
  }
  if (request.output == 0) request.output = 1;
}

void TraceReader::State::check_hint(TraceRequest& request) {
  if ((seen & key_session) == 0) fail("session", "is missing; a hint names the session that it is about");
  if ((seen & (key_input_length | key_output_length | key_hash_ids)) != 0) {
    fail("hint", "stands in a line with input_length, output_length or hash_ids; a line is a request or a hint");
  }
  request.hint.subject = request.session;
  const TimeNs arrival = request.arrival;
  const Hint hint = request.hint;
  request.clear();
  request.arrival = arrival;
  request.is_hint = true;
  request.hint = hint;
}

void TraceReader::State::check_order(const TraceRequest& request) {
  if (request.arrival < last_arrival) {
    fail("timestamp",
         "is earlier than the line's before; a trace is sorted by time (sort the file, for example by jq or pandas)");
  }
  last_arrival = request.arrival;
}

TimeNs TraceReader::State::time(std::string_view key, const simdjson::dom::element& value) const {
  std::uint64_t whole = 0;
  if (value.is_uint64()) {
    whole = value.get_uint64().value_unsafe();
    if (whole > static_cast<std::uint64_t>(kLargestMs)) fail(key, "is too large; times end at 9e12 ms");
    return static_cast<TimeNs>(whole) * 1'000'000;
  }
  double ms = -1.0;
  if (!value.is_double() || value.get(ms) != simdjson::SUCCESS || !(ms >= 0.0)) {
    fail(key, "must be a number of milliseconds >= 0");
  }
  if (ms > kLargestMs) fail(key, "is too large; times end at 9e12 ms");
  return static_cast<TimeNs>(ms * kNsPerMs + 0.5);
}

std::uint64_t TraceReader::State::natural(std::string_view key, const simdjson::dom::element& value,
                                          std::uint64_t largest) const {
  std::uint64_t result = 0;
  if (value.get(result) != simdjson::SUCCESS || result > largest) {
    fail(key, "must be an integer from 0 to " + std::to_string(largest));
  }
  return result;
}

std::int64_t TraceReader::State::integer(std::string_view key, const simdjson::dom::element& value, std::int64_t least,
                                         std::int64_t largest) const {
  std::int64_t result = 0;
  if (value.get(result) != simdjson::SUCCESS || result < least || result > largest) {
    fail(key, "must be an integer from " + std::to_string(least) + " to " + std::to_string(largest));
  }
  return result;
}

std::uint64_t TraceReader::State::id(std::string_view key, const simdjson::dom::element& value) const {
  std::uint64_t number = 0;
  if (value.get(number) == simdjson::SUCCESS) return number;
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) return string_id(text);
  fail(key, "must be an integer >= 0 or a string");
}

void TraceReader::State::ids(const simdjson::dom::element& value, std::vector<std::uint64_t>& into) const {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) fail("hash_ids", "must be an array of integers >= 0");
  for (const simdjson::dom::element& element : array) {
    std::uint64_t number = 0;
    if (element.get(number) != simdjson::SUCCESS) {
      fail("hash_ids", "must hold integers >= 0; entry " + std::to_string(into.size()) + " (from 0) is something else");
    }
    into.push_back(number);
  }
}

namespace {

const TraceOptions& checked(const TraceOptions& options) {
  if (options.block_tokens < 1 || options.block_tokens > (Tokens{1} << 31)) {
    throw TraceError("block_tokens is " + std::to_string(options.block_tokens) + "; it must be from 1 to 2147483648.");
  }
  constexpr std::size_t kLongestLine = std::size_t{1} << 30;
  if (options.max_line_bytes < 1 || options.max_line_bytes > kLongestLine) {
    throw TraceError("max_line_bytes is " + std::to_string(options.max_line_bytes) + "; it must be from 1 to 2^30.");
  }
  if (options.max_window_log < 10 || options.max_window_log > 31) {
    throw TraceError("max_window_log is " + std::to_string(options.max_window_log) + "; it must be from 10 to 31.");
  }
  return options;
}

std::unique_ptr<ByteStream> open_or_throw(const std::string& path, const TraceOptions& options) {
  try {
    return open_file_stream(path, options.max_window_log);
  } catch (const ByteStreamError& error) {
    throw TraceError("trace \"" + path + "\" " + error.what() + ".");
  }
}

}  // namespace

TraceReader::TraceReader(const std::string& path, const TraceOptions& options)
    : state_(std::make_unique<State>(path, open_or_throw(path, checked(options)), options)) {}

TraceReader::TraceReader(const std::string& name, std::span<const char> bytes, const TraceOptions& options)
    : state_(std::make_unique<State>(name, open_memory_stream(bytes, checked(options).max_window_log), options)) {}

TraceReader::~TraceReader() = default;

bool TraceReader::next(TraceRequest& request) { return state_->next(request); }
Tokens TraceReader::block_tokens() const { return state_->options.block_tokens; }
double TraceReader::fraction_read() const { return state_->lines.fraction_read(); }
std::uint64_t TraceReader::line() const { return state_->line; }
std::uint64_t TraceReader::ignored_keys() const { return state_->ignored; }

}  // namespace kvtwin
