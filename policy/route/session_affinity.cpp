// Sends a request to the engine of its session. The first request of a session goes to the least loaded engine, and so
// does a request without a session. If the loads are uneven (cluster.route_uneven_*), the session moves to the least
// loaded engine. The load is the number of requests that were sent and have not ended. Ties go to the first engine.
#include <unordered_map>
#include <utility>

#include "policy/route.hpp"
#include "policy/route/open_requests.hpp"

namespace kvtwin {
namespace {

// Sessions remembered before the older half is forgotten.
constexpr std::size_t kMaxRememberedSessions = std::size_t{1} << 20;

class SessionAffinity final : public Router {
 public:
  explicit SessionAffinity(const RouterSetup& setup) : open_(setup) {}

  std::size_t route(const Arrival& arrival) override {
    std::size_t engine = open_.least();
    if (arrival.session != 0) {
      if (const std::size_t* home = engine_of(arrival.session);
          home != nullptr && !open_.is_gone(*home) && !open_.uneven())
        engine = *home;
      if (young_.size() >= kMaxRememberedSessions / 2 && !young_.contains(arrival.session)) {
        old_ = std::exchange(young_, {});
      }
      young_[arrival.session] = engine;
    }
    open_.sent(engine);
    return engine;
  }

  void ended(std::size_t engine) override { open_.ended(engine); }
  void gone(std::size_t engine) override { open_.gone(engine); }

 private:
  using Sessions = std::unordered_map<std::uint64_t, std::size_t>;  // looked up only, never iterated

  const std::size_t* engine_of(std::uint64_t session) const {
    for (const Sessions* sessions : {&young_, &old_}) {
      if (const auto found = sessions->find(session); found != sessions->end()) return &found->second;
    }
    return nullptr;
  }

  OpenRequests open_;
  Sessions young_, old_;
};

}  // namespace

std::unique_ptr<Router> make_session_affinity_router(const RouterSetup& setup) {
  return std::make_unique<SessionAffinity>(setup);
}

}  // namespace kvtwin
