#include <vector>

#include "policy/base/check.hpp"
#include "policy/route.hpp"

namespace kvtwin {
namespace {

// One engine after the other.
class RoundRobin final : public Router {
 public:
  explicit RoundRobin(std::size_t engines) : gone_(engines) {}
  std::size_t route(const Arrival&) override {
    for (std::size_t i = 0; i < gone_.size(); ++i) {
      const std::size_t engine = next_;
      next_ = (next_ + 1) % gone_.size();
      if (!gone_[engine]) return engine;
    }
    KV_CHECK(false, "one engine lives");
    return 0;
  }
  void ended(std::size_t) override {}
  void gone(std::size_t engine) override { gone_[engine] = true; }

 private:
  std::vector<bool> gone_;  // by engine
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Router> make_round_robin_router(const RouterSetup& setup) {
  return std::make_unique<RoundRobin>(setup.engines);
}

}  // namespace kvtwin
