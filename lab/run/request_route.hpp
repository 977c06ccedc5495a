// Sends the requests of one stream to several engines, by the router of policy/route (cluster.route). All inputs of a
// request go to the engine that the router chose for its arrival.
//
// With a delay, the router's view of the engines is stale: it receives each event so late, in the order of the events.
// What it has sent itself, it knows at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "policy/route.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

class RequestRoute final : public InputRoute {
 public:
  // `policy`: one of route_names(). `view_delay`: the router receives events so late.
  RequestRoute(std::string_view policy, const RouterSetup& setup, TimeNs view_delay = 0);

  std::size_t engine_of(const Input& input) override;
  // To be called with every event of every engine: the router learns from them.
  void on_event(std::size_t engine, const Event& event);

 private:
  struct Open {
    std::size_t engine = 0;
    bool running = false;
  };

  // What the router learns from an event.
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

  void set_running(const RequestRecord& record, bool running, TimeNs now);
  void ended(const RequestRecord& record, TimeNs now);
  void pages(NewsKind kind, std::size_t engine, const Event& event);
  void tell(const News& news, TimeNs now);
  void tell_router(const News& news);

  std::unique_ptr<Router> router_;
  TimeNs view_delay_;
  std::unordered_map<RequestId, Open> open_;  // looked up only, never iterated
  std::deque<LateNews> late_;
};

}  // namespace kvtwin
