// Sends the requests of one stream to several engines, by the router of policy/route (cluster.route). All inputs of a
// request go to the engine that the router chose for its arrival.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "policy/route.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

class RequestRoute final : public InputRoute {
 public:
  // `policy`: one of route_names().
  RequestRoute(std::string_view policy, const RouterSetup& setup);

  std::size_t engine_of(const Input& input) override;
  // To be called with every event of every engine: the router learns from them.
  void on_event(std::size_t engine, const Event& event);

 private:
  struct Open {
    std::size_t engine = 0;
    bool running = false;
  };

  void set_running(const RequestRecord& record, bool running);
  void ended(const RequestRecord& record);

  std::unique_ptr<Router> router_;
  std::unordered_map<RequestId, Open> open_;  // looked up only, never iterated
};

}  // namespace kvtwin
