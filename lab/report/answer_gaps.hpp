// Answers that later prompts contain, in a trace that does not say where: a server has their KV from decoding, and here
// their tokens are computed again.
//
// A request continues an earlier one if it has all full blocks of the earlier prompt; of one session, if both are of
// this session. The tokens between the earlier prompt and the end of the later one are its answer and a new question,
// so the answer costs at most its length. Each answer counts once.
//
// Cost: 40 bytes per request that is not continued.
#pragma once

#include <cstdint>
#include <unordered_map>

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
    Tokens input = 0, output = 0;
    bool has_answer = false;  // the trace has the ids of the answer's blocks
  };
  std::unordered_map<std::uint64_t, Earlier> ends_;  // by the hash of a prompt's full blocks, and of its session
  std::uint64_t requests_ = 0;
  Tokens tokens_ = 0, prompt_ = 0;
};

}  // namespace kvtwin
