// Agentic coding, shaped after 710 measured sessions of Claude Code: a session's prompts begin with one of some hundred
// sets of tools and instructions (few are in many sessions, most in one), grow with each user's message and the tool
// calls that follow it, and are cut back now and then; a few sessions have an agent of their own work for them. Same
// configuration, same bytes, on every machine.
//
// Memory: the sessions under way (about 150 at the default rate), never the trace.
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
  std::uint64_t requests = 0;               // ends after so many; 0 = no limit
  TimeNs duration = 3'600 * kNsPerSecond;   // ends before this time; 0 = no limit
  double sessions_per_second = 1.0 / 30.0;  // a Poisson process; 1e-6 .. 1e6
};

class AgentsGenerator final : public TraceSource {
 public:
  static constexpr Tokens kBlockTokens = 64;

  // TraceError on a figure out of range.
  explicit AgentsGenerator(const AgentsConfig& config);

  // Requests with session and turn, both from 1; the type is 1 of a user's message, 2 of a tool's result.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

  std::size_t live_sessions() const { return heap_.size(); }

 private:
  struct Session {
    TimeNs time = 0;    // of its next request
    TimeNs think = -1;  // before it
    std::uint64_t number = 0, turn = 0;
    std::uint64_t requests = 0;   // still to come, the next one among them
    std::uint64_t rounds = 0;     // of tools, until the user's next message
    std::uint64_t helper_at = 0;  // the request that calls an agent; 0 = none does
    bool by_tool = false;         // the next request is
    Tokens prefix = 0, input = 0, output = 0;
    std::vector<std::uint64_t> blocks;  // those that the next request keeps
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
  std::vector<double> variants_;  // of prefixes: the share of those up to each
  TimeNs next_session_time_ = 0;
  std::uint64_t sessions_ = 0, emitted_ = 0, next_block_ = 0;
  std::vector<std::unique_ptr<Session>> heap_;  // the earliest (time, number) on top
};

}  // namespace kvtwin
