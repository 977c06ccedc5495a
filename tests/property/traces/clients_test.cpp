// Clients and stages on random traces, in a world with random latencies: each request arrives once, in the order of the
// trace; no client has two requests in the system; a stage begins when the last request of the stage before has ended.
#include "traces/clients.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "traces/random.hpp"

namespace kvtwin {
namespace {

// Requests of one block, 10 ns apart. The output length identifies the request.
class EvenTrace final : public TraceSource {
 public:
  // `lengths`: not 0 = prompts of 1 to 16 tokens, drawn with this seed.
  explicit EvenTrace(std::uint64_t requests, std::uint64_t lengths = 0) : requests_(requests), lengths_(lengths) {}
  bool next(TraceRequest& request) override {
    if (at_ == requests_) return false;
    request.clear();
    request.arrival = static_cast<TimeNs>(10 * at_);
    request.input = lengths_ == 0 ? 16 : integer_from(mix64(lengths_ * 1000 + at_), 15) + 1;
    request.blocks = {at_};
    request.session = 77;
    request.think = 500;
    request.output = ++at_;
    return true;
  }
  Tokens block_tokens() const override { return 16; }

 private:
  std::uint64_t requests_, lengths_, at_ = 0;
};

struct Served {
  std::uint64_t session = 0, number = 0;  // number: in the trace
  Tokens prompt = 0;
  TimeNs arrived = 0, ended = 0, sent = 0;
};

// Serves all requests in the order of their arrival: each ends after a random time of up to `slowest` ns.
std::vector<Served> serve(ClientSource& source, Random& random, std::uint64_t slowest) {
  std::vector<Served> served;
  std::multimap<TimeNs, RequestId> ends;
  std::set<std::uint64_t> busy;
  Input held;
  TimeNs now = 0;
  const auto end = [&](RequestId request) {
    served[request].ended = now;
    busy.erase(served[request].session);
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
      const RequestId request = ends.begin()->second;
      ends.erase(ends.begin());
      end(request);
      if (source.overtake(held, has)) has = true;
      continue;
    }
    EXPECT_GE(held.now, now);
    now = std::max(now, held.now);
    const auto& arrival = std::get<Arrival>(held.what);
    EXPECT_EQ(arrival.request, served.size());
    if (arrival.session != 0) {
      EXPECT_TRUE(busy.insert(arrival.session).second) << "a client has two requests in the system";
    }
    served.push_back({arrival.session, arrival.output_tokens - 1, arrival.prompt_tokens, now});
    if (random.chance(0.1)) {
      end(arrival.request);  // at once, before the world asks for the next input
    } else {
      ends.emplace(now + static_cast<TimeNs>(random.integer(0, slowest)), arrival.request);
    }
    has = source.next(held);
  }
  return served;
}

TraceInputOptions options_of() {
  TraceInputOptions options;
  options.page_tokens = 16;
  return options;
}

TEST(ClientsProperty, StagesSendAllRequestsOneAfterAnother) {
  std::uint64_t thoughts = 0;
  for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ClientsConfig config;
    config.seed = seed;
    config.start_spread_ns = static_cast<TimeNs>(random.integer(0, 1) * random.integer(0, 40));
    config.think_ns = static_cast<TimeNs>(random.integer(0, 1) * random.integer(0, 10));
    std::uint64_t requests = 0;
    for (std::uint64_t stages = random.integer(1, 4); stages != 0; --stages) {
      config.stages.push_back({random.integer(0, 5), random.integer(1, 12)});
      requests += config.stages.back().requests;
    }
    if (random.chance(0.3)) {
      requests += 5 - config.stages.back().requests;
      config.stages.back().requests = 0;  // all that are left
    }
    EvenTrace trace(requests);
    ClientSource source(trace, options_of(), config);
    const std::vector<Served> served = serve(source, random, 30);
    ASSERT_EQ(served.size(), requests);
    for (std::size_t i = 0; i < served.size(); ++i) ASSERT_EQ(served[i].number, i) << "in the order of the trace";
    std::size_t at = 0;
    TimeNs begin = 0;
    std::set<std::uint64_t> sessions_before;
    for (const ClientStage& stage : config.stages) {
      const std::size_t from = at, to = stage.requests == 0 ? served.size() : at + stage.requests;
      TimeNs last_end = begin;
      std::set<std::uint64_t> sessions;
      std::map<std::uint64_t, TimeNs> answered;
      for (; at < to; ++at) {
        const Served& request = served[at];
        last_end = std::max(last_end, request.ended);
        if (stage.clients == 0) {
          ASSERT_EQ(request.arrived, begin + static_cast<TimeNs>(10 * (at - from)));
          ASSERT_EQ(request.session, 0U);
          continue;
        }
        const auto before = answered.find(request.session);
        const TimeNs earliest = before == answered.end() ? begin : before->second;
        const TimeNs most = before == answered.end() ? config.start_spread_ns : 2 * config.think_ns;
        ASSERT_GE(request.arrived, earliest);
        ASSERT_LE(request.arrived, earliest + most);
        thoughts += request.arrived > earliest ? 1 : 0;
        answered[request.session] = request.ended;
        sessions.insert(request.session);
      }
      ASSERT_LE(sessions.size(), stage.clients);
      for (const std::uint64_t session : sessions) ASSERT_TRUE(sessions_before.insert(session).second);
      begin = last_end;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(thoughts, 10'000U);
}

// A long prompt takes longer in the front end, so short ones that are sent later may arrive before it.
TEST(ClientsProperty, RequestsAreSentInOrderAndArriveAfterTheirFrontEnd) {
  std::uint64_t passed = 0;
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ClientsConfig config;
    config.seed = seed;
    config.think_ns = static_cast<TimeNs>(random.integer(0, 20));
    config.start_spread_ns = static_cast<TimeNs>(random.integer(0, 20));
    config.stages = {{random.integer(1, 6), 30}, {random.integer(1, 6), 30}};
    EvenTrace trace(60, seed);
    ClientSource source(trace, options_of(), config);
    const auto front_end = [](Tokens prompt) { return static_cast<TimeNs>(prompt); };
    source.add_front_end(front_end);
    std::vector<Served> served = serve(source, random, 30);
    ASSERT_EQ(served.size(), 60U);
    for (Served& request : served) {
      request.sent = request.arrived - front_end(request.prompt);
      passed += request.number != static_cast<std::uint64_t>(&request - served.data()) ? 1 : 0;
    }
    std::ranges::sort(served, {}, &Served::number);
    for (std::size_t i = 1; i < served.size(); ++i) ASSERT_GE(served[i].sent, served[i - 1].sent) << i;
    std::map<std::uint64_t, TimeNs> answered;
    for (const Served& request : served) {
      const auto before = answered.find(request.session);
      if (before != answered.end()) {
        ASSERT_GE(request.sent, before->second);
        ASSERT_LE(request.sent, before->second + 2 * config.think_ns);
      }
      answered[request.session] = request.ended;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(passed, 1'000U);
}

TEST(ClientsProperty, AFreeClientSendsTheNextRequestWhateverClientSentTheLast) {
  ClientsConfig config;
  config.stages = {{2, 0}};
  EvenTrace trace(40);
  ClientSource source(trace, options_of(), config);
  Random random(5);
  std::map<std::uint64_t, int> by_session;
  for (const Served& request : serve(source, random, 1'000)) ++by_session[request.session];
  ASSERT_EQ(by_session.size(), 2U);
  EXPECT_NE(by_session[1], by_session[2]) << "not in turn";
}

TEST(ClientsProperty, LimitAndScale) {
  ClientsConfig config;
  config.stages = {{0, 2}, {1, 2}};
  config.start_spread_ns = 1'000;
  EvenTrace trace(4);
  TraceInputOptions options = options_of();
  options.limit = 3;
  options.time_scale = {3, 1};
  ClientSource source(trace, options, config);
  Random random(3);
  const std::vector<Served> served = serve(source, random, 1);
  ASSERT_EQ(served.size(), 3U);
  EXPECT_EQ(served[1].arrived, 30);
  EXPECT_LE(served[2].arrived, served[1].ended + 3'000);
}

}  // namespace
}  // namespace kvtwin
