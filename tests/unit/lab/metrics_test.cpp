#include "lab/report/metrics.hpp"

#include <gtest/gtest.h>

namespace kvtwin {
namespace {

Event pass(Pages steps, Tokens tokens) {
  Event event;
  event.kind = EventKind::pass_done;
  event.pages = steps;
  event.tokens = tokens;
  return event;
}

TEST(DurationHistogram, HasNoFigureWithoutADuration) {
  DurationHistogram histogram;
  EXPECT_FALSE(histogram.mean_seconds());
  EXPECT_FALSE(histogram.quantile_seconds(500));
  EXPECT_FALSE(histogram.max_seconds());
  histogram.add(0);
  EXPECT_EQ(histogram.mean_seconds(), 0.0) << "a duration of 0 is one";
  EXPECT_EQ(histogram.quantile_seconds(500), 0.0);
  EXPECT_EQ(histogram.max_seconds(), 0.0);
}

// A burst that was cancelled before its first step and a prefill that failed are not counted.
TEST(Metrics, CountsPassesThatDidSomething) {
  Metrics metrics;
  metrics.on_event(pass(0, 100));
  metrics.on_event(pass(3, 0));
  metrics.on_event(pass(0, 0));
  EXPECT_EQ(metrics.prefill_passes, 1u);
  EXPECT_EQ(metrics.prefill_tokens, 100u);
  EXPECT_EQ(metrics.decode_passes, 1u);
  EXPECT_EQ(metrics.decode_steps, 3u);
  metrics.on_event(pass(1, 50));
  EXPECT_EQ(metrics.prefill_passes, 2u) << "a mixed pass is both";
  EXPECT_EQ(metrics.prefill_tokens, 150u);
  EXPECT_EQ(metrics.decode_passes, 2u);
  EXPECT_EQ(metrics.decode_steps, 4u);
}

// The cost of a pass depends on the tokens that it computes and on the pairs of attention.
class Square final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
    return static_cast<TimeNs>(1000 + 10 * shape.prefill_tokens + shape.prefill_pairs);
  }
  TransferCost transfer(const Plan&) const override { return {}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
};

// A good request is within all limits that are set; a request of one output token has no TPOT. Rejected requests and
// requests that fail are not good.
TEST(Metrics, CountsGoodRequests) {
  CountingTerms terms;
  terms.level = {.ttft = 100, .tpot = 10, .e2e = 0};
  Metrics metrics(nullptr, nullptr, terms);
  RequestRecord record;
  Event event;
  event.record = &record;
  const auto send = [&](EventKind kind, TimeNs first_token, TimeNs finished, Tokens output) {
    record.arrival = 1000;
    record.first_token = 1000 + first_token;
    record.finished = 1000 + finished;
    record.output_tokens = output;
    event.kind = EventKind::arrived;
    metrics.on_event(event);
    event.kind = kind;
    metrics.on_event(event);
  };
  send(EventKind::finished, 100, 200, 11);  // both at the limit
  EXPECT_EQ(metrics.good, 1u);
  send(EventKind::finished, 101, 200, 11);  // first token late
  send(EventKind::finished, 100, 211, 11);  // 11.1 ns per token
  send(EventKind::rejected, 0, 0, 0);
  send(EventKind::aborted, 0, 0, 0);
  EXPECT_EQ(metrics.good, 1u);
  send(EventKind::finished, 50, 50, 1);  // no TPOT
  EXPECT_EQ(metrics.good, 2u);
  EXPECT_EQ(metrics.share_of_arrived(metrics.good), 2.0 / 6);
  EXPECT_FALSE(ServiceLevel{}.set());
  record.finished = 2000;
  EXPECT_FALSE((ServiceLevel{.e2e = 999}.met_by(record)));
  EXPECT_TRUE((ServiceLevel{.e2e = 1000}.met_by(record)));
}

TEST(Metrics, WeighsWhatHitsSaved) {
  const Square cost;
  Metrics metrics(nullptr, &cost);
  RequestRecord record;
  record.prompt_tokens = 10;
  record.hit[Tier::device] = 1;
  record.hit[Tier::host] = 2;
  record.hit[Tier::disk] = 3;
  record.miss = 4;
  Event event;
  event.kind = EventKind::finished;
  event.record = &record;
  metrics.on_event(event);
  // The hit saves the first 6 tokens: 10 ns each, plus 6 * 7 / 2 pairs. The other tokens are computed in any case.
  EXPECT_EQ(metrics.saved_ns, 60 + 21);
  record.hit[Tier::device] = record.hit[Tier::host] = record.hit[Tier::disk] = 0;
  metrics.on_event(event);
  EXPECT_EQ(metrics.saved_ns, 60 + 21);
  EXPECT_TRUE(metrics.weighs_hits());
  EXPECT_FALSE(Metrics().weighs_hits());
}

Event of_prefetch(EventKind kind, RequestId request, Reason reason = Reason::none) {
  Event event;
  event.kind = kind;
  event.request = request;
  event.reason = reason;
  event.pages = 3;
  return event;
}

// Pages that arrive after a stop aren't a second end of the prefetch. An abort is neither a stop nor a refusal.
TEST(Metrics, EveryPrefetchEndsInOneWay) {
  Metrics metrics;
  for (RequestId request = 0; request < 9; ++request) {
    metrics.on_event(of_prefetch(EventKind::prefetch_issued, request));
  }
  metrics.on_event(of_prefetch(EventKind::prefetch_done, 0));
  metrics.on_event(of_prefetch(EventKind::prefetch_done, 1, Reason::transfer_failed));
  metrics.on_event(of_prefetch(EventKind::prefetch_stopped, 2, Reason::stopped));
  metrics.on_event(of_prefetch(EventKind::prefetch_done, 2, Reason::stopped));
  metrics.on_event(of_prefetch(EventKind::prefetch_stopped, 3, Reason::aborted));
  metrics.on_event(of_prefetch(EventKind::prefetch_done, 3, Reason::stopped));
  metrics.on_event(of_prefetch(EventKind::prefetch_revoked, 4, Reason::aborted));
  metrics.on_event(of_prefetch(EventKind::prefetch_revoked, 5, Reason::miss));
  metrics.on_event(of_prefetch(EventKind::prefetch_revoked, 6, Reason::duplicate));
  metrics.on_event(of_prefetch(EventKind::prefetch_declined, 9, Reason::too_short));
  const Metrics::Prefetches& p = metrics.prefetches;
  EXPECT_EQ(p.issued, 9U);
  EXPECT_EQ(p.completed, 1U);
  EXPECT_EQ(p.failed, 1U);
  EXPECT_EQ(p.stopped, 1U);
  EXPECT_EQ(p.revoked, 2U);
  EXPECT_EQ(p.aborted, 2U);
  EXPECT_EQ(p.open, (std::set<std::pair<std::size_t, RequestId>>{{0, 7}, {0, 8}}));
  EXPECT_TRUE(p.add_up());
  EXPECT_EQ(p.revoked_reasons.size(), 2U) << "of what was revoked, and nothing else";
  metrics.on_event(of_prefetch(EventKind::prefetch_done, 0));
  EXPECT_FALSE(p.add_up()) << "it had ended before";
}

// A request that is sent again has a prefetch on each engine that it has been on. Those of a dead engine end with it.
TEST(Metrics, PrefetchesOfADeadEngineEndWithIt) {
  Metrics metrics;
  const auto on = [](std::size_t engine, Event event) {
    event.engine = engine;
    return event;
  };
  metrics.on_event(on(1, of_prefetch(EventKind::prefetch_issued, 0)));
  metrics.on_event(on(1, of_prefetch(EventKind::prefetch_issued, 1)));
  metrics.on_event(on(2, of_prefetch(EventKind::prefetch_issued, 2)));
  metrics.on_event(on(1, of_prefetch(EventKind::prefetch_done, 1)));
  metrics.engine_lost(1);
  metrics.on_event(on(2, of_prefetch(EventKind::prefetch_issued, 0)));
  const Metrics::Prefetches& p = metrics.prefetches;
  EXPECT_EQ(p.engine_lost, 1U);
  EXPECT_EQ(p.open, (std::set<std::pair<std::size_t, RequestId>>{{2, 0}, {2, 2}}));
  EXPECT_TRUE(p.add_up());
  metrics.on_event(on(2, of_prefetch(EventKind::prefetch_done, 0)));
  EXPECT_EQ(p.completed, 2U);
  EXPECT_TRUE(p.add_up());
}

}  // namespace
}  // namespace kvtwin
