// When a request stops waiting for its prefetch (cache.prefetch_policy). Each engine has one Termination. The
// prefetcher calls stop_at() whenever the request could be admitted, and whenever the prefetch has made progress. From
// the returned time on, the prefetch is stopped, and the request is admitted with the pages that have arrived.
//
// A policy is one file, policy/termination/NAME.cpp, that defines
// std::unique_ptr<Termination> make_NAME_termination(const EngineConfig&, const Parameters&); the build finds the file
// by its name. Times are in nanoseconds and agreed by all ranks.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"
#include "policy/config.hpp"
#include "policy/prefetch/lateness.hpp"

namespace kvtwin {

// What is known about a prefetch, agreed by all ranks. docs/internals/cost_stop.md explains the costs.
struct PrefetchFacts {
  TimeNs issued = 0;        // time of the step
  Tokens asked_tokens = 0;  // tokens that the first prefetch that the request waited for was to bring
  Tokens arrived_tokens = 0;
  Tokens read_tokens = 0;  // 0 until the look-up's answer, then the tokens found for which L2 has room
  TimeNs waits_since = 0;  // time of the first step in which only a prefetch held the request back
  // All below: only if weighs_costs(). Costs include the delay of other requests.
  TimeNs now = 0;
  TimeNs progress = 0;  // time of the last answer
  TimeNs saves_ns = 0;  // time to compute the pages that have not arrived; all requested pages during the look-up
  // Lateness of the tier that the next batch comes from; null during the look-up.
  const Lateness* medium = nullptr;
  RequestId first = kNoRequest;   // the request whose batch that tier is reading ...
  TimeNs began = 0, unit_ns = 0;  // ... since when, and the time that the batch should take
  TimeNs rest_ns = 0;        // time to read what comes after that batch, up to the prefetch's end, at the recent rate
  std::int64_t bearers = 1;  // this request and the requests behind it in the read queue
  Lateness::Outlook ahead{-1, 0, 0};  // of that batch if it is another request's; give_up < 0: it is this request's
};

constexpr TimeNs kNoStop = std::numeric_limits<TimeNs>::max();

// Requires: the batch being read is this request's. Returns the best time to give up, and the mean wait and cost.
inline Lateness::Outlook weigh(const PrefetchFacts& facts) {
  return facts.medium->weigh({facts.unit_ns, facts.now - facts.began, facts.bearers, facts.rest_ns, facts.saves_ns});
}

class Termination {
 public:
  virtual ~Termination() = default;
  // Returns the time from which on the request no longer waits, compared with the step's time.
  virtual TimeNs stop_at(const PrefetchFacts& facts) const = 0;
  // True: a request whose prefetch was stopped gets no further prefetch in this wait, because its time is used up.
  virtual bool stop_is_final() const { return true; }
  // True if stop_at() reads the facts from `now` on. Otherwise these facts are zero.
  virtual bool weighs_costs() const { return false; }
};

// Known names.
std::span<const std::string_view> termination_names();
// Returns the policy of config.prefetch_policy, a name with parameters or without; null for a text with a fault.
std::unique_ptr<Termination> make_termination(const EngineConfig& config);

}  // namespace kvtwin
