// Which engine a request goes to, where several serve one stream of requests.
//
//   round_robin       one after the other
//   prefix_affinity   where its longest known prefix was last sent, if that is at least half of its prompt and the
//                     engines' loads are even; else to the least loaded (the rule of SGLang's cache-aware router)
//
// A load is the number of requests that were sent and haven't ended. Deterministic: ties go to the first engine.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "policy/seam/substrate.hpp"

namespace kvtwin {

enum class RoutePolicy : std::uint8_t { round_robin, prefix_affinity };

class Router {
 public:
  virtual ~Router() = default;
  // Called once for each arrival, in order; the answer is below the number of engines.
  virtual std::size_t route(const Arrival& arrival) = 0;
  // A request has left the engine that it was sent to, however it ended.
  virtual void ended(std::size_t engine) = 0;
};

std::unique_ptr<Router> make_router(RoutePolicy policy, std::size_t engines);

}  // namespace kvtwin
