#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// Waiting for the next token costs as much as for any other, computing deep ones costs more than the first: so the best
// is to stop now or to wait for all, weighed anew with each batch, and while one is late. Those in a queue behind
// another's batch count on him to give it up when that is best for him.
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
    // It should have been and isn't, as nobody asks him. What it has taken so far it may take again.
    return given_up > facts.now ? given_up : facts.began + facts.saves_ns - facts.rest_ns;
  }
  bool weighs_costs() const override { return true; }
};

}  // namespace

std::unique_ptr<Termination> make_cost_stop_termination(const EngineConfig&) { return std::make_unique<CostStop>(); }

}  // namespace kvtwin
