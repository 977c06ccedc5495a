#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// No request waits.
class BestEffort final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts& facts) const override { return facts.issued; }
  bool stop_is_final() const override { return false; }
};

}  // namespace

std::unique_ptr<Termination> make_best_effort_termination(const EngineConfig&, const Parameters&) {
  return std::make_unique<BestEffort>();
}

}  // namespace kvtwin
