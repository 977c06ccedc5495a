#include "traces/trace.hpp"

#include <algorithm>
#include <utility>

#include "traces/byte_stream.hpp"
#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/lines.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

const TraceFormat& format_named(std::string_view name) {
  const std::span<const TraceFormat> formats = trace_formats();
  const auto found = std::ranges::find(formats, name, &TraceFormat::name);
  if (found == formats.end()) throw TraceError("format is \"" + std::string(name) + "\", which is none.");
  return *found;
}

// Returns use(line) of a line with its JSON object, if it has one. Errors: TraceLineError if it begins as an object and
// is none.
template <typename Use>
auto with_first_line(const TraceLines& lines, simdjson::dom::parser& parser, std::string_view text, const Use& use) {
  if (text[text.find_first_not_of(" \t\r")] != '{') return use(FirstLine(text, nullptr));
  const JsonObject object = json_line(lines, parser, text);
  return use(FirstLine(text, &object));
}

// A server's log may begin with lines of other programs. Skips them.
const TraceFormat* format_of_log(TraceLines& lines, simdjson::dom::parser& parser) {
  constexpr int kMostLines = 1000, kSure = 6;
  const auto sure_of = [](const FirstLine& line) -> const TraceFormat* {
    const auto found =
        std::ranges::find_if(trace_formats(), [&](const TraceFormat& format) { return format.matches(line) >= kSure; });
    return found == trace_formats().end() ? nullptr : &*found;
  };
  std::string_view text;
  for (int i = 0; i < kMostLines; ++i) {
    try {
      if (!lines.peek(text)) return nullptr;
      if (const TraceFormat* const format = with_first_line(lines, parser, text, sure_of)) return format;
    } catch (const TraceLineError&) {  // a line of another program, too
    }
    lines.drop_peeked();
  }
  return nullptr;
}

const TraceFormat* best_format(const FirstLine& line) {
  const TraceFormat* best = nullptr;
  int best_confidence = 0;
  for (const TraceFormat& format : trace_formats()) {
    const int confidence = format.matches(line);
    if (confidence > best_confidence) best = &format;
    best_confidence = std::max(best_confidence, confidence);
  }
  return best;
}

// Returns the format with the largest confidence for the first line. An empty file counts as mooncake. A broken first
// line of a log that is being written is kept in `broken`.
const TraceFormat& format_of(TraceLines& lines, const TraceOptions& options, std::optional<TraceLineError>& broken) {
  std::string_view text;
  simdjson::dom::parser parser(options.max_line_bytes + 1);
  std::uint64_t first = 1;
  try {
    if (!lines.peek(text)) return format_named("mooncake");
    first = lines.number();
    if (const TraceFormat* const best = with_first_line(lines, parser, text, best_format)) return *best;
  } catch (const TraceLineError& error) {
    if (options.release_after == 0) throw;
    broken = error;
  }
  if (const TraceFormat* const format = format_of_log(lines, parser)) return *format;
  lines.fail_at(
      first,
      "is no trace that kvtwin knows: a file begins with a JSON object (Mooncake, Qwen-Bailian, kv-cache-tester, "
      "token ids, SGLang's log, LMCache's log of look-ups, KV events, vllm bench serve), with the date of SGLang's log "
      "([2026-11-24 04:42:12]), with a line of vLLM's log or with the header of Azure's or BurstGPT's CSV; a format "
      "that can't be told can be given");
}

const TraceOptions& checked(const TraceOptions& options) {
  if (options.block_tokens > kMaxBlockTokens) {
    throw TraceError("block_tokens is " + std::to_string(options.block_tokens) +
                     "; it must be from 1 to 2147483648, or 0 for the trace's own.");
  }
  constexpr std::size_t kMaxLineBytes = std::size_t{1} << 30;
  if (options.max_line_bytes < 1 || options.max_line_bytes > kMaxLineBytes) {
    throw TraceError("max_line_bytes is " + std::to_string(options.max_line_bytes) + "; it must be from 1 to 2^30.");
  }
  if (options.max_window_log < 10 || options.max_window_log > 31) {
    throw TraceError("max_window_log is " + std::to_string(options.max_window_log) + "; it must be from 10 to 31.");
  }
  if (!(options.session_gap_seconds >= 1e-6 && options.session_gap_seconds <= 1e6)) {
    throw TraceError("session_gap_seconds must be from 0.000001 to 1000000.");
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

// Joins each group of `factor` neighbouring blocks into one block. The id of the new block is a hash of the group's ids
// and of their number, so that a shorter group at the end of the prompt has a different id.
void group(std::vector<std::uint64_t>& blocks, std::size_t factor) {
  std::size_t groups = 0;
  for (std::size_t first = 0; first < blocks.size(); first += factor) {
    const std::size_t count = std::min(factor, blocks.size() - first);
    std::uint64_t id = mix64(count);
    for (std::size_t i = first; i < first + count; ++i) id = mix64(id + 0x9e3779b97f4a7c15ULL + mix64(blocks[i]));
    blocks[groups++] = id;
  }
  blocks.resize(groups);
}

}  // namespace

void TraceRequest::clear() {
  arrival = 0;
  input = output = system = 0;
  blocks.clear();
  answer_blocks.clear();
  uncached_end = 0;
  session = turn = tenant = type = 0;
  priority = 0;
  think = -1;
  measured_hits.reset();
  measured_latency = -1;
  is_hint = false;
  hint = {};
}

struct TraceReader::State {
  State(const std::string& name, std::unique_ptr<ByteStream> bytes, const TraceOptions& options)
      : lines(name, std::move(bytes), options.max_line_bytes),
        format(options.format == "auto" ? format_of(lines, options, broken) : format_named(options.format)),
        reader(format.make(lines, options)),
        is_growing(options.release_after > 0) {
    if (!reader->has_own_blocks() || options.block_tokens == 0) return;
    if (options.block_tokens % reader->block_tokens() != 0) {
      throw TraceError("trace \"" + name + "\": its blocks are of " + std::to_string(reader->block_tokens()) +
                       " tokens, which can be joined to blocks of a multiple of that, not of " +
                       std::to_string(options.block_tokens) + ".");
    }
    joined = options.block_tokens / reader->block_tokens();
  }

  bool next(TraceRequest& request) {
    if (broken) throw *std::exchange(broken, std::nullopt);
    if (!reader->next(request)) return false;
    if (!begun) first_arrival = last_arrival = request.arrival;
    begun = true;
    if (is_growing) request.arrival = std::max(request.arrival, last_arrival);
    if (request.arrival < last_arrival) {
      lines.fail("timestamp",
                 "is earlier than the line's before; a trace is sorted by time (sort the file, for example by jq or "
                 "pandas)");
    }
    last_arrival = request.arrival;
    request.arrival -= first_arrival;
    if (request.is_hint) return true;
    if (request.output == 0) request.output = 1;
    if (joined > 1) {
      group(request.blocks, static_cast<std::size_t>(joined));
      request.answer_blocks.clear();
    }
    return true;
  }

  TraceLines lines;
  std::optional<TraceLineError> broken;  // the first line
  const TraceFormat& format;
  std::unique_ptr<FormatReader> reader;
  const bool is_growing;
  Tokens joined = 1;  // number of the file's blocks in one block of this reader
  bool begun = false;
  TimeNs first_arrival = 0, last_arrival = 0;  // as in the file
};

TraceReader::TraceReader(const std::string& path, const TraceOptions& options)
    : state_(std::make_unique<State>(path, open_or_throw(path, checked(options)), options)) {}

TraceReader::TraceReader(const std::string& name, std::span<const char> bytes, const TraceOptions& options)
    : state_(std::make_unique<State>(name, open_memory_stream(bytes, checked(options).max_window_log), options)) {}

TraceReader::TraceReader(const std::string& name, std::unique_ptr<ByteStream> bytes, const TraceOptions& options)
    : state_(std::make_unique<State>(name, std::move(bytes), checked(options))) {}

TraceReader::~TraceReader() = default;

bool TraceReader::next(TraceRequest& request) { return state_->next(request); }
Tokens TraceReader::block_tokens() const { return state_->reader->block_tokens() * state_->joined; }
double TraceReader::fraction_read() const { return state_->lines.fraction_read(); }
std::string_view TraceReader::format() const { return state_->format.name; }
TimeNs TraceReader::begin() const { return state_->first_arrival; }
bool TraceReader::has_local_dates() const { return state_->reader->has_local_dates(); }
std::uint64_t TraceReader::line() const { return state_->lines.number(); }
std::uint64_t TraceReader::ignored_keys() const { return state_->reader->passed_over().total(); }

std::vector<std::string> TraceReader::notes() const {
  std::vector<std::string> notes;
  state_->reader->add_notes(notes);
  if (const PassedOver& passed_over = state_->reader->passed_over(); !passed_over.empty()) {
    notes.push_back("trace: keys that kvtwin does not read were passed over: " + passed_over.text());
  }
  return notes;
}

}  // namespace kvtwin
