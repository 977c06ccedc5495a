// The rules that every eviction policy keeps (docs/contributing/add-a-policy.md), tested on random traffic:
//
//   victims   While a leaf is on offer, the policy has a victim, which is on offer. Asking changes nothing.
//   repeats   Two instances of the policy decide alike on the same calls.
//   names     Other node numbers do not change a decision.
//   order     Nor does another order of the offers between two requests.
//   times     Nor do times that are ten times as long.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "policy/eviction.hpp"

namespace kvtwin {

struct EvictionRules {
  bool order = true;  // sieve needs the offer of a parent right after the offer of its child
  bool times = true;  // tide begins with a guess in seconds
  std::uint64_t traces = 60;
};

struct RulesKept {
  std::uint64_t traces = 0, requests = 0, evicted_pages = 0;
  std::vector<std::string> broken;  // a sentence for each rule that is broken: the rule, and where
};

// `make` makes a new instance of the policy.
RulesKept test_eviction_rules(const std::function<std::unique_ptr<EvictionPolicy>(const EvictionSetup&)>& make,
                              const EvictionRules& rules = {});

}  // namespace kvtwin
