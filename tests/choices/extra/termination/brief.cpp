#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// A request waits at most 5 ms for its prefetch.
class Brief final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts& facts) const override { return facts.issued + 5'000'000; }
};

}  // namespace

std::unique_ptr<Termination> make_brief_termination(const EngineConfig&, const Parameters&) {
  return std::make_unique<Brief>();
}

}  // namespace kvtwin
