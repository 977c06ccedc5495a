// Makes traces. ChatGenerator: multi-turn chat behind one shared system prompt, shaped after the measured hour of
// Mooncake's conversation trace (3.4 requests/s, 12k input tokens a request): sessions arrive at a slowly drifting
// Poisson rate, a follow-up repeats its predecessor's full blocks and appends the answer and some growth (or, one time
// in seven, keeps only a short head). Same configuration, same bytes, on every machine.
//
// Memory: the live sessions (those with a further turn to come; about 350 at the default rate), never the trace. The
// hour starts cold, as the measured one does: the request rate grows over the first minutes to about 1.7 times
// sessions_per_second, 1.6 times on an hour's average.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// The defaults make the bundled trace, traces/chat_small.jsonl.zst.
struct ChatConfig {
  std::uint64_t seed = 1;
  std::uint64_t requests = 0;                // ends after so many; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;    // ends before this time; 0 = no limit
  double sessions_per_second = 2.08;         // 1e-6 .. 1e6
  TimeNs timestamp_step = 3 * kNsPerSecond;  // arrivals are rounded down to its multiples; >= 1
};

class ChatGenerator final : public TraceSource {
 public:
  // TraceError on a figure out of range.
  explicit ChatGenerator(const ChatConfig& config);

  // Requests with session and turn, both from 1.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override;
  double fraction_read() const override;

  std::size_t live_sessions() const { return heap_.size(); }

 private:
  struct Session {
    TimeNs time = 0;  // of its next request
    std::uint64_t number = 0, turn = 0;
    Tokens input = 0, output = 0;       // of its next request
    std::vector<std::uint64_t> blocks;  // those that the next request keeps
    Random random{0};
  };

  void start_session();
  bool plan_next_turn(Session& session) const;
  void draw_arrival();
  double rate_at(std::uint64_t window) const;
  void push(std::uint32_t slot);
  bool later(std::uint32_t a, std::uint32_t b) const;

  ChatConfig config_;
  Random arrivals_;
  TimeNs next_session_time_ = 0;
  std::uint64_t sessions_ = 0, emitted_ = 0;
  std::uint64_t next_block_ = 1;  // 0 is the shared system prompt's
  std::vector<Session> sessions_by_slot_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> heap_;  // slots, the earliest (time, number) on top
};

}  // namespace kvtwin
