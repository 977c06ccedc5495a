// A router whose view of the engines is stale.
#include "lab/experiment/request_route.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtwin::test {
namespace {

constexpr TimeNs kDelay = 1000;

class StaleRoute : public testing::Test {
 protected:
  std::size_t send(RequestRoute& route, RequestId request, TimeNs now, std::span<const PageKey> keys = {}) {
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = arrival.output_tokens = 1;
    arrival.keys = keys;
    return route.way_of(Input{now, arrival}).engine;
  }
  static void happened(RequestRoute& route, std::size_t engine, EventKind kind, RequestId request, TimeNs now) {
    RequestRecord record;
    record.request = request;
    record.prompt_tokens = 1;
    route.on_event(engine, {.kind = kind, .time = now, .record = &record});
  }
};

TEST_F(StaleRoute, An_end_is_seen_after_the_delay) {
  for (const TimeNs delay : {TimeNs{0}, kDelay}) {
    RequestRoute route("least_loaded", {.engines = 2}, delay);
    EXPECT_EQ(send(route, 0, 0), 0U);
    EXPECT_EQ(send(route, 1, 0), 1U);
    happened(route, 1, EventKind::admitted, 1, 5);
    happened(route, 1, EventKind::finished, 1, 10);
    EXPECT_EQ(send(route, 2, 10 + kDelay - 1), delay == 0 ? 1U : 0U);
    EXPECT_EQ(send(route, 3, 10 + kDelay), delay == 0 ? 0U : 1U) << "with the delay, the end has just been seen";
  }
}

// The router must not see the end of a request before its admission.
TEST_F(StaleRoute, Events_keep_their_order) {
  RequestRoute route("score", {.engines = 2, .device_pages = 10}, kDelay);
  for (RequestId request = 0; request < 50; ++request) {
    const auto now = static_cast<TimeNs>(request * 300);
    const std::size_t engine = send(route, request, now);
    happened(route, engine, EventKind::admitted, request, now + 10);
    if (request % 3 == 0) happened(route, engine, EventKind::retracted, request, now + 20);
    if (request % 3 == 1) happened(route, engine, EventKind::finished, request, now + 30);
  }
}

TEST_F(StaleRoute, Pages_are_seen_after_the_delay_and_outlive_their_event) {
  RequestRoute route("score", {.engines = 2, .device_pages = 10, .page_tokens = 1}, kDelay);
  std::vector<PageKey> keys(3);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i].words[0] = i + 1;
  {
    const std::vector<PageKey> borrowed = keys;
    route.on_event(1, {.kind = EventKind::pages_stored, .time = 5, .keys = borrowed});
  }
  EXPECT_EQ(send(route, 0, 1004, keys), 0U);
  EXPECT_EQ(send(route, 1, 1005, keys), 1U);
  route.on_event(1, {.kind = EventKind::pages_removed, .time = 1005, .keys = keys});
  EXPECT_EQ(send(route, 2, 2004, keys), 1U);
}

TEST_F(StaleRoute, An_abort_goes_to_the_engine_at_once) {
  RequestRoute route("round_robin", {.engines = 2}, kDelay);
  send(route, 0, 0);
  EXPECT_EQ(send(route, 1, 0), 1U);
  EXPECT_EQ(route.way_of(Input{1, Hint{.kind = HintKind::abort, .subject = 1}}).engine, 1U);
  happened(route, 1, EventKind::aborted, 1, 1);
  EXPECT_EQ(route.way_of(Input{2, Hint{.kind = HintKind::abort, .subject = 1}}).engine, 0U) << "it has ended";
}

// The client of a request has gone, and its engine is dead already: the engine that gets the request next is told.
TEST_F(StaleRoute, An_abort_follows_a_request_that_is_sent_again) {
  for (const std::string_view router : route_names()) {
    SCOPED_TRACE(router);
    RouteRoles roles;
    roles.engines_die = true;
    RequestRoute route(router, {.engines = 2, .device_pages = 10}, 0, roles);
    const std::size_t dead = send(route, 0, 0);
    route.way_of(Input{1, Hint{.kind = HintKind::abort, .subject = 0}});
    route.engine_lost(dead);
    Input again;
    ASSERT_TRUE(route.sent_again(again));
    EXPECT_EQ(std::get<Arrival>(again.what).attempt, 1U);
    EXPECT_EQ(route.way_of(again).engine, 1 - dead);
    ASSERT_TRUE(route.sent_again(again));
    EXPECT_EQ(std::get<Hint>(again.what).kind, HintKind::abort);
    EXPECT_EQ(route.way_of(again).engine, 1 - dead);
    EXPECT_FALSE(route.sent_again(again));
  }
}

}  // namespace
}  // namespace kvtwin::test
