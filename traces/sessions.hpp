// Generates conversations from the averages that a planner knows: rate, lengths, turns, think time, shared prefix.
//
// Conversations start as a Poisson process. The number of turns is geometric. The prompt of turn n is the shared
// prefix, the new tokens of turns 1 to n, and the answers of turns 1 to n - 1. So the mean new tokens per turn follow
// from the mean prompt: (prompt_tokens - prefix_tokens - (turns - 1) * output_tokens) / turns. New tokens and answers
// are log-normal. The next turn arrives `service_s` and a log-normal think time after the last one.
//
// The trace starts in the stationary state: with the conversations that are live at time 0, each with a history and the
// rest of a think time. So all averages hold from the first second. These histories are not in the trace, and no cache
// has them. To measure a full cache, do not count the first requests (workload.warmup_requests).
//
// The same configuration generates the same bytes on every machine. Memory: about 80 bytes per live conversation.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct SessionsConfig {
  std::uint64_t seed = 1;
  std::uint64_t requests = 0;              // number of requests in the trace; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;  // every request arrives before this time; 0 = no limit
  // Averages over all requests.
  double requests_per_second = 1.0;  // 1e-3 .. 1e6
  Tokens prompt_tokens = 4'000;      // with the shared prefix and the history of the conversation
  Tokens output_tokens = 300;        // >= 1
  double turns = 4.0;                // per conversation; 1 .. 1e6
  double think_s = 60.0;             // from an answer to the next request of the conversation; 0 .. 1e6
  double service_s = 0.0;            // from a request to the end of the answer, the same for all; 0 .. 1e6
  Tokens prefix_tokens = 0;          // start of every prompt; shared by all conversations
  // Standard deviations of the logarithm, 0 .. 3; 0 = all values equal.
  double length_spread = 1.0;  // of new tokens and answers
  double think_spread = 1.0;

  // Returns the mean of the new tokens per turn; below 1 if the averages contradict each other.
  double new_tokens() const;
  // Returns the share of the requests that continue a conversation.
  double follow_up_share() const { return 1.0 - 1.0 / turns; }
  // Returns think_s, and 0 for less than a nanosecond, which no arrival shows.
  double visible_think_s() const { return think_s < 1e-9 ? 0.0 : think_s; }
  // Errors: FigureError if a value is out of range, or if the averages contradict each other.
  void check() const;
};

class SessionsGenerator final : public TraceSource {
 public:
  // Only whole blocks are shared.
  static constexpr Tokens kBlockTokens = 64;
  static constexpr double kMaxLiveTurns = 1e8;  // of all live conversations together

  // Errors: FigureError if a value of `config` is out of range, or if the live conversations have too many turns.
  explicit SessionsGenerator(const SessionsConfig& config);

  // Every request has a session and a turn, both counted from 1 within the trace. The think time of a follow-up is
  // known.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

  std::size_t live_sessions() const { return heap_.size(); }

 private:
  struct Session {
    TimeNs time = 0, think = -1;  // of the next request
    std::uint64_t number = 0, turn = 0;
    Tokens input = 0, output = 0;  // of the next request
    Random random{0};
  };

  Session new_session(TimeNs time);
  void start_live_sessions();
  void start_session();
  void draw_session_time();
  bool plan_next(Session& session) const;
  void add_turn(Session& session) const;
  Tokens length(Random& random, double mean) const;
  void push(const Session& session);
  static bool later(const Session& a, const Session& b);

  SessionsConfig config_;
  double new_tokens_ = 0;
  double follow_up_share_ = 0;
  Random arrivals_;
  TimeNs next_session_time_ = 0;
  std::uint64_t sessions_ = 0, emitted_ = 0;
  std::vector<Session> heap_;  // top: the earliest (time, number)
};

}  // namespace kvtwin
