// Groups of prompts that share a prefix: the workload on which serving engines are benchmarked most often (SGLang's
// generated-shared-prefix and its like). Every prompt is its group's prefix and a question of its own; the prompts of
// all groups come in one shuffled order. Arrivals are a Poisson process, the first at 0; or there are so many clients,
// each of which asks its next question when the last is answered (closed_loop.hpp): then a client is a session, all
// times are 0, and the n-th request is client n mod clients'. Same configuration, same bytes, on every machine.
//
// Memory: a number a request.
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
  Tokens prefix_tokens = 2048;       // of a group's prompts, the same in all
  Tokens question_tokens = 128;      // of each prompt, after the prefix; >= 1
  Tokens output_tokens = 256;        // of every answer
  double requests_per_second = 1.0;  // 1e-3 .. 1e6, without clients
  std::uint64_t clients = 0;         // 0 = by rate
};

class GroupsGenerator final : public TraceSource {
 public:
  // Of blocks: what of a prefix is less than a whole one isn't shared.
  static constexpr Tokens kBlockTokens = 16;

  // FigureError on a figure out of range; at most 10 million requests.
  explicit GroupsGenerator(const GroupsConfig& config);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

 private:
  GroupsConfig config_;
  Random random_;
  std::vector<std::uint32_t> order_;  // prompts, counted group by group
  std::uint64_t shared_blocks_ = 0, emitted_ = 0, next_block_ = 0;
  TimeNs time_ = 0;
};

}  // namespace kvtwin
