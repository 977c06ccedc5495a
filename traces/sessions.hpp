// Generates conversations from the averages that a planner knows: rate or users, lengths, turns, think time, shared
// prefix.
//
// The prompt of turn n is the shared prefix, the new tokens of turns 1 to n, and the answers of turns 1 to n - 1. So
// the mean new tokens per turn follow from the mean prompt: (prompt_tokens - prefix_tokens - (turns - 1) *
// output_tokens) / turns; or `new_tokens` gives them. New tokens, answers and think times are log-normal. The number of
// turns is geometric, or uniform from turns_least to turns_most. A conversation ends before prompt and answer exceed
// context_max; a first turn is cut to that. The next turn arrives `service_s` and a think time after the last one.
//
// By rate: conversations start as a Poisson process. With `users`: each user has one conversation after another, and
// thinks between any two requests. A closed loop (closed_loop.hpp) takes each user's requests as the answers come; the
// requests in the order of next() have `service_s` for the answers.
//
// The trace starts in the stationary state. By rate: with the conversations that are live at time 0, each with a
// history and the rest of a think time. With users: each user is in the middle of a conversation, with a turn number as
// in the long run, and starts within `start_spread_s` and the rest of a think time. So all averages hold from the first
// second. These histories are not in the trace, and no cache has them: figures of the first minutes are those of a cold
// cache.
//
// The same configuration generates the same bytes on every machine. Memory: about 100 bytes per live conversation.
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
  double requests_per_second = 1.0;  // 1e-3 .. 1e6; not used with users
  std::uint64_t users = 0;           // 0 .. 1e6; 0 = by requests_per_second
  double start_spread_s = 0;         // users: each starts within this time, 0 .. 1e6
  Tokens prompt_tokens = 4'000;      // with the shared prefix and the history of the conversation
  Tokens new_tokens = 0;             // per turn, in place of prompt_tokens; 0 = from prompt_tokens
  Tokens output_tokens = 300;        // >= 1
  double turns = 4.0;                // per conversation; 1 .. 1e6
  // Turns are uniform from least to most, in place of `turns`; 0 and 0 = geometric.
  std::uint64_t turns_least = 0, turns_most = 0;
  double think_s = 60.0;                 // from an answer to the next request of the conversation; 0 .. 1e6
  double service_s = 0.0;                // from a request to the end of the answer, the same for all; 0 .. 1e6
  Tokens prefix_tokens = 0;              // start of every prompt; shared by all conversations
  Tokens context_max = kMaxTraceTokens;  // limit of prompt + answer; more than prefix_tokens + 1
  // Standard deviations of the logarithm, 0 .. 3; 0 = all values equal.
  double length_spread = 1.0;  // of new tokens and answers
  double think_spread = 1.0;

  // Returns the mean of the new tokens per turn; below 1 if the averages contradict each other.
  double mean_new_tokens() const;
  // Returns the mean number of turns, without the effect of context_max.
  double mean_turns() const;
  // Returns the share of the requests that continue a conversation, without the effect of context_max.
  double follow_up_share() const { return 1.0 - 1.0 / mean_turns(); }
  // Returns think_s, and 0 for less than a nanosecond, which no arrival shows.
  double visible_think_s() const { return think_s < 1e-9 ? 0.0 : think_s; }
  // Errors: FigureError if a value is out of range, or if the averages contradict each other.
  void check() const;
};

class SessionsGenerator final : public TraceSource, public UserTraffic {
 public:
  // Only whole blocks are shared.
  static constexpr Tokens kBlockTokens = 64;
  static constexpr double kMaxLiveTurns = 1e8;  // of all live conversations together

  // Errors: FigureError if a value of `config` is out of range, or if the live conversations have too many turns.
  explicit SessionsGenerator(const SessionsConfig& config);

  // Every request has a session and a turn. Turns count from 1 within the trace. The think time of a follow-up is
  // known, and so are the blocks of an answer, which are part of the next turn's prompt.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;
  std::vector<std::string> notes() const override;
  std::optional<DrawnTraffic> drawn() const override { return drawn_; }

  // The traffic of users; null without users. Requires: the caller uses either this or next().
  UserTraffic* user_traffic() override { return config_.users == 0 ? nullptr : this; }
  std::uint64_t users() const override { return config_.users; }
  TimeNs first_of(std::uint64_t user) const override { return heap_[user].time; }
  TimeNs end() const override;
  bool next_of(std::uint64_t user, TraceRequest& request) override;
  void reached(TimeNs time) override { reached_ = time; }

  std::size_t live_sessions() const { return heap_.size(); }

 private:
  struct Session {
    TimeNs time = 0, think = -1;  // of the next request
    std::uint64_t number = 0, turn = 0;
    std::uint64_t user = 0, left = 0;  // left: turns after the next request, if turns are uniform
    Tokens input = 0, output = 0;      // of the next request
    Tokens added = 0;                  // new tokens of the next request
    std::uint64_t turns = 0;           // so far, with the next request and those before the trace
    Random random{0};
  };

  Session new_session(TimeNs time, std::uint64_t number);
  Session next_of_user(const Session& last);
  void start_live_sessions();
  void start_users();
  double draw_think(Random& random, bool length_biased) const;
  void emit(Session& session, TraceRequest& request);
  enum class Goes : std::uint8_t { on, ended, cut };  // cut: by context_max
  Goes goes(Session& session) const;
  bool goes_on(Session& session) const { return goes(session) == Goes::on; }
  void count(const Session& session);
  void start_session();
  void draw_session_time();
  bool plan_next(Session& session);
  void add_turn(Session& session) const;
  Tokens length(Random& random, double mean) const;
  void push(const Session& session);
  static bool later(const Session& a, const Session& b);

  SessionsConfig config_;
  double new_tokens_ = 0;
  double follow_up_share_ = 0;
  Random arrivals_;
  TimeNs next_session_time_ = 0;
  TimeNs reached_ = 0;
  std::uint64_t sessions_ = 0, emitted_ = 0;
  DrawnTraffic drawn_;
  std::vector<Session> heap_;  // top: the earliest (time, number); for next_of(): by user
};

}  // namespace kvtwin
