// Reads the result of vLLM's `vllm bench serve --save-result --save-detailed` as a workload: one JSON object with a
// list of each figure. Read are start_times (s, of a clock that begins anywhere), input_lens, output_lens and errors.
// The file has no prompts, so each request gets blocks of its own, and no prefix is shared.
//
// Errors: TraceError. Memory: 24 bytes per request.
#include <algorithm>
#include <string>
#include <vector>

#include "traces/fields.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kDefaultBlockTokens = 64;

struct Sent {
  TimeNs arrival = 0;
  Tokens input = 0, output = 0;
};

class VllmBenchReader final : public FormatReader {
 public:
  VllmBenchReader(TraceLines& lines, const TraceOptions& options)
      : block_(options.block_tokens == 0 ? kDefaultBlockTokens : options.block_tokens) {
    read(lines, options);
  }

  bool next(TraceRequest& request) override {
    if (at_ == sent_.size()) return false;
    request.clear();
    const Sent& sent = sent_[at_++];
    request.arrival = sent.arrival;
    request.input = sent.input;
    request.output = sent.output;
    for (Tokens token = 0; token < sent.input; token += block_) request.blocks.push_back(next_private_++);
    return true;
  }
  Tokens block_tokens() const override { return block_; }
  void add_notes(std::vector<std::string>& notes) const override {
    notes.push_back("trace: the result of vllm bench serve has no prompts, so its " + std::to_string(sent_.size()) +
                    " requests share no prefix here");
    if (failed_ > 0) notes.push_back("trace: " + std::to_string(failed_) + " failed requests were passed over");
  }

 private:
  void read(TraceLines& lines, const TraceOptions& options);

  Tokens block_;
  std::vector<Sent> sent_;
  std::size_t at_ = 0;
  std::uint64_t failed_ = 0, next_private_ = kPrivateBlocks;
};

simdjson::dom::array list_of(const TraceLines& lines, const JsonObject& object, std::string_view key) {
  simdjson::dom::array list;
  if (object.at_key(key).get(list) != simdjson::SUCCESS) {
    lines.fail(key, "is missing; vllm bench serve writes it with --save-result --save-detailed");
  }
  return list;
}

void VllmBenchReader::read(TraceLines& lines, const TraceOptions& options) {
  simdjson::dom::parser parser(options.max_line_bytes + 1);
  std::string_view text;
  lines.next(text);
  const JsonObject object = json_line(lines, parser, text);
  for (const JsonValue& value : list_of(lines, object, "start_times")) {
    sent_.push_back({time_field(lines, "start_times", value, kNsPerSecond), 0, 0});
  }
  const auto read_lengths = [&](std::string_view key, Tokens Sent::*into, Tokens most) {
    std::size_t at = 0;
    for (const JsonValue& value : list_of(lines, object, key)) {
      if (at == sent_.size()) break;
      sent_[at++].*into = natural_field(lines, key, value, most);
    }
    if (at < sent_.size()) lines.fail(key, "has fewer entries than start_times");
  };
  read_lengths("input_lens", &Sent::input, options.max_input_tokens);
  read_lengths("output_lens", &Sent::output, kMaxTraceTokens);
  simdjson::dom::array errors;
  if (object.at_key("errors").get(errors) == simdjson::SUCCESS) {
    std::size_t at = 0;
    for (const JsonValue& value : errors) {
      std::string_view error;
      if (at < sent_.size() && value.get(error) == simdjson::SUCCESS && !error.empty()) sent_[at].input = 0;
      ++at;
    }
  }
  failed_ = std::erase_if(sent_, [](const Sent& sent) { return sent.input == 0; });
  std::ranges::stable_sort(sent_, {}, &Sent::arrival);
  if (lines.next(text)) lines.fail("begins a second result; a file of --append-result has several, give one of them");
  if (sent_.empty()) lines.fail_whole("holds no request that was served");
}

}  // namespace

int matches_vllm_bench(const FirstLine& line) {
  return line.has("request_throughput") && (line.has("num_prompts") || line.has("input_lens")) ? 6 : 0;
}

std::unique_ptr<FormatReader> make_vllm_bench_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<VllmBenchReader>(lines, options);
}

}  // namespace kvtwin
