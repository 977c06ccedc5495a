// Upper bound of the hits of a model with recurrent states, which needs a state at exactly the end of a hit. No time
// passes.
//
// Assumed, in favour of the cache: each turn may leave a state at every depth of its path, and at its very end; pages
// are never short; a running request needs no state of its own. So the only limit is that at most `states` states are
// kept between two turns.
//
// A hit of depth d needs the state at d, kept since the last end of a turn whose path has this prefix. The deeper d,
// the earlier this end. So a hit keeps a slot over one interval that ends with the turn. A deeper hit keeps the slot
// over a longer interval, whose further part earns the difference of the depths. The flow of highest earnings
// (flow.hpp) bounds every cache, because the parts that a hit needs are intervals of the flow. It may be above the
// optimum: the flow can also keep a further part without the part that ends with the turn.
#pragma once

#include <cstdint>
#include <span>

#include "policy/base/types.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

// Returns the bound in blocks, over all turns. `ends`: by turn, the last turn that began before this one ended; at
// least the turn itself. Cost: O(blocks of all turns), and the flow.
std::uint64_t opt_state_hits(const RequestLog& log, std::span<const Turn> turns, std::span<const std::uint32_t> ends,
                             Pages states);

}  // namespace kvtwin
