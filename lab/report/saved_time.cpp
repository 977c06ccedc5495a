#include "lab/report/saved_time.hpp"

namespace kvtwin {

TimeNs computing_rest(const CostModel& cost, Tokens prompt, Tokens reused) {
  const Tokens rest = prompt - reused;
  ForwardShape shape;
  shape.prefill_tokens = rest;
  shape.prefill_pairs = rest * reused + rest * (rest + 1) / 2;
  shape.prefill_context_tokens = reused;
  shape.prefill_sequences = 1;
  return cost.forward_ns(shape, 1);
}

TimeNs prefill_saved_ns(const CostModel& cost, Tokens prompt, Tokens hit) {
  return hit == 0 ? 0 : computing_rest(cost, prompt, 0) - computing_rest(cost, prompt, hit);
}

}  // namespace kvtwin
