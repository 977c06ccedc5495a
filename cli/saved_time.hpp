// What hits are worth in time, by the experiment's own cost model.
#pragma once

#include "policy/cost.hpp"
#include "policy/types.hpp"

namespace kvtwin {

// The prefill time that `hit` of a prompt's first tokens save: a pass of the whole prompt, alone and in one chunk, less
// one of the rest of it after them. hit < prompt.
TimeNs prefill_saved_ns(const CostModel& cost, Tokens prompt, Tokens hit);

}  // namespace kvtwin
