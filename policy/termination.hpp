// When a request stops waiting for its prefetch (cache.prefetch_policy). Each engine has one Termination. The
// prefetcher calls stop_at() whenever the request could be admitted and whenever the prefetch has come further; from
// that time on the prefetch is stopped, and the request is admitted with the pages that have arrived.
//
// A policy is one file, policy/termination/NAME.cpp, that defines
// std::unique_ptr<Termination> make_NAME_termination(const EngineConfig&); the build finds the file by its name.
// Times are in nanoseconds and agreed by all ranks.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/types.hpp"
#include "policy/config.hpp"
#include "policy/prefetch/lateness.hpp"

namespace kvtwin {

// What is known of a prefetch, agreed by all ranks.
struct PrefetchFacts {
  TimeNs issued = 0;      // the step's time
  Tokens hit_tokens = 0;  // 0 until a look-up has been answered
  Tokens arrived_tokens = 0;
  // Only if weighs_costs(); others' waiting is included.
  TimeNs now = 0;
  TimeNs progress = 0;  // when it was answered last
  TimeNs saves_ns = 0;  // computing what hasn't arrived (of all that was asked for, while the hit isn't known)
  // Of the tier that its next batch comes from. Null: it is being looked up.
  const Lateness* medium = nullptr;
  RequestId first = kNoRequest;       // whose batch is under way there ...
  TimeNs began = 0, unit_ns = 0;      // ... since when, and how long it should take
  TimeNs rest_ns = 0;                 // reading what comes after that, up to its own end, at the rate seen lately
  std::int64_t bearers = 1;           // it, and those behind it in the queue
  Lateness::Outlook ahead{-1, 0, 0};  // of the batch under way, if it is another's; give_up < 0: it is its own
};

constexpr TimeNs kNoStop = std::numeric_limits<TimeNs>::max();

// Requires a prefetch whose own batch is under way. Returns what waiting for it costs against computing.
inline Lateness::Outlook weigh(const PrefetchFacts& facts) {
  return facts.medium->weigh({facts.unit_ns, facts.now - facts.began, facts.bearers, facts.rest_ns, facts.saves_ns});
}

class Termination {
 public:
  virtual ~Termination() = default;
  // The request waits while the step's time is below this.
  virtual TimeNs stop_at(const PrefetchFacts& facts) const = 0;
  // True if stop_at() reads the facts from `now` on. Otherwise they are left at zero.
  virtual bool weighs_costs() const { return false; }
};

// Known names.
std::span<const std::string_view> termination_names();
// The policy that config.prefetch_policy names; null if there is none of that name.
std::unique_ptr<Termination> make_termination(const EngineConfig& config);

}  // namespace kvtwin
