#include "lab/names.hpp"

namespace kvtwin {

std::string_view name_of(Tier tier) { return static_cast<std::size_t>(tier) < kTiers ? spec_of(tier).name : "unknown"; }

std::string_view name_of(PrefetchPolicy policy) {
  switch (policy) {
    case PrefetchPolicy::best_effort: return "best_effort";
    case PrefetchPolicy::wait_complete: return "wait_complete";
    case PrefetchPolicy::timeout: return "timeout";
    case PrefetchPolicy::cost_stop: return "cost_stop";
  }
  return "unknown";
}

}  // namespace kvtwin
