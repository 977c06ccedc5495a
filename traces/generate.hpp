// Generates multi-turn chat with one shared system prompt, with the statistics of the measured hour of Mooncake's
// conversation trace (3.4 requests/s, 12k input tokens per request).
//
// Sessions arrive as a Poisson process whose rate drifts slowly. A follow-up repeats the full blocks of the previous
// prompt, and adds the answer and a new message; one follow-up in seven keeps only a short head of the previous prompt.
// The same configuration generates the same bytes on every machine.
//
// The trace starts without live sessions, as the measured hour does. So the request rate grows during the first
// minutes, to about 1.7 times sessions_per_second. The average over an hour is 1.6 times sessions_per_second. Memory:
// the live sessions (sessions with another turn; about 350 at the default rate), never the whole trace.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// The default values generate the bundled trace, traces/chat_small.jsonl.zst.
struct ChatConfig {
  std::uint64_t seed = 1;
  std::uint64_t requests = 0;                // number of requests in the trace; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;    // every request arrives before this time; 0 = no limit
  double sessions_per_second = 2.08;         // 1e-6 .. 1e6
  TimeNs timestamp_step = 3 * kNsPerSecond;  // arrivals are rounded down to multiples of this step; >= 1
};

class ChatGenerator final : public TraceSource {
 public:
  // Errors: FigureError (a TraceError) if a value of `config` is out of range.
  explicit ChatGenerator(const ChatConfig& config);

  // Every request has a session and a turn, both counted from 1.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override;
  double fraction_read() const override;

  std::size_t live_sessions() const { return heap_.size(); }

 private:
  struct Session {
    TimeNs time = 0;  // arrival of the next request
    std::uint64_t number = 0, turn = 0;
    Tokens input = 0, output = 0;       // of the next request
    std::vector<std::uint64_t> blocks;  // blocks that the next request shares with the previous one
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
  std::uint64_t next_block_ = 1;  // block 0 is the shared system prompt
  std::vector<Session> sessions_by_slot_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> heap_;  // slots; top: the earliest (time, number)
};

}  // namespace kvtwin
