// Sends the requests of one stream to several engines, by the routers of policy/route. Without roles, all inputs of a
// request go to the engine that the router of cluster.route chose for its arrival. With roles, a request goes to a
// prefill engine (cluster.route) and to a decode engine (cluster.decode_route), or if it is short, as a whole to a
// decode engine. The requests of a dead engine that have not ended are sent again.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/route.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

// The first `prefill` engines prefill, the others decode.
struct RouteRoles {
  std::size_t prefill = 0;  // 0 = no engine has a role
  std::string decode_policy = "least_loaded";
  RouterSetup decode;
  Tokens min_tokens = 0;     // shorter prompts stay whole
  bool engines_die = false;  // keeps what a request that is sent again needs
};

class RequestRoute final : public InputRoute {
 public:
  // `policy`: one of route_names(). `setup`: of all engines, or with roles of the prefill engines.
  RequestRoute(std::string_view policy, const RouterSetup& setup, const RouteRoles& roles = {});

  std::size_t engine_of(const Input& input) override { return way_of(input).engine; }
  Way way_of(const Input& input) override;
  void engine_lost(std::size_t engine) override;
  bool sent_again(Input& input) override;
  // To be called with every event of every engine: the router learns from them.
  void on_event(std::size_t engine, const Event& event);

  std::uint64_t sent_again_count() const { return resent_; }

 private:
  // A request, or a part of one, on an engine.
  struct Part {
    std::size_t engine = kNoEngine;  // kNoEngine: there is none, or it has ended
    bool running = false;
    std::size_t place = 0;  // the engine's number for the router
  };
  struct Kept {
    Arrival arrival;
    std::vector<PageKey> keys;
  };
  struct Open {
    Part main;     // the whole request, or its decode part
    Part prefill;  // its prefill part
    std::uint32_t attempt = 0;
    Kept kept;
  };

  bool decodes(std::size_t engine) const { return roles_.prefill != 0 && engine >= roles_.prefill; }
  Router& router_of(std::size_t engine) { return decodes(engine) ? *decode_router_ : *router_; }
  // The number of the engine in its group.
  std::size_t place_of(std::size_t engine) const { return decodes(engine) ? engine - roles_.prefill : engine; }
  Part choose(Router& router, std::size_t first, std::size_t engines, const Arrival& arrival);
  void set_running(Part& part, const RequestRecord& record, bool running);
  void end(Part& part, Tokens prompt);
  void ended(std::size_t engine, const RequestRecord& record);

  RouteRoles roles_;
  std::size_t engines_;
  std::unique_ptr<Router> router_, decode_router_;
  std::map<RequestId, Open> open_;
  std::vector<bool> dead_;  // by engine
  std::deque<Kept> again_;
  Kept sent_;
  std::uint64_t resent_ = 0, stand_ins_ = 0;
};

}  // namespace kvtwin
