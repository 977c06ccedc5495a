#include <algorithm>

#include "policy/base/wide.hpp"
#include "policy/load_back_admission.hpp"

namespace kvtwin {
namespace {

// Admits a load that takes less time than computing. A pass computes layer by layer, and each layer waits only for its
// own bytes. So computing the remaining tokens hides the loading of all layers but the first, as far as that computing
// takes.
class CostLoadBack final : public LoadBackAdmission {
 public:
  bool admits(const LoadBackOffer& offer) const override {
    const Wide layers = offer.layers;
    const Wide hidden = Wide{std::min(offer.load_ns, offer.beside_ns)} * (layers - 1) / layers;
    return offer.load_ns - hidden < offer.compute_ns;
  }
};

}  // namespace

std::unique_ptr<LoadBackAdmission> make_cost_load_back_admission(const Parameters&) {
  return std::make_unique<CostLoadBack>();
}

}  // namespace kvtwin
