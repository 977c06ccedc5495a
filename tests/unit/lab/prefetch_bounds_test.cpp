#include "lab/report/prefetch_bounds.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace kvtwin {
namespace {

// Computing a token takes 100 ns, whatever its context.
class TokenTime final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
    return static_cast<TimeNs>(100 * shape.prefill_tokens);
  }
  TransferCost transfer(const Plan&) const override { return {}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
};

// Prompts of 100 tokens in pages of 10 tokens. Nine pages can be reused: the first two are on the host, seven are
// prefetched in parts of three pages. Computing a page takes 1,000 ns.
class Rig {
 public:
  explicit Rig(std::size_t seats = 1) {
    for (std::size_t seat = 0; seat < seats; ++seat) inputs_.push_back(bounds.inputs_of(seat, nullptr));
  }

  void begin(RequestId request, std::size_t seat = 0) {
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = 100;
    arrival.keys = keys_;
    tell(seat, {0, arrival});
    event(EventKind::prefetch_issued, request, 7);
    for (const Pages pages : {3U, 3U, 1U}) event(EventKind::prefetch_started, request, pages, ++operations_[seat]);
  }
  // The n-th operation of a seat is completed.
  void came(TimeNs now, std::uint64_t operation, Pages pages, std::size_t seat = 0) {
    tell(seat, {now, Completion{.id = OperationId{operation}, .pages = pages}});
  }
  // The request was admitted at 10,000 ns, after waiting `wait` ns, with `used` prefetched pages. Its first token comes
  // when the other tokens are computed.
  void finish(RequestId request, TimeNs wait, Pages used, TimeNs arrival = 0) {
    RequestRecord record;
    record.request = request;
    record.arrival = arrival;
    record.prompt_tokens = 100;
    record.admitted = 10'000;
    record.prefetch_wait_ns = wait;
    record.hit[Tier::host] = 20;
    record.hit[Tier::disk] = used * 10;
    record.first_token = 10'000 + 100 * (100 - 20 - static_cast<TimeNs>(used) * 10);
    Event event;
    event.kind = EventKind::finished;
    event.record = &record;
    bounds.on_event(event);
  }

  TokenTime cost;
  PrefetchBounds bounds{10, cost};

 private:
  void tell(std::size_t seat, const Input& input) { inputs_[seat]->handle(input); }
  void event(EventKind kind, RequestId request, Pages pages, std::uint64_t operation = 0) {
    Event event;
    event.kind = kind;
    event.request = request;
    event.pages = pages;
    event.operation = OperationId{operation};
    bounds.on_event(event);
  }

  std::vector<PageKey> keys_ = std::vector<PageKey>(10);
  std::vector<InputHandler*> inputs_;
  std::map<std::size_t, std::uint64_t> operations_;
};

void expect(const Rig& rig, TimeNs wait_best, TimeNs gained) {
  const PrefetchBounds::Found found = rig.bounds.found();
  EXPECT_EQ(found.requests, 1U);
  EXPECT_EQ(found.wait_best, wait_best);
  EXPECT_EQ(found.ttft - found.ttft_best, gained);
}

// The request is ready at 4,000. The run waits for the second part, which is late; it would be best to stop waiting
// when the first part has arrived.
TEST(PrefetchBounds, LeavesWhenWaitingCostsMore) {
  Rig rig;
  rig.begin(0);
  rig.came(5'000, 1, 3);
  rig.came(10'000, 2, 3);
  rig.came(10'000, 3, 1);
  rig.finish(0, 6'000, 7);
  expect(rig, 1'000, (6'000 + 1'000) - (1'000 + 5'000));
}

TEST(PrefetchBounds, WaitsForMoreThanTheRunDid) {
  Rig rig;
  rig.begin(0);
  rig.came(10'100, 1, 3);
  rig.came(10'200, 3, 1);  // out of order: useless until the second part has arrived
  rig.came(10'300, 2, 3);
  rig.finish(0, 0, 0);
  expect(rig, 300, 7'000 - 300);
}

TEST(PrefetchBounds, WhatFellShortEndsThere) {
  Rig rig;
  rig.begin(0);
  rig.came(10'100, 1, 2);
  rig.came(10'100, 2, 3);
  rig.finish(0, 0, 0);
  expect(rig, 100, 2'000 - 100);
}

TEST(PrefetchBounds, OnlyKnowsWhatCame) {
  Rig rig;
  rig.begin(0);
  rig.finish(0, 0, 0);
  rig.came(10'001, 1, 3);  // too late to count
  expect(rig, 0, 0);
}

// The bound is never worse than what the run did itself: other requests may have computed pages in the meantime.
TEST(PrefetchBounds, IsNoWorseThanTheRun) {
  Rig rig;
  rig.begin(0);
  rig.came(9'000, 1, 3);
  rig.finish(0, 2'000, 7);
  expect(rig, 2'000, 0);
}

TEST(PrefetchBounds, KnowsSeatsApart) {
  Rig rig(2);
  rig.begin(0, 0);
  rig.begin(1, 1);
  rig.came(10'100, 1, 3, 1);
  rig.finish(1, 0, 0);
  expect(rig, 100, 3'000 - 100);
  rig.finish(0, 0, 0);
  EXPECT_EQ(rig.bounds.found().requests, 2U);
  EXPECT_EQ(rig.bounds.found().wait_best, 100) << "nothing came for the other";
}

TEST(PrefetchBounds, OfAWindowCountItsArrivals) {
  Rig rig;
  for (const RequestId request : std::initializer_list<RequestId>{0, 1}) {
    rig.begin(request);
    rig.finish(request, 0, 0, 100 * static_cast<TimeNs>(request));
  }
  EXPECT_EQ(rig.bounds.found().requests, 2U);
  EXPECT_EQ(rig.bounds.found({1, 100}).requests, 1U);
  EXPECT_EQ(rig.bounds.found({1, 99}).requests, 0U);
}

TEST(PrefetchBounds, CountsThoseWithAPrefetchOnly) {
  Rig rig;
  rig.finish(7, 0, 0);
  EXPECT_EQ(rig.bounds.found().requests, 0U);
}

}  // namespace
}  // namespace kvtwin
