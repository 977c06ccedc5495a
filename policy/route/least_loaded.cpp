// Sends a request to the engine with the fewest requests that were sent and have not ended. Ties go to the first
// engine.
#include <algorithm>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/route.hpp"

namespace kvtwin {
namespace {

class LeastLoaded final : public Router {
 public:
  explicit LeastLoaded(std::size_t engines) : loads_(engines, 0) {}
  std::size_t route(const Arrival&) override {
    const auto least = std::ranges::min_element(loads_);
    ++*least;
    return static_cast<std::size_t>(least - loads_.begin());
  }
  void gone(std::size_t engine) override { loads_[engine] += kDead; }
  void ended(std::size_t engine) override {
    KV_CHECK(loads_[engine] > 0, "a request ends once");
    --loads_[engine];
  }

 private:
  static constexpr std::uint64_t kDead = std::uint64_t{1} << 40;  // more than any load
  std::vector<std::uint64_t> loads_;
};

}  // namespace

std::unique_ptr<Router> make_least_loaded_router(const RouterSetup& setup) {
  return std::make_unique<LeastLoaded>(setup.engines);
}

}  // namespace kvtwin
