// Reads the requests in a vLLM server's log, which has their token ids if the server was started with
// --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG (vllm/entrypoints/.../request_logger.py, vLLM 0.32 and 0.33):
//   Request ID details: prompt: ..., prompt_token_ids: [1, 2, ...], prompt_embeds shape: None.
//   Received request ID: params: SamplingParams(..., ignore_eos=True, max_tokens=6, ...), lora_request: None.
//   Generated response ID (streaming delta) details: output_token_ids: [...]      (--enable-log-outputs)
//   Generated response ID: output: '...', finish_reason: stop
// A line's time is a date without a year, to the second: MM-DD hh:mm:ss. Requests of one second are spread evenly over
// it, in the order of the log. A request without a logged answer has max_tokens tokens; add_notes() counts those that
// may have ended before.
//
// Errors: TraceError. Memory: kSortWindowRequests requests.
#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "traces/fields.hpp"
#include "traces/format.hpp"
#include "traces/token_ids.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kDetails = " details: prompt: ", kIds = ", prompt_token_ids: ";
constexpr std::string_view kReceived = "Received request ", kParams = ": params: ";
constexpr std::string_view kGenerated = "Generated response ", kAnswerIds = " details: output_token_ids: ";
constexpr const char* kHowToLog =
    "; start the server with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG, or record its KV events (kvtwin "
    "record)";

struct Logged {
  std::string id;
  TraceRequest request;
  std::vector<std::string> answer;  // texts of lists of token ids
  Tokens answer_tokens = 0;
  TimeNs second = 0;
  bool is_exact = false;  // its answer has max_tokens tokens
  bool ended = false;
};

class VllmReader final : public FormatReader {
 public:
  VllmReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines), blocks_(options), parser_(options.max_line_bytes + 1), release_after_(options.release_after) {}

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return blocks_.block_tokens(); }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  bool read_line();
  void read_arguments(std::string_view text);
  TimeNs time_of(std::string_view text);
  JsonValue ids(std::string_view list);
  void read_prompt(std::string_view id, std::string_view rest);
  void read_params(std::string_view id, std::string_view rest, TimeNs second);
  void read_answer(std::string_view rest);
  void fill(Logged& logged, TraceRequest& request);
  void spread(TimeNs second);

  TraceLines& lines_;
  TokenBlocks blocks_;
  simdjson::dom::parser parser_;
  const TimeNs release_after_;
  std::unordered_map<std::string, std::string> prompts_;  // lists of token ids, of requests that were not received yet
  std::deque<std::unique_ptr<Logged>> logged_;
  std::unordered_map<std::string, Logged*> by_id_;
  std::vector<Logged*> of_second_;
  std::optional<Tokens> most_logged_;  // --max-log-len
  TimeNs last_ = 0, year_ = 0;
  bool has_time_ = false;
  std::uint64_t requests_ = 0, without_ids_ = 0, guessed_ = 0;
};

// The text between two marks; nothing if one is missing.
std::optional<std::string_view> between(std::string_view text, std::string_view first, std::string_view second) {
  const std::size_t begin = text.find(first);
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + first.size());
  const std::size_t end = text.find(second);
  if (end == std::string_view::npos) return std::nullopt;
  return text.substr(0, end);
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// A line has the level and the time before its source: "INFO 11-29 03:52:47 [request_logger.py:65] ...".
TimeNs VllmReader::time_of(std::string_view text) {
  constexpr std::array<int, 12> kDaysBefore{0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  for (const std::string_view level : {"INFO ", "DEBUG "}) {
    const std::size_t at = text.find(level);
    if (at == std::string_view::npos || text.size() < at + level.size() + 14) continue;
    const std::string_view date = text.substr(at + level.size(), 14);
    const auto part = [&](std::size_t from) { return number_in<int>(date.substr(from, 2)); };
    const auto month = part(0), day = part(3), hour = part(6), minute = part(9), second = part(12);
    if (!month || !day || !hour || !minute || !second || *month < 1 || *month > 12) continue;
    const TimeNs days = kDaysBefore[static_cast<std::size_t>(*month - 1)] + *day;
    TimeNs time = (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * kNsPerSecond + year_;
    constexpr TimeNs kYear = TimeNs{365} * 24 * 3600 * kNsPerSecond;
    if (has_time_ && time + kYear / 2 < last_) {
      year_ += kYear;
      time += kYear;
    }
    has_time_ = true;
    last_ = std::max(last_, time);  // processes share the log, and their lines may change places
    return last_;
  }
  return last_;
}

// Of the line with the server's arguments only the limit of what is logged.
void VllmReader::read_arguments(std::string_view text) {
  if (text.find("non-default args: {") == std::string_view::npos) return;
  const std::size_t at = text.find("'max_log_len': ");
  if (at == std::string_view::npos) return;
  const std::string_view rest = text.substr(at + 15);
  most_logged_ = number_in<Tokens>(rest.substr(0, rest.find_first_not_of("0123456789")));
}

JsonValue VllmReader::ids(std::string_view list) {
  JsonValue value;
  if (parser_.parse(simdjson::padded_string(list)).get(value) != simdjson::SUCCESS || !value.is_array()) {
    lines_.fail("prompt_token_ids", std::string("is no list of token ids") + kHowToLog);
  }
  return value;
}

void VllmReader::read_prompt(std::string_view id, std::string_view rest) {
  const std::size_t at = rest.rfind(kIds);  // the prompt's text is before it
  if (at == std::string_view::npos) return;
  rest.remove_prefix(at + kIds.size());
  if (!rest.starts_with('[')) return;
  if (prompts_.size() > kSortWindowRequests) prompts_.clear();
  prompts_[std::string(id)] = rest.substr(0, rest.find(']') + 1);
}

void VllmReader::read_params(std::string_view id, std::string_view rest, TimeNs second) {
  const auto prompt = prompts_.find(std::string(id));
  if (prompt == prompts_.end()) {
    ++without_ids_;
    return;
  }
  auto logged = std::make_unique<Logged>();
  logged->id = id;
  logged->second = second;
  blocks_.read(lines_, "prompt_token_ids", ids(prompt->second), logged->request);
  prompts_.erase(prompt);
  if (most_logged_ && logged->request.input == *most_logged_) {
    lines_.fail("prompt_token_ids", "is cut short by the server's --max-log-len; leave it out");
  }
  const auto most = between(rest, "max_tokens=", ",");
  logged->request.output = most ? number_in<Tokens>(*most).value_or(1) : 1;
  logged->is_exact = rest.find("ignore_eos=True") != std::string_view::npos;
  const std::size_t lora = rest.rfind("lora_name='");
  if (lora != std::string_view::npos) {
    const std::string_view name = rest.substr(lora + 11);
    logged->request.tenant = string_id(name.substr(0, name.find('\'')));
  }
  if (!of_second_.empty() && of_second_.front()->second != second) spread(of_second_.front()->second);
  of_second_.push_back(logged.get());
  by_id_[logged->id] = logged.get();
  logged_.push_back(std::move(logged));
}

// Gives the requests of one second their arrivals.
void VllmReader::spread(TimeNs second) {
  const auto count = static_cast<TimeNs>(of_second_.size());
  for (TimeNs i = 0; i < count; ++i) {
    of_second_[static_cast<std::size_t>(i)]->request.arrival = second + i * kNsPerSecond / count;
  }
  of_second_.clear();
}

void VllmReader::read_answer(std::string_view rest) {
  const std::string_view id = rest.substr(0, rest.find_first_of(" :"));
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end()) return;
  Logged& logged = *found->second;
  if (const std::size_t at = rest.find(kAnswerIds); at != std::string_view::npos) {
    const std::string_view list = rest.substr(at + kAnswerIds.size());
    if (!list.starts_with('[')) return;
    if (rest.substr(0, at).find("(streaming complete)") != std::string_view::npos) logged.answer.clear();
    logged.answer.emplace_back(list.substr(0, list.find(']') + 1));
    return;
  }
  if (rest.find("(streaming delta)") != std::string_view::npos ||
      rest.find("finish_reason: ") == std::string_view::npos)
    return;
  logged.ended = true;
  by_id_.erase(found);
}

bool VllmReader::read_line() {
  std::string_view text;
  if (!lines_.next(text)) return false;
  read_arguments(text);
  if (const std::size_t at = text.find("] Request "); at != std::string_view::npos) {
    const std::string_view rest = text.substr(at + 10);
    const std::string_view id = rest.substr(0, rest.find(' '));
    if (rest.substr(id.size()).starts_with(kDetails)) read_prompt(id, rest);
  } else if (const std::size_t received = text.find(kReceived); received != std::string_view::npos) {
    const std::string_view rest = text.substr(received + kReceived.size());
    const std::size_t end = rest.find(kParams);
    if (end != std::string_view::npos) read_params(rest.substr(0, end), rest.substr(end), time_of(text));
  } else if (const std::size_t generated = text.find(kGenerated); generated != std::string_view::npos) {
    read_answer(text.substr(generated + kGenerated.size()));
  }
  return true;
}

void VllmReader::fill(Logged& logged, TraceRequest& request) {
  request = std::move(logged.request);
  Tokens tokens = 0;
  for (const std::string& list : logged.answer) {
    tokens += static_cast<Tokens>(std::ranges::count(list, ',')) + (list.size() > 2 ? 1 : 0);
  }
  if (tokens > 0) {
    request.output = tokens;
  } else if (!logged.is_exact) {
    ++guessed_;
  }
  ++requests_;
}

bool VllmReader::next(TraceRequest& request) {
  request.clear();
  const auto front_ended = [&] {
    if (logged_.empty() || (!of_second_.empty() && of_second_.front() == logged_.front().get())) return false;
    return logged_.front()->ended || logged_.front()->is_exact || logged_.size() > kSortWindowRequests ||
           (release_after_ > 0 && last_ - logged_.front()->second > release_after_);
  };
  bool more = true;
  while (!front_ended() && more) more = read_line();
  if (!more && !of_second_.empty()) spread(of_second_.front()->second);
  if (logged_.empty()) {
    if (requests_ > 0 || lines_.is_silent()) return false;
    lines_.fail_whole(without_ids_ > 0 ? "has " + std::to_string(without_ids_) +
                                             " requests of a vLLM server, without their token ids" + kHowToLog
                                       : "is the log of a vLLM server without requests" + std::string(kHowToLog) +
                                             "; --from-server-log reads the server's arguments");
  }
  by_id_.erase(logged_.front()->id);
  fill(*logged_.front(), request);
  logged_.pop_front();
  return true;
}

void VllmReader::add_notes(std::vector<std::string>& notes) const {
  if (requests_ == 0) return;
  blocks_.add_notes(notes);
  notes.push_back(
      "trace: vLLM's log has times to the second: requests of one second are spread evenly over it, in file order");
  if (guessed_ > 0) {
    notes.push_back(
        "trace: " + std::to_string(guessed_) +
        " answers are not in the log, and are taken to have max_tokens tokens, although they may have ended "
        "before; --enable-log-outputs logs those of chats");
  }
  if (without_ids_ > 0) {
    notes.push_back("trace: " + std::to_string(without_ids_) +
                    " requests were passed over, because the log has no token ids of them");
  }
}

}  // namespace

int matches_vllm(const FirstLine& line) {
  if (line.is_object()) return 0;
  for (const std::string_view mark : {"vLLM API server version", "non-default args: {", "Initializing a V1 LLM engine",
                                      "request_logger.py:", "(APIServer pid=", "(EngineCore pid="}) {
    if (line.text().find(mark) != std::string_view::npos) return 6;
  }
  return 0;
}

std::unique_ptr<FormatReader> make_vllm_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<VllmReader>(lines, options);
}

}  // namespace kvtwin
