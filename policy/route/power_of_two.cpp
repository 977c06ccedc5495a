// Draws two different engines and sends the request to the one with fewer open requests (M. Mitzenmacher, "The power of
// two choices in randomized load balancing", 2001). A tie goes to the engine that was drawn first. The draws depend on
// the seed and the number of earlier requests only.
#include "policy/base/mix.hpp"
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
    return static_cast<std::size_t>((UnsignedWide{mixed_bits(state_ += kGoldenRatio64)} * limit) >> 64);
  }

  OpenRequests open_;
  std::uint64_t state_;
};

}  // namespace

std::unique_ptr<Router> make_power_of_two_router(const RouterSetup& setup) {
  return std::make_unique<PowerOfTwo>(setup);
}

}  // namespace kvtwin
