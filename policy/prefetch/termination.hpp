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
