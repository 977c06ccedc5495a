#include "cli/saved_time.hpp"

namespace kvtwin {

TimeNs prefill_saved_ns(const CostModel& cost, Tokens prompt, Tokens hit) {
  if (hit == 0) return 0;
  const auto pass = [&](Tokens fresh, Tokens context) {
    ForwardShape shape;
    shape.prefill_tokens = fresh;
    shape.prefill_pairs = fresh * context + fresh * (fresh + 1) / 2;
    shape.prefill_context_tokens = context;
    shape.prefill_sequences = 1;
    return cost.forward_ns(shape, 1);
  };
  return pass(prompt, 0) - pass(prompt - hit, hit);
}

}  // namespace kvtwin
