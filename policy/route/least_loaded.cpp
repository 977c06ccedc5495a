// Sends a request to the engine with the fewest requests that were sent and have not ended. Ties go to the first
// engine.
#include "policy/route.hpp"
#include "policy/route/open_requests.hpp"

namespace kvtwin {
namespace {

class LeastLoaded final : public Router {
 public:
  explicit LeastLoaded(const RouterSetup& setup) : open_(setup) {}
  std::size_t route(const Arrival&) override {
    const std::size_t least = open_.least();
    open_.sent(least);
    return least;
  }
  void gone(std::size_t engine) override { open_.gone(engine); }
  void ended(std::size_t engine) override { open_.ended(engine); }

 private:
  OpenRequests open_;
};

}  // namespace

std::unique_ptr<Router> make_least_loaded_router(const RouterSetup& setup) {
  return std::make_unique<LeastLoaded>(setup);
}

}  // namespace kvtwin
