// Answers that later prompts contain, in a trace that does not say where: a server has their KV from decoding, and here
// their tokens are computed again.
//
// A request continues an earlier one if it has all full blocks of the earlier prompt; of one session, if both are of
// this session. The tokens between the earlier prompt and the end of the later one are its answer and a new question,
// so the answer costs at most its length. Each answer counts once.
//
// Cost: about 50 bytes per request that is not continued.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/index/node_table.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class AnswerGaps {
 public:
  void add(const TraceRequest& request, Tokens block_tokens);

  std::uint64_t requests() const { return requests_; }  // that continue another one
  Tokens tokens() const { return tokens_; }             // of the answers, at most
  Tokens prompt() const { return prompt_; }             // of all requests

 private:
  struct Earlier {
    std::uint64_t end = 0;  // hash of the prompt's full blocks, and of its session
    Tokens input = 0, output = 0;
    std::uint64_t blocks = 0;  // full ones of the prompt
    bool has_answer = false;   // the trace has the ids of the answer's blocks
  };
  static PageKey key_of(std::uint64_t end) { return {{end, 0, 0, 0}}; }
  auto end_of() const {
    return [this](NodeId id) { return key_of(earlier_[static_cast<std::size_t>(id)].end); };
  }
  void keep(const Earlier& request);

  std::vector<Earlier> earlier_;
  std::vector<NodeId> free_;  // numbers of continued requests
  NodeTable by_end_;
  std::vector<std::uint32_t> ends_at_;  // by number of full blocks: prompts of by_end_; most prefixes need no look-up
  std::uint64_t requests_ = 0;
  Tokens tokens_ = 0, prompt_ = 0;
};

}  // namespace kvtwin
