#include "policy/prefetch_admission.hpp"

namespace kvtwin {
namespace {

// What takes less time than computing it. Reading is free until the request would start anyway; computing makes others
// wait too.
class CostPrefetch final : public PrefetchAdmission {
 public:
  bool admits(const PrefetchOffer& offer) const override { return offer.saves_ns > offer.read_ns - offer.queue_ns; }
  bool weighs_costs() const override { return true; }
  // What comes later mostly comes too late.
  TimeNs in_flight_limit_ns() const override { return 2 * kNsPerSecond; }
};

}  // namespace

std::unique_ptr<PrefetchAdmission> make_cost_prefetch_admission() { return std::make_unique<CostPrefetch>(); }

}  // namespace kvtwin
