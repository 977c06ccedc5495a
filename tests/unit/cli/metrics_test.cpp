#include "cli/metrics.hpp"

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

// A burst that was cancelled before its first step, or a prefill that failed, is neither.
TEST(Metrics, CountsPassesThatDidSomething) {
  Metrics metrics;
  metrics.on_event(pass(0, 100));
  metrics.on_event(pass(3, 6));
  metrics.on_event(pass(0, 0));
  EXPECT_EQ(metrics.prefill_passes, 1u);
  EXPECT_EQ(metrics.prefill_tokens, 100u);
  EXPECT_EQ(metrics.decode_passes, 1u);
  EXPECT_EQ(metrics.decode_steps, 3u);
}

// A pass costs what it computes and what it attends to.
class Square final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
    return static_cast<TimeNs>(1000 + 10 * shape.prefill_tokens + shape.prefill_pairs);
  }
  TransferCost transfer(const Plan&) const override { return {}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
};

TEST(Metrics, WeighsWhatHitsSaved) {
  const Square cost;
  Metrics metrics(nullptr, &cost);
  RequestRecord record;
  record.prompt_tokens = 10;
  record.hit_device = 1;
  record.hit_host = 2;
  record.hit_disk = 3;
  record.miss = 4;
  Event event;
  event.kind = EventKind::finished;
  event.record = &record;
  metrics.on_event(event);
  // The first 6 tokens: 10 each, and 6 * 7 / 2 pairs. The rest is computed in either case.
  EXPECT_EQ(metrics.saved_ns, 60 + 21);
  record.hit_device = record.hit_host = record.hit_disk = 0;
  metrics.on_event(event);
  EXPECT_EQ(metrics.saved_ns, 60 + 21);
  EXPECT_TRUE(metrics.weighs_hits());
  EXPECT_FALSE(Metrics().weighs_hits());
}

}  // namespace
}  // namespace kvtwin
