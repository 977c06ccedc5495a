// Draws two different engines and sends the request to the one with fewer open requests (M. Mitzenmacher, "The power of
// two choices in randomized load balancing", 2001). A tie goes to the engine that was drawn first. The draws depend on
// the seed and the number of earlier requests only.
#include "policy/base/wide.hpp"
#include "policy/route.hpp"
#include "policy/route/open_requests.hpp"

namespace kvtwin {
namespace {

class PowerOfTwo final : public Router {
 public:
  explicit PowerOfTwo(const RouterSetup& setup) : open_(setup), state_(setup.seed) {}

  std::size_t route(const Arrival&) override {
    std::size_t engine = draw_below(open_.engines());
    if (open_.engines() > 1) {
      std::size_t other = draw_below(open_.engines() - 1);
      if (other >= engine) ++other;
      if (open_.of(other) < open_.of(engine)) engine = other;
    }
    open_.sent(engine);
    return engine;
  }

  void ended(std::size_t engine) override { open_.ended(engine); }
  void gone(std::size_t engine) override { open_.gone(engine); }

 private:
  // SplitMix64, scaled to [0, limit).
  std::size_t draw_below(std::size_t limit) {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    return static_cast<std::size_t>((UnsignedWide{x} * limit) >> 64);
  }

  OpenRequests open_;
  std::uint64_t state_;
};

}  // namespace

std::unique_ptr<Router> make_power_of_two_router(const RouterSetup& setup) {
  return std::make_unique<PowerOfTwo>(setup);
}

}  // namespace kvtwin
