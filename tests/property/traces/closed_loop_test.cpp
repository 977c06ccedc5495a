// Closed loops on random traces, in a world with random latencies: each request arrives once, in order of time. The
// next request of a session arrives at its trace time, or one think time after the previous answer, whichever is later.
#include "traces/closed_loop.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "traces/random.hpp"

namespace kvtwin {
namespace {

class ListTrace final : public TraceSource {
 public:
  explicit ListTrace(std::vector<TraceRequest> requests) : requests_(std::move(requests)) {}
  bool next(TraceRequest& request) override {
    if (at_ == requests_.size()) return false;
    request = requests_[at_++];
    return true;
  }
  Tokens block_tokens() const override { return 16; }

 private:
  std::vector<TraceRequest> requests_;
  std::size_t at_ = 0;
};

// Returns a random trace. The first block of a request is its position in the trace. There are few different times, so
// that many requests have the same one.
std::vector<TraceRequest> random_trace(Random& random) {
  std::vector<TraceRequest> trace(static_cast<std::size_t>(random.integer(1, 60)));
  const std::uint64_t sessions = random.integer(1, 8);
  TimeNs time = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    TraceRequest& r = trace[i];
    time += static_cast<TimeNs>(random.integer(0, 5));
    r.arrival = time;
    if (random.chance(0.1)) {
      r.is_hint = true;
      r.hint.subject = 100 + i;
      continue;
    }
    r.input = 16;
    r.output = i + 1;  // identifies the request
    r.blocks = {i};
    r.session = random.integer(0, sessions);
    if (random.chance(0.3)) r.think = static_cast<TimeNs>(random.integer(0, 20));
  }
  return trace;
}

struct Served {
  TimeNs arrived = 0, answered = 0;
};

// Serves all requests: each is answered after a random time, some of them immediately.
std::map<std::size_t, Served> serve(ClosedLoopSource& source, Random& random, std::uint64_t& hints) {
  std::map<std::size_t, Served> served;
  std::multimap<TimeNs, std::pair<RequestId, std::size_t>> ends;
  Input held;
  TimeNs now = 0;
  RequestId expected = 0;
  const auto answer = [&](RequestId request, std::size_t name) {
    served[name].answered = now;
    RequestRecord record;
    record.request = request;
    Event event;
    const EventKind kinds[] = {EventKind::finished, EventKind::rejected, EventKind::aborted};
    event.kind = kinds[random.integer(0, 2)];
    event.time = now;
    event.record = &record;
    source.on_event(event);
  };
  bool has = source.next(held);
  while (has || !ends.empty()) {
    if (!ends.empty() && (!has || ends.begin()->first <= held.now)) {
      now = ends.begin()->first;
      const auto [request, name] = ends.begin()->second;
      ends.erase(ends.begin());
      answer(request, name);
      if (source.overtake(held, has)) has = true;
      continue;
    }
    EXPECT_GE(held.now, now);
    now = held.now;
    if (const auto* arrival = std::get_if<Arrival>(&held.what)) {
      EXPECT_EQ(arrival->request, expected++);
      const auto name = static_cast<std::size_t>(arrival->output_tokens) - 1;
      EXPECT_TRUE(served.emplace(name, Served{now, 0}).second) << "once";
      EXPECT_EQ(arrival->keys.size(), 1U);
      if (random.chance(0.1)) {
        answer(arrival->request, name);
      } else {
        ends.emplace(now + static_cast<TimeNs>(random.integer(0, 30)), std::pair(arrival->request, name));
      }
    } else {
      ++hints;
    }
    has = source.next(held);
  }
  return served;
}

TEST(ClosedLoopProperty, NextRequestsWaitForAnswers) {
  std::uint64_t waited = 0;
  for (std::uint64_t seed = 1; seed <= 5'000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<TraceRequest> trace = random_trace(random);
    const auto service = static_cast<TimeNs>(random.integer(0, 1) * random.integer(0, 8));
    ListTrace list(trace);
    TraceInputOptions options;
    options.page_tokens = 16;
    ClosedLoopSource source(list, options, service);
    std::uint64_t hints = 0;
    const std::map<std::size_t, Served> served = serve(source, random, hints);
    std::map<std::uint64_t, std::size_t> last;  // last request of each session
    std::uint64_t requests = 0;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const TraceRequest& r = trace[i];
      if (r.is_hint) continue;
      ++requests;
      ASSERT_TRUE(served.contains(i));
      TimeNs due = r.arrival;
      if (r.session != 0 && last.contains(r.session)) {
        const std::size_t before = last[r.session];
        const TimeNs gap = r.arrival - trace[before].arrival;
        const TimeNs think = r.think >= 0 ? r.think : std::max<TimeNs>(0, gap - service);
        due = std::max(due, served.at(before).answered + think);
      }
      ASSERT_EQ(served.at(i).arrived, due) << i;
      waited += due > r.arrival ? 1 : 0;
      last[r.session] = i;
    }
    ASSERT_EQ(served.size(), requests);
    ASSERT_EQ(hints, trace.size() - requests);
    if (HasFailure()) return;
  }
  EXPECT_GT(waited, 10'000U);
}

TEST(ClosedLoopProperty, LimitAndScale) {
  std::vector<TraceRequest> trace(5);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    trace[i].arrival = static_cast<TimeNs>(10 * i);
    trace[i].input = 16;
    trace[i].output = i + 1;
    trace[i].blocks = {i};
    trace[i].session = 1;
  }
  trace[2].think = 7;
  ListTrace list(trace);
  TraceInputOptions options;
  options.limit = 3;
  options.page_tokens = 16;
  options.time_scale = {2, 1};
  ClosedLoopSource source(list, options, 0);
  Random random(3);
  std::uint64_t hints = 0;
  const std::map<std::size_t, Served> served = serve(source, random, hints);
  ASSERT_EQ(served.size(), 3U);
  EXPECT_EQ(served.at(1).arrived, served.at(0).answered + 20);
  EXPECT_EQ(served.at(2).arrived, std::max<TimeNs>(40, served.at(1).answered + 14));
}

TEST(ClosedLoop, RequestsWithoutASessionAreNamed) {
  for (const std::uint64_t sessions : {0U, 1U, 2U}) {  // of two requests
    std::vector<TraceRequest> requests(2);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].input = 16;
      requests[i].output = 1;
      requests[i].blocks = {i};
      requests[i].session = i < sessions ? i + 1 : 0;
    }
    ListTrace trace(requests);
    TraceInputOptions options;
    options.page_tokens = 16;
    ClosedLoopSource source(trace, options, 0);
    for (Input input; source.next(input);) {
    }
    const std::string expected = std::to_string(2 - sessions) + " of 2 requests have no session";
    EXPECT_EQ(source.note().find(expected) != std::string::npos, sessions < 2) << source.note();
  }
}

}  // namespace
}  // namespace kvtwin
