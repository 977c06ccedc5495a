// Reads a recording of KV events (kvtwin record), of a vLLM or SGLang server, as a workload. It needs neither token ids
// nor text: a block's hash is its id.
//
//
// Which requests came is inferred: traces/shown_requests.hpp, whose head lists the rules. Errors: TraceError.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/block_events.hpp"
#include "traces/format.hpp"
#include "traces/shown_requests.hpp"

namespace kvtwin {
namespace {

class KvEventsReader final : public FormatReader {
 public:
  KvEventsReader(TraceLines& lines, const TraceOptions& options)
      : lines_(lines), events_(lines, options.max_line_bytes) {
    // The first message of a server with several groups has a store of each.
    constexpr int kMostEvents = 256;
    for (int i = 0; (shown_.block_tokens() == 0 || (shown_.group_is_open() && i < kMostEvents)) && read_event(); ++i) {
    }
    if (shown_.block_tokens() == 0) {
      lines_.fail_whole("holds no stored block of a GPU; record from before the first request on, with KV events on");
    }
  }

  bool next(TraceRequest& request) override {
    while (!shown_.has_next() && read_event()) {
    }
    return shown_.next(request);
  }
  Tokens block_tokens() const override { return shown_.block_tokens(); }
  bool has_own_blocks() const override { return true; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  bool read_event();

  TraceLines& lines_;
  BlockEventLines events_;
  ShownRequests shown_;
  std::uint64_t missing_ = 0, restarts_ = 0;
};

bool KvEventsReader::read_event() {
  BlockEvent event;
  if (!events_.next(event)) return false;
  if (event.kind == BlockEvent::Kind::missing) missing_ += event.count;
  if (event.kind == BlockEvent::Kind::restart) ++restarts_;
  if (const auto fault = shown_.take(event)) lines_.fail(fault->key, fault->what);
  return true;
}

void KvEventsReader::add_notes(std::vector<std::string>& notes) const {
  if (shown_.requests() == 0) return;
  shown_.add_notes(notes);
  if (missing_ > 0) notes.push_back("trace: " + std::to_string(missing_) + " messages are missing in the recording");
  if (restarts_ > 0) notes.push_back("trace: the server was restarted " + std::to_string(restarts_) + " times");
}

}  // namespace

int matches_kv_events(const FirstLine& line) {
  return line.has("type") && (line.has("endpoint") || line.has("block_hashes")) ? 6 : 0;
}

std::unique_ptr<FormatReader> make_kv_events_reader(TraceLines& lines, const TraceOptions& options) {
  return std::make_unique<KvEventsReader>(lines, options);
}

}  // namespace kvtwin
