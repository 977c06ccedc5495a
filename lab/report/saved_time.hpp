// The prefill time that hits save, by the experiment's cost model.
#pragma once

#include "policy/base/types.hpp"
#include "policy/seam/cost.hpp"

namespace kvtwin {

// Returns the time of one pass, alone and in one chunk, over a prompt without its first `reused` tokens.
TimeNs computing_rest(const CostModel& cost, Tokens prompt, Tokens reused);

// Returns the prefill time that a hit of the first `hit` tokens of a prompt saves. Requires: hit < prompt.
TimeNs prefill_saved_ns(const CostModel& cost, Tokens prompt, Tokens hit);

}  // namespace kvtwin
