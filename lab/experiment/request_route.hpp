// Sends the requests of one stream to several engines, by the routers of policy/route. Without roles, all inputs of a
// request go to the engine that the router of cluster.route chose for its arrival. With roles, a request goes to a
// prefill engine (cluster.route) and to a decode engine (cluster.decode_route), or if it is short, as a whole to a
// decode engine. The requests of a dead engine that have not ended are sent again.
//
// With a delay, the routers' view of the engines is stale: they receive each event so late, in the order of the events.
// What they have sent themselves, they know at once. With the loss of an engine, they learn all that is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  // `policy`: one of route_names(). `setup`: of all engines, or with roles of the prefill engines. `view_delay`: the
  // routers receive events so late.
  RequestRoute(std::string_view policy, const RouterSetup& setup, TimeNs view_delay = 0, const RouteRoles& roles = {});

  Way way_of(const Input& input) override;
  void engine_lost(std::size_t engine) override;
  bool sent_again(Input& input) override;
  // From now on, engine_lost() calls `lost` first.
  void tell_losses_to(std::function<void(std::size_t engine)> lost) { lost_ = std::move(lost); }
  // To be called with every event of every engine: the router learns from them.
  void on_event(std::size_t engine, const Event& event);

  // Whether on_event() needs the events about pages.
  bool follows_pages() const;

 private:
  // A request, or a part of one, on an engine.
  struct Part {
    std::size_t engine = kNoEngine;  // kNoEngine: there is none, or it has ended
    bool running = false;
    std::size_t chosen = kNoEngine;  // by the router: another one if that is dead
  };
  struct Kept {
    Arrival arrival;
    std::vector<PageKey> keys;
    bool aborted = false;  // its client has gone: the abort is sent again, too
  };
  struct Open {
    Part main;     // the whole request, or its decode part
    Part prefill;  // its prefill part
    std::uint32_t attempt = 0;
    Kept kept;
  };

  // What a router learns from an event.
  enum class NewsKind : std::uint8_t { admitted, left, ended, stored, removed, stored_for_all };
  struct News {
    NewsKind kind = NewsKind::ended;
    std::size_t engine = 0;
    Tokens prompt = 0;
    Tier tier = Tier::device;
    std::span<const PageKey> keys{};  // borrowed for the call
  };
  struct LateNews {
    TimeNs due = 0;
    News news;
    std::vector<PageKey> keys;
  };

  bool decodes(std::size_t engine) const { return roles_.prefill != 0 && engine >= roles_.prefill; }
  Router& router_of(std::size_t engine) { return decodes(engine) ? *decode_router_ : *router_; }
  // The number of the engine in its group.
  std::size_t place_of(std::size_t engine) const { return decodes(engine) ? engine - roles_.prefill : engine; }
  Part choose(Router& router, std::size_t first, std::size_t engines, const Arrival& arrival);
  void set_running(Part& part, Tokens prompt, bool running, TimeNs now);
  void end(Part& part, Tokens prompt, TimeNs now);
  void ended(std::size_t engine, const RequestRecord& record, TimeNs now);
  void pages(NewsKind kind, std::size_t engine, const Event& event);
  void tell(const News& news, TimeNs now);
  void tell_router(const News& news);
  void tell_late_news(TimeNs until);

  RouteRoles roles_;
  std::size_t engines_;
  std::unique_ptr<Router> router_, decode_router_;
  TimeNs view_delay_;
  std::map<RequestId, Open> open_;
  std::deque<LateNews> late_;
  std::vector<bool> dead_;                 // by engine
  std::function<void(std::size_t)> lost_;  // or empty
  std::deque<Kept> again_;
  Kept sent_;  // the arrival that was sent again last
  std::uint64_t stand_ins_ = 0;
};

}  // namespace kvtwin
