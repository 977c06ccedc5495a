// Sends a request to the engine of its session. The first request of a session goes to the least loaded engine, and so
// does a request without a session. If the loads are uneven (uneven_*), the session moves to the least
// loaded engine. The load is the number of requests that were sent and have not ended. Ties go to the first engine.
#include <cstdint>

#include "policy/base/mix.hpp"
#include "policy/route.hpp"
#include "policy/route/open_requests.hpp"
#include "policy/route/recent.hpp"

namespace kvtwin {
namespace {

struct SessionHash {
  std::size_t operator()(std::uint64_t session) const { return mixed_bits(session); }
};

constexpr std::size_t kSessions = std::size_t{1} << 19;  // remembered, of those sent last

class SessionAffinity final : public Router {
 public:
  explicit SessionAffinity(const RouterSetup& setup) : uneven_(setup.parameters), open_(setup) {}

  std::size_t route(const Arrival& arrival) override {
    std::size_t engine = open_.least();
    if (arrival.session != 0) {
      if (const std::size_t* home = homes_.find(arrival.session);
          home != nullptr && !open_.is_gone(*home) && !open_.uneven(uneven_))
        engine = *home;
      homes_.reserve(1);
      homes_.put(arrival.session, engine);
    }
    open_.sent(engine);
    return engine;
  }

  void ended(std::size_t engine) override { open_.ended(engine); }
  void gone(std::size_t engine) override { open_.gone(engine); }

 private:
  const UnevenLoads uneven_;
  OpenRequests open_;
  Recent<std::uint64_t, std::size_t, SessionHash> homes_{kSessions};  // engine by session
};

}  // namespace

std::unique_ptr<Router> make_session_affinity_router(const RouterSetup& setup) {
  return std::make_unique<SessionAffinity>(setup);
}

}  // namespace kvtwin
