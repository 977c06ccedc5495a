#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// A request waits for the end of its prefetch, however late.
class WaitComplete final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts&) const override { return kNoStop; }
};

}  // namespace

std::unique_ptr<Termination> make_wait_complete_termination(const EngineConfig&, const Parameters&) {
  return std::make_unique<WaitComplete>();
}

}  // namespace kvtwin
