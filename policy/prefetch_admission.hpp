// Which prefixes in a storage tier are worth a prefetch (cache.prefetch_admission). Each engine has one
// PrefetchAdmission. The prefetcher calls admits() twice for each prefetch: before the look-up, with all pages that L1
// and L2 lack and the fastest tier's rate, and after it, with the pages that were found and their tiers' rates.
//
// The policy comes last: a prefix shorter than cache.prefetch_min_tokens, or below pages that L2 lacks, is declined
// before. A policy is one file, policy/prefetch_admission/NAME.cpp, that defines
// std::unique_ptr<PrefetchAdmission> make_NAME_prefetch_admission(const Parameters&); the build finds the file by its
// name. Times are in nanoseconds and agreed by all ranks.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct PrefetchOffer {
  Tokens from = 0, to = 0;  // tokens of the prompt that would be read
  // Only if weighs_costs(); else zero.
  TimeNs read_ns = 0;   // reading these tokens, after all that the tiers read before, at the recent rates
  TimeNs queue_ns = 0;  // estimated time until the request would start without the prefetch
  TimeNs saves_ns = 0;  // computing the tokens instead, once for each request that would wait meanwhile
};

class PrefetchAdmission {
 public:
  virtual ~PrefetchAdmission() = default;
  // Returns whether to read the tokens.
  virtual bool admits(const PrefetchOffer& offer) const = 0;
  // True if admits() reads the times of an offer: the scheduler then estimates each request's time in the queue.
  virtual bool weighs_costs() const { return false; }
  // Returns the reading time, at the recent rates, that all prefetches in flight to L2 may take at most. Applies beside
  // the limit cache.rules.prefetch_host_share of L2's pages. 0 = no such limit.
  virtual TimeNs in_flight_limit_ns() const { return 0; }
};

// Known names.
std::span<const std::string_view> prefetch_admission_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault.
std::unique_ptr<PrefetchAdmission> make_prefetch_admission(std::string_view text);

}  // namespace kvtwin
