// What hits are worth in time, by the experiment's own cost model.
#pragma once

#include "policy/base/types.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

// A pass that computes what is left of a prompt after its first `reused` tokens, alone and in one chunk.
TimeNs computing_rest(const CostModel& cost, Tokens prompt, Tokens reused);

// The prefill time that `hit` of a prompt's first tokens save. hit < prompt.
TimeNs prefill_saved_ns(const CostModel& cost, Tokens prompt, Tokens hit);

}  // namespace kvtwin
