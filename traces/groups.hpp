// Generates groups of prompts that share a prefix: the most common benchmark of serving engines (for example SGLang's
// generated-shared-prefix).
//
// A prompt is the prefix of a group and a unique question. The prompts of all groups are shuffled into one order.
// Without clients, arrivals are a Poisson process, and the first request arrives at time 0. With `clients`, a client
// sends the next question when the previous answer is complete (closed_loop.hpp): a client is a session, all times in
// the trace are 0, and request n belongs to client n mod `clients`. The same configuration generates the same bytes on
// every machine.
//
// Memory: 4 bytes per request.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct GroupsConfig {
  std::uint64_t seed = 1;
  std::uint64_t groups = 64;
  std::uint64_t prompts_per_group = 16;
  Tokens prefix_tokens = 2048;       // shared by the prompts of a group
  Tokens question_tokens = 128;      // per prompt, after the prefix; >= 1
  Tokens output_tokens = 256;        // per answer
  double requests_per_second = 1.0;  // used without clients; 1e-3 .. 1e6
  std::uint64_t clients = 0;         // 0 = arrivals by requests_per_second
};

class GroupsGenerator final : public TraceSource {
 public:
  // Only whole blocks of a prefix are shared.
  static constexpr Tokens kBlockTokens = 16;

  // Errors: FigureError if a value of `config` is out of range. At most 10 million requests.
  explicit GroupsGenerator(const GroupsConfig& config);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

 private:
  GroupsConfig config_;
  Random random_;
  std::vector<std::uint32_t> order_;  // prompt numbers, shuffled; prompt p is in group p / prompts_per_group
  std::uint64_t shared_blocks_ = 0, emitted_ = 0, next_block_ = 0;
  TimeNs time_ = 0;
};

}  // namespace kvtwin
