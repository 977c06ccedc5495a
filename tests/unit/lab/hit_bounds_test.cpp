#include "lab/report/hit_bounds.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "traces/paging.hpp"

namespace kvtwin {
namespace {

// Pages of two tokens. A request has the ids of its pages and a length.
class ListSource final : public InputSource {
 public:
  using Request = std::pair<std::vector<std::uint64_t>, Tokens>;
  explicit ListSource(std::vector<Request> requests) : requests_(std::move(requests)) {}

  bool next(Input& input) override {
    if (at_ == requests_.size()) return false;
    Arrival arrival;
    arrival.request = at_;
    arrival.prompt_tokens = requests_[at_].second;
    arrival.output_tokens = 1;
    arrival.keys = pager_.keys(requests_[at_].first, arrival.prompt_tokens, nullptr);
    input.what = arrival;
    ++at_;
    return true;
  }

 private:
  std::vector<Request> requests_;
  Pager pager_{2, 2, LastPage::full_only};
  std::size_t at_ = 0;
};

// Computing a token takes 100 ns, at every position.
class TokenTime final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
    return static_cast<TimeNs>(100 * shape.prefill_tokens);
  }
  TransferCost transfer(const Plan&) const override { return {}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
};

// Computes the bounds for requests that arrive first and are then admitted in this order.
HitBounds::Found reckon(std::vector<ListSource::Request> requests, const std::vector<RequestId>& admitted,
                        Pages capacity) {
  ListSource source(std::move(requests));
  const TokenTime cost;
  HitBounds bounds(2, {{Tier::device, capacity, 0}}, 0, cost);
  for (Input input; source.next(input);) bounds.handle(input);
  for (const RequestId request : admitted) {
    bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
    bounds.decided({DecisionKind::evict_device, Reason::none, request, {}, 1});  // ignored
    for (const DecisionKind kind : {DecisionKind::prefetch, DecisionKind::commit}) {
      bounds.decided({kind, Reason::none, kFirstHintRequest + request, {}, 1});  // of no request
    }
  }
  return bounds.reckon();
}

const std::vector<std::uint64_t> kB{1, 2, 3, 4}, kC{5, 6, 7, 8};

TEST(HitBounds, GoByTheOrderOfAdmissions) {
  const std::vector<ListSource::Request> requests{{{1, 2, 3, 4, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{1, 2, 3, 4, 9}, 9}};
  EXPECT_EQ(reckon(requests, {0, 2, 1}, 4).lru, 8U);
  EXPECT_EQ(reckon(requests, {0, 1, 2}, 4).lru, 0U);
  EXPECT_EQ(reckon(requests, {0, 1, 2}, 4).opt, 8U);
  EXPECT_EQ(reckon(requests, {0, 1}, 4).opt, 0U) << "who isn't admitted hits nothing";
  EXPECT_EQ(reckon(requests, {}, 4).opt, 0U);
}

TEST(HitBounds, LeaveOutWhatIsComputedInAnyCase) {
  EXPECT_EQ(reckon({{kB, 8}, {kB, 8}}, {0, 1}, 100).opt, 6U) << "the last token";
  EXPECT_EQ(reckon({{kB, 7}, {kB, 7}}, {0, 1}, 100).opt, 6U) << "a page in part";
  EXPECT_EQ(reckon({{{1}, 1}, {{1}, 1}}, {0, 1}, 100).opt, 0U) << "no page at all";
}

// A request that is retracted and admitted again computes its pages again, so no tier has to keep them in the meantime.
// Its own pages are no hits.
TEST(HitBounds, TakeARetractedRequestForAtWorkTwice) {
  const std::vector<ListSource::Request> requests{
      {{1, 2, 3, 4, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{1, 2, 3, 4, 9}, 9}};
  EXPECT_EQ(reckon(requests, {0, 1, 2, 3}, 4).opt, 8U);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 0, 3}, 4).opt, 16U);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 0, 3}, 4).lru, 16U);
  EXPECT_EQ(reckon({{kB, 8}, {kC, 8}}, {0, 0, 1, 1}, 100).opt, 0U);
}

TEST(HitBounds, SayWhatTheirHitsSave) {
  const std::vector<ListSource::Request> requests{
      {{1, 2, 3, 4, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{1, 2, 3, 4, 9}, 9}};
  constexpr TimeNs kPath = 800;  // the cost of four pages of two tokens
  EXPECT_EQ(reckon(requests, {0, 1, 2, 0, 3}, 4).opt_saved, 2 * kPath);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 3}, 4).lru_saved, kPath);
  EXPECT_EQ(reckon({{kB, 8}, {kB, 8}}, {0, 1}, 100).opt_saved, 600) << "the last token";
}

// Three tiers. Each holds one of the prompts A, B and C. A prompt has 10 tokens, of which 8 can be hit.
struct ThreeTiers {
  ThreeTiers() : bounds(2, {{Tier::device, 4, 0}, {Tier::host, 4, 10'000}, {Tier::disk, 4, 30'000}}, 0, cost) {
    ListSource source({{kA, 10}, {kB, 10}, {kC, 10}, {kA, 10}, {kA, 10}});
    for (Input input; source.next(input);) bounds.handle(input);
    for (const RequestId request : std::initializer_list<RequestId>{0, 1, 2}) admit(request);
  }
  void admit(RequestId request) { bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0}); }

  inline static const std::vector<std::uint64_t> kA{1, 2, 3, 4, 90}, kB{5, 6, 7, 8, 91}, kC{9, 10, 11, 12, 92};
  TokenTime cost;
  HitBounds bounds;
};

TEST(HitBounds, WhatIsSavedGoesByTheTiersThatThereIsRoomOn) {
  ThreeTiers run;
  run.admit(3);
  // All other pages can be evicted, so A stays on the device.
  EXPECT_EQ(run.bounds.reckon().saved_most, 8 * 100);
  EXPECT_EQ(run.bounds.reckon().saved, 0) << "nobody has finished";
  RequestRecord record;
  record.request = 3;
  record.arrival = 30;
  record.prompt_tokens = 10;
  record.hit[Tier::device] = 4;
  record.hit[Tier::host] = 2;
  record.hit[Tier::disk] = 2;
  Event finished;
  finished.kind = EventKind::finished;
  finished.record = &record;
  run.bounds.on_event(finished);
  EXPECT_EQ(run.bounds.reckon().saved, 8 * 100 - 2 * 10 - 2 * 30);
  const std::vector<RequestId> last{3}, others{0, 1, 2};
  EXPECT_EQ(run.bounds.reckon(&last).saved, 8 * 100 - 2 * 10 - 2 * 30);
  EXPECT_EQ(run.bounds.reckon(&others).saved, 0);
  EXPECT_EQ(run.bounds.reckon(&last).saved_most, 8 * 100);
  EXPECT_EQ(run.bounds.reckon(&others).saved_most, 0);
}

void finish(HitBounds& bounds, RequestId request) {
  RequestRecord record;
  record.request = request;
  Event finished;
  finished.kind = EventKind::finished;
  finished.record = &record;
  bounds.on_event(finished);
}

// Two conversations of two turns each: with one state, only one of them can go on.
TEST(HitBounds, AHitNeedsAStateThatWasKept) {
  const TokenTime cost;
  const std::vector<std::uint64_t> a{1, 2, 3, 90}, b{4, 5, 6, 7, 91};
  const auto with = [&](Pages states, bool overlap) {
    HitBounds bounds(2, {{Tier::device, 100, 0}}, states, cost);
    ListSource source({{a, 8}, {b, 10}, {a, 8}, {b, 10}});
    for (Input input; source.next(input);) bounds.handle(input);
    for (RequestId request = 0; request < 4; ++request) {
      bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
      if (!overlap) finish(bounds, request);
    }
    if (overlap) finish(bounds, 0);
    return bounds.reckon();
  };
  EXPECT_FALSE(with(0, false).with_states);
  EXPECT_EQ(with(1, false).with_states, 8U);
  EXPECT_EQ(with(2, false).with_states, 14U);
  EXPECT_EQ(with(2, false).opt, 14U);
  EXPECT_EQ(with(1, true).with_states, 14U) << "no state had to be kept while its request ran";
}

// The caches serve all requests, and only hits of the requests that count do.
TEST(HitBounds, CountTheGivenRequests) {
  const TokenTime cost;
  HitBounds bounds(2, {{Tier::device, 8, 0}}, 0, cost);
  const std::vector<std::uint64_t> b{1, 2, 3, 4, 9}, c{5, 6, 7, 8, 9};
  ListSource source({{b, 9}, {b, 9}, {c, 9}, {b, 9}});
  for (Input input; source.next(input);) bounds.handle(input);
  for (const RequestId request : std::initializer_list<RequestId>{0, 1, 2, 3})
    bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
  EXPECT_EQ(bounds.reckon().opt, 16U);
  for (const auto& [counted, hits] : std::vector<std::pair<std::vector<RequestId>, Tokens>>{
           {{0}, 0}, {{0, 1}, 8}, {{2, 3}, 8}, {{1, 2, 3}, 16}, {{}, 0}}) {
    const HitBounds::Found found = bounds.reckon(&counted);
    EXPECT_EQ(found.opt, hits) << counted.size();
    EXPECT_EQ(found.lru, hits);
    EXPECT_EQ(found.opt_saved, static_cast<TimeNs>(100 * hits));
    EXPECT_EQ(found.saved_most, static_cast<TimeNs>(100 * hits));
  }
}

// Each of three tiers has room for one page. The four pages of A are used again: one from each tier; the fourth is
// lost.
TEST(HitBounds, WhatHasNoRoomNearbyIsLoaded) {
  const TokenTime cost;
  HitBounds bounds(2, {{Tier::device, 1, 0}, {Tier::host, 1, 10'000}, {Tier::disk, 1, 30'000}}, 0, cost);
  ListSource source({{{1, 2, 3, 4, 5}, 10}, {{1, 2, 3, 4, 5}, 10}});
  for (Input input; source.next(input);) bounds.handle(input);
  for (const RequestId request : std::initializer_list<RequestId>{0, 1})
    bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
  EXPECT_EQ(bounds.reckon().saved_most, 2 * (100 + 90 + 70));
}

// The pages of A and B compete for the fast tiers, unless a prefetch loads the pages of A again for a waiting request.
// A request that shares these pages comes first.
TEST(HitBounds, AnotherMayHitWhatAPrefetchBrought) {
  const TokenTime cost;
  for (const bool brought : {false, true}) {
    HitBounds bounds(2, {{Tier::device, 1, 0}, {Tier::host, 1, 10'000}, {Tier::disk, 9, 30'000}}, 0, cost);
    ListSource source({{{1, 2, 3}, 6}, {{7, 8, 9}, 6}, {{1, 2, 3}, 6}, {{1, 2, 4}, 6}, {{7, 8, 9}, 6}});
    for (Input input; source.next(input);) bounds.handle(input);
    for (const RequestId request : std::initializer_list<RequestId>{0, 1, 4})
      bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
    bounds.decided({DecisionKind::prefetch, Reason::none, 2, {}, 2});
    if (brought) bounds.decided({DecisionKind::commit, Reason::none, 2, {}, 2});
    for (const RequestId request : std::initializer_list<RequestId>{3, 2})
      bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
    // The last three requests hit two pages each. Two hits are on the device; on the host, four or all.
    EXPECT_EQ(bounds.reckon().saved_most, 6 * 2 * 70 + 2 * 2 * 10 + (brought ? 6 : 4) * 2 * 20) << brought;
  }
}

Setup setup_with_direct_reads(std::uint64_t latency_ns, Tokens page_tokens) {
  RooflineCoefficients coefficients;
  coefficients.moves.gpudirect_rate = coefficients.moves.storage[Tier::remote].read.rate = 1'000'000'000;
  coefficients.moves.storage[Tier::remote].read.request_ns = latency_ns;
  Setup setup;
  setup.cost = std::make_unique<RooflineCost>(coefficients);
  setup.engine.path = CachePath::direct;
  setup.engine.shape.page_tokens = static_cast<std::uint32_t>(page_tokens);
  setup.engine.storage_batch_pages = 1;
  StorageTierConfig remote;
  remote.tier = Tier::remote;
  remote.pages = 1;
  setup.engine.storage = {remote};
  return setup;
}

// 347 days are more picoseconds than 64 bits hold.
TEST(HitBounds, LoadTimeOfALongLatency) {
  constexpr std::uint64_t kLatencyNs = 30'000'000'000'000'000;
  EXPECT_EQ(tier_worths(setup_with_direct_reads(kLatencyNs, 64)).back().load_ps, kLatencyNs / 64 * 1000);
  EXPECT_EQ(tier_worths(setup_with_direct_reads(kLatencyNs, 1)).back().load_ps, 9'000'000'000'000'000'000U)
      << "the longest load time";
}

TEST(HitBounds, NothingIsSavedByTheLongestLoad) {
  const TokenTime cost;
  HitBounds bounds(2, {{Tier::device, 0, 0}, {Tier::remote, 9, 9'000'000'000'000'000'000}}, 0, cost);
  ListSource source({{{1, 2, 3, 4, 5}, 10}, {{1, 2, 3, 4, 5}, 10}});
  for (Input input; source.next(input);) bounds.handle(input);
  for (const RequestId request : std::initializer_list<RequestId>{0, 1})
    bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
  EXPECT_EQ(bounds.reckon().saved_most, 0);
  RequestRecord record;
  record.prompt_tokens = 1'000'000;
  record.hit[Tier::remote] = 999'999;
  Event finished;
  finished.kind = EventKind::finished;
  finished.record = &record;
  bounds.on_event(finished);
  EXPECT_EQ(bounds.reckon().saved, std::numeric_limits<TimeNs>::min());
}

}  // namespace
}  // namespace kvtwin
