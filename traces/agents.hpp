// Generates the traffic of coding agents, with the statistics of 710 measured sessions of Claude Code.
//
// Every prompt of a session begins with a prefix of tools and instructions. Some hundred prefixes exist: a few are in
// many sessions, most are in one session. Each user message, and each tool call after the message, makes the prompt
// longer. Now and then a prompt is cut back to its prefix. A few sessions start a helper agent with its own session.
// The same configuration generates the same bytes on every machine.
//
// Memory: the live sessions (about 150 at the default rate), never the whole trace.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct AgentsConfig {
  std::uint64_t seed = 1;
  std::uint64_t requests = 0;               // number of requests in the trace; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;   // every request arrives before this time; 0 = no limit
  double sessions_per_second = 1.0 / 30.0;  // rate of a Poisson process; 1e-6 .. 1e6
};

class AgentsGenerator final : public TraceSource {
 public:
  static constexpr Tokens kBlockTokens = 64;

  // Errors: FigureError (a TraceError) if a value of `config` is out of range.
  explicit AgentsGenerator(const AgentsConfig& config);

  // Every request has a session and a turn, both counted from 1. The type is 1 for a user message, 2 for a tool result.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

  std::size_t live_sessions() const { return heap_.size(); }

 private:
  struct Session {
    TimeNs time = 0;    // arrival of the next request
    TimeNs think = -1;  // think time before the next request
    std::uint64_t number = 0, turn = 0;
    std::uint64_t requests_left = 0;   // includes the next request
    std::uint64_t rounds_left = 0;     // tool rounds until the next user message
    std::uint64_t helper_at_turn = 0;  // the turn that starts a helper agent; 0 = no helper
    bool by_tool = false;              // the next request is a tool result
    Tokens prefix = 0, input = 0, output = 0;
    std::vector<std::uint64_t> blocks;  // blocks that the next request shares with the previous one
    Random random{0};
  };

  void start_session();
  void start_helper(const Session& of);
  void add(std::unique_ptr<Session> session);
  void take_prefix(Session& session, std::uint64_t variant) const;
  void plan_next(Session& session) const;
  void cut_back(Session& session) const;
  static bool later(const std::unique_ptr<Session>& a, const std::unique_ptr<Session>& b);

  AgentsConfig config_;
  Random arrivals_;
  std::vector<double> variant_weight_sums_;  // per prefix variant: sum of the weights of variants 0 .. i
  TimeNs next_session_time_ = 0;
  std::uint64_t sessions_ = 0, emitted_ = 0, next_block_ = 0;
  std::vector<std::unique_ptr<Session>> heap_;  // top: the earliest (time, number)
};

}  // namespace kvtwin
