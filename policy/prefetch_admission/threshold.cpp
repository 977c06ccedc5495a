#include "policy/prefetch_admission.hpp"

namespace kvtwin {
namespace {

// All but what is shorter than cache.prefetch_min_tokens, which holds under every policy.
class ThresholdPrefetch final : public PrefetchAdmission {
 public:
  bool admits(const PrefetchOffer&) const override { return true; }
};

}  // namespace

std::unique_ptr<PrefetchAdmission> make_threshold_prefetch_admission() { return std::make_unique<ThresholdPrefetch>(); }

}  // namespace kvtwin
