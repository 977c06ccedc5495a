// The two parts of a request become one record, whichever engine notices the request first.
#include "lab/report/joined_requests.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtwin::test {
namespace {

struct Seen final : Observer {
  void on_event(const Event& event) override {
    kinds.push_back(event.kind);
    if (event.record != nullptr) last = *event.record;
  }
  std::vector<EventKind> kinds;
  RequestRecord last;
};

void tell(JoinedRequests& joined, EventKind kind, const RequestRecord& record) {
  Event event;
  event.kind = kind;
  event.record = &record;
  joined.on_event(event);
}

RequestRecord prefill_part() {
  RequestRecord record;
  record.request = RequestId{7};
  record.part = RequestPart::prefill;
  record.arrival = 100;
  record.compute_ns = 30;
  record.first_token = 140;
  return record;
}

RequestRecord decode_part() {
  RequestRecord record;
  record.request = RequestId{7};
  record.part = RequestPart::decode;
  record.arrival = 100;
  record.first_token = 150;
  record.finished = 400;
  return record;
}

TEST(JoinedRequests, ArriveOnceAndEndOnce) {
  const std::vector<EventKind> wanted{EventKind::arrived, EventKind::first_token, EventKind::finished};
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late ? "the decode engine notices the request after its prompt"
                      : "the decode engine notices it first");
    Seen seen;
    JoinedRequests joined(seen);
    tell(joined, EventKind::arrived, prefill_part());
    if (!late) tell(joined, EventKind::arrived, decode_part());
    tell(joined, EventKind::prefilled, prefill_part());
    if (late) tell(joined, EventKind::arrived, decode_part());
    tell(joined, EventKind::first_token, decode_part());
    tell(joined, EventKind::finished, decode_part());
    EXPECT_EQ(seen.kinds, wanted);
    EXPECT_EQ(seen.last.compute_ns, 30);
    EXPECT_EQ(seen.last.hand_over_ns, 10);
    EXPECT_EQ(seen.last.queue_ns, 10);
    EXPECT_EQ(joined.figures().sent_again, 0U);
  }
}

TEST(JoinedRequests, CountFurtherAttempts) {
  Seen seen;
  JoinedRequests joined(seen);
  tell(joined, EventKind::arrived, decode_part());
  RequestRecord again = decode_part();
  again.attempt = 1;
  again.arrival = 200;
  tell(joined, EventKind::arrived, again);
  tell(joined, EventKind::finished, again);
  EXPECT_EQ(seen.kinds, (std::vector<EventKind>{EventKind::arrived, EventKind::finished}));
  EXPECT_EQ(seen.last.arrival, 100);
  EXPECT_EQ(joined.figures().sent_again, 1U);
}

}  // namespace
}  // namespace kvtwin::test
