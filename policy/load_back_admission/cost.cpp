#include <algorithm>

#include "policy/base/wide.hpp"
#include "policy/load_back_admission.hpp"

namespace kvtwin {
namespace {

// What takes less time than computing it. A pass computes layer by layer, and each waits for its own bytes only: what
// computing the rest takes hides all of the loading but the first layers', and no more of it than that takes.
class CostLoadBack final : public LoadBackAdmission {
 public:
  bool admits(const LoadBackOffer& offer) const override {
    const Wide layers = offer.layers;
    const Wide hidden = Wide{std::min(offer.load_ns, offer.beside_ns)} * (layers - 1) / layers;
    return offer.load_ns - hidden < offer.compute_ns;
  }
};

}  // namespace

std::unique_ptr<LoadBackAdmission> make_cost_load_back_admission() { return std::make_unique<CostLoadBack>(); }

}  // namespace kvtwin
