// Generates groups of prompts that share a prefix: the most common benchmark of serving engines (for example SGLang's
// generated-shared-prefix; without a prefix, the random prompts of SGLang's and vLLM's serving benchmarks).
//
// A prompt is the prefix of a group and a unique question. The prompts of all groups are shuffled into one order.
// Requests send the prompts in this order. After the last prompt, the first one follows again. Without clients,
// arrivals are a Poisson process, and the first request arrives at time 0. With `clients`, a client sends the next
// question when the previous answer is complete (closed_loop.hpp): a client is a session, all times in the trace are 0,
// and request n belongs to client n mod `clients`. The same configuration generates the same bytes on every machine.
//
// Lengths: with a `range_ratio` r below 1, a length is drawn from [max(1, floor(r * L)), L], and all lengths are
// equally likely: the meaning of --random-range-ratio and --gsp-range-ratio in SGLang. vLLM draws from [(1 - x) * L,
// (1 + x) * L]: L of vLLM * (1 + x) is L here, and (1 - x) / (1 + x) is r. A group has one length of the prefix, and a
// prompt has one length of the question and one of the answer, also when the prompt is sent again.
//
// Memory: 4 bytes per prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct GroupsConfig {
  // A part of the requests with a rate of its own.
  struct Rate {
    std::uint64_t requests = 0;
    double requests_per_second = 1.0;
  };

  std::uint64_t seed = 1;
  std::uint64_t groups = 64;
  std::uint64_t prompts_per_group = 16;
  std::uint64_t requests = 0;        // 0 = each prompt once
  Tokens prefix_tokens = 2048;       // shared by the prompts of a group
  Tokens question_tokens = 128;      // per prompt, after the prefix; 0: the prompts of a group are equal
  Tokens output_tokens = 256;        // per answer
  double range_ratio = 1.0;          // smallest length / largest length; 0 .. 1
  double requests_per_second = 1.0;  // used without clients; 1e-3 .. 1e6
  std::vector<Rate> rates;           // the rates of the first requests; requests_per_second is the rate after them
  std::uint64_t clients = 0;         // 0 = arrivals by the rate
};

class GroupsGenerator final : public TraceSource {
 public:
  // Only whole blocks of a prefix are shared.
  static constexpr Tokens kBlockTokens = 16;

  // Errors: FigureError if a value of `config` is out of range. At most 10 million prompts.
  explicit GroupsGenerator(const GroupsConfig& config);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

 private:
  Tokens length(Tokens most, std::uint64_t of) const;
  double rate_of_next();

  GroupsConfig config_;
  Random random_;
  std::vector<std::uint32_t> order_;  // prompt numbers, shuffled; prompt p is in group p / prompts_per_group
  std::uint64_t requests_ = 0;
  // Ids: group g has the blocks from g * shared_blocks_, the prompt at place n of order_ those from
  // first_own_block_ + n * own_blocks_.
  std::uint64_t shared_blocks_ = 0, own_blocks_ = 0, first_own_block_ = 0, emitted_ = 0;
  std::size_t rate_ = 0;            // index in config_.rates of the current rate
  std::uint64_t sent_at_rate_ = 0;  // requests that were emitted at the current rate
  TimeNs time_ = 0;
};

}  // namespace kvtwin
