// The first line is `#turns`. Each further line has four integers: ms since the start, session, prompt tokens, output
// tokens. Of two prompts of a session, the shorter one is a prefix of the longer one.
#include <cinttypes>
#include <cstdio>
#include <string>

#include "traces/format.hpp"

namespace kvtwin {
namespace {

class TurnsReader final : public FormatReader {
 public:
  TurnsReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines), block_tokens_(options.block_tokens == 0 ? 64 : options.block_tokens) {
    std::string_view header;
    lines_.next(header);
  }

  bool next(TraceRequest& request) override {
    std::string_view text;
    if (!lines_.next(text)) return false;
    request.clear();
    std::uint64_t ms = 0;
    const int read = std::sscanf(std::string(text).c_str(), "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &ms,
                                 &request.session, &request.input, &request.output);
    if (read != 4 || request.input == 0) lines_.fail("must hold four integers: ms, session, prompt and answer tokens");
    request.arrival = static_cast<TimeNs>(ms) * kNsPerMs;
    for (Tokens at = 0; at < request.input; at += block_tokens_) {
      request.blocks.push_back(request.session << 32 | at / block_tokens_);
    }
    return true;
  }

  Tokens block_tokens() const override { return block_tokens_; }

 private:
  TraceLines& lines_;
  Tokens block_tokens_;
};

}  // namespace

int matches_turns(const FirstLine& line) { return line.text().starts_with("#turns") ? 1 : 0; }

std::unique_ptr<FormatReader> make_turns_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<TurnsReader>(lines, options);
}

}  // namespace kvtwin
