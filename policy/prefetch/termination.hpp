// When a request stops waiting for its prefetch. One policy an engine; asked whenever the request could be admitted
// and whenever the prefetch has come further.
#pragma once

#include <limits>
#include <memory>

#include "policy/engine.hpp"
#include "policy/types.hpp"

namespace kvtwin {

// What is known of a prefetch, agreed by all ranks.
struct PrefetchFacts {
  TimeNs issued = 0;      // the step's time
  Tokens hit_tokens = 0;  // 0 until a look-up has been answered
  Tokens arrived_tokens = 0;
  // What cost_stop weighs: computing what hasn't arrived (of the hit; of all that was asked for while that isn't
  // known), others' waiting for it included; reading it, with what is before it in the queues, at the rate seen lately;
  // and reading it alone at the rate that the medium is said to have.
  TimeNs saves_ns = 0, takes_ns = 0;
  TimeNs saves_alone_ns = 0, takes_alone_ns = 0;  // where nobody else waits for the medium
  TimeNs progress = 0;                            // the step in which something arrived last
  TimeNs silence_ns = 0;                          // how long the medium's have been that ended
  TimeNs patience_ns = 0;                         // without a sign of life isn't silence yet
};

constexpr TimeNs kNoStop = std::numeric_limits<TimeNs>::max();

class Termination {
 public:
  virtual ~Termination() = default;
  // The request waits while the step's time is below this.
  virtual TimeNs stop_at(const PrefetchFacts& facts) const = 0;
};

std::unique_ptr<Termination> make_termination(const EngineConfig& config);

}  // namespace kvtwin
