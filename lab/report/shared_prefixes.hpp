// Passes a trace on, and counts prompts that share their first tokens with an earlier prompt, but fewer tokens than a
// page has. Such a prefix never hits, whatever the sizes of the tiers.
//
// Cost: 8 bytes per distinct block that begins within the first page of a prompt.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "lab/report/answer_gaps.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class SharedPrefixes final : public TraceSource, public UserTraffic {
 public:
  // Requires: `trace` outlives this object.
  SharedPrefixes(TraceSource& trace, Tokens page_tokens);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return trace_.block_tokens(); }
  double fraction_read() const override { return trace_.fraction_read(); }
  std::vector<std::string> notes() const override { return trace_.notes(); }
  std::optional<DrawnTraffic> drawn() const override { return trace_.drawn(); }

  // The users of the trace; their requests are counted too.
  UserTraffic* user_traffic() override { return users_ == nullptr ? nullptr : this; }
  std::uint64_t users() const override { return users_->users(); }
  TimeNs first_of(std::uint64_t user) const override { return users_->first_of(user); }
  TimeNs end() const override { return users_->end(); }
  bool next_of(std::uint64_t user, TraceRequest& request) override;
  void reached(TimeNs time) override { users_->reached(time); }

  struct Below {
    std::uint64_t requests = 0;        // that share fewer tokens than a page
    Tokens tokens = 0;                 // shared by these requests
    Tokens shortest = 0, longest = 0;  // shared by one of them
    Tokens prompt = 0;                 // of all requests
  };
  const Below& below_a_page() const { return below_; }
  const AnswerGaps& answers() const { return answers_; }

 private:
  void count(const TraceRequest& request);

  TraceSource& trace_;
  UserTraffic* users_;  // of trace_, or null
  Tokens page_tokens_;
  std::unordered_set<std::uint64_t> blocks_;  // hashes of chains of blocks
  Below below_;
  AnswerGaps answers_;
};

}  // namespace kvtwin
