#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// Stops a wait that costs more than computing (docs/internals/cost_stop.md). Each further token takes the same time to
// read, but deep tokens take longer to compute than the first ones. So the best choice is to stop now or to wait for
// all. The choice is made again with each batch, and while a batch is late. Requests in a queue behind another
// request's batch rely on that request to give up when giving up is best for it.
class CostStop final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts& facts) const override {
    if (facts.medium == nullptr) {
      return facts.rest_ns >= facts.saves_ns ? facts.issued : facts.progress + facts.saves_ns;
    }
    if (facts.ahead.give_up < 0) {
      const Lateness::Outlook own = weigh(facts);
      return own.cost >= facts.saves_ns ? facts.issued : facts.began + own.give_up;
    }
    if (facts.ahead.wait + facts.rest_ns >= facts.saves_ns) return facts.issued;
    const TimeNs given_up = facts.began + facts.ahead.give_up;
    // After that time, the batch should have been given up but is not, because nothing asks its request. The wait so
    // far may then double.
    return given_up > facts.now ? given_up : facts.began + facts.saves_ns - facts.rest_ns;
  }
  bool weighs_costs() const override { return true; }
};

}  // namespace

std::unique_ptr<Termination> make_cost_stop_termination(const EngineConfig&, const Parameters&) {
  return std::make_unique<CostStop>();
}

}  // namespace kvtwin
