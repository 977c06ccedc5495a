#include "policy/load_back_admission.hpp"

namespace kvtwin {
namespace {

// Admits every load. (Under every policy, a hit shorter than cache.load_back_min_tokens is declined before.)
class ThresholdLoadBack final : public LoadBackAdmission {
 public:
  bool admits(const LoadBackOffer&) const override { return true; }
};

}  // namespace

std::unique_ptr<LoadBackAdmission> make_threshold_load_back_admission(const Parameters&) {
  return std::make_unique<ThresholdLoadBack>();
}

}  // namespace kvtwin
