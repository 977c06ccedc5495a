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

}  // namespace
}  // namespace kvtwin
