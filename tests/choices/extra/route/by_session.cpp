#include "policy/route.hpp"

namespace kvtwin {
namespace {

// All requests of a session go to one engine.
class BySession final : public Router {
 public:
  explicit BySession(std::size_t engines) : engines_(engines) {}
  std::size_t route(const Arrival& arrival) override { return arrival.session % engines_; }
  void ended(std::size_t) override {}

 private:
  std::size_t engines_;
};

}  // namespace

std::unique_ptr<Router> make_by_session_router(const RouterSetup& setup) {
  return std::make_unique<BySession>(setup.engines);
}

}  // namespace kvtwin
