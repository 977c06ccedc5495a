#include "policy/prefetch_admission.hpp"

namespace kvtwin {
namespace {

// Admits every prefetch. (Under every policy, a prefetch shorter than cache.prefetch_min_tokens is declined before.)
class ThresholdPrefetch final : public PrefetchAdmission {
 public:
  bool admits(const PrefetchOffer&) const override { return true; }
};

}  // namespace

std::unique_ptr<PrefetchAdmission> make_threshold_prefetch_admission(const Parameters&) {
  return std::make_unique<ThresholdPrefetch>();
}

}  // namespace kvtwin
