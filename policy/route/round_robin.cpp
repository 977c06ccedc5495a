#include <utility>

#include "policy/route.hpp"

namespace kvtwin {
namespace {

// One engine after the other.
class RoundRobin final : public Router {
 public:
  explicit RoundRobin(std::size_t engines) : engines_(engines) {}
  std::size_t route(const Arrival&) override { return std::exchange(next_, (next_ + 1) % engines_); }
  void ended(std::size_t) override {}

 private:
  std::size_t engines_, next_ = 0;
};

}  // namespace

std::unique_ptr<Router> make_round_robin_router(const RouterSetup& setup) {
  return std::make_unique<RoundRobin>(setup.engines);
}

}  // namespace kvtwin
