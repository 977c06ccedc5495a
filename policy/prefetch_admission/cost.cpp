#include "policy/prefetch_admission.hpp"

namespace kvtwin {
namespace {

// Admits a read that takes less time than computing. Reading is free until the request would start anyway. Computing
// makes other requests wait too.
class CostPrefetch final : public PrefetchAdmission {
 public:
  bool admits(const PrefetchOffer& offer) const override { return offer.saves_ns > offer.read_ns - offer.queue_ns; }
  bool weighs_costs() const override { return true; }
  // Pages that come later mostly come too late.
  TimeNs in_flight_limit_ns() const override { return 2 * kNsPerSecond; }
};

}  // namespace

std::unique_ptr<PrefetchAdmission> make_cost_prefetch_admission(const Parameters&) {
  return std::make_unique<CostPrefetch>();
}

}  // namespace kvtwin
