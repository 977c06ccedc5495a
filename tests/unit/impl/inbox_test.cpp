// Inputs that other threads put into a real world while it runs.
#include "impl/runtime/inbox.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include "real_rig.hpp"

namespace kvtwin::test {
namespace {

class Received final : public InputHandler {
 public:
  void handle(const Input& input) override {
    const auto& arrival = std::get<Arrival>(input.what);
    requests.push_back(arrival.request);
    keys.emplace_back(arrival.keys.begin(), arrival.keys.end());
  }
  std::vector<RequestId> requests;
  std::vector<std::vector<PageKey>> keys;
};

TEST(Inbox, DeliversWhatOtherThreadsPushUntilItIsClosed) {
  Inbox inbox;
  std::thread other([&] {
    for (RequestId request = 0; request < 500; ++request) {
      const std::vector<PageKey> keys(request % 4, PageKey{{request, 1, 2, 3}});
      Input input = arrival_at(0, request);
      std::get<Arrival>(input.what).keys = keys;
      inbox.push(input);
      if (request % 50 == 0) std::this_thread::yield();
    }
    inbox.close();
  });
  const auto world = make_real_world(make_test_device(small_device()));
  Received received;
  world->run(inbox, received);
  other.join();
  ASSERT_EQ(received.requests.size(), 500U);
  for (RequestId request = 0; request < 500; ++request) {
    EXPECT_EQ(received.requests[request], request);
    EXPECT_EQ(received.keys[request], std::vector<PageKey>(request % 4, PageKey{{request, 1, 2, 3}}));
  }
}

TEST(Inbox, TellsWhenTheClockHasStarted) {
  TimeNs begun = -1;
  Inbox inbox([&](const RunClock& clock) { begun = clock.now(); });
  inbox.close();
  const auto world = make_real_world(make_test_device(small_device()));
  Received received;
  world->run(inbox, received);
  EXPECT_GE(begun, 0);
  EXPECT_TRUE(received.requests.empty());
}

TEST(Inbox, AFailureEndsTheRun) {
  Inbox inbox;
  inbox.fail(std::make_exception_ptr(std::runtime_error("the trace ends in the middle")));
  const auto world = make_real_world(make_test_device(small_device()));
  Received received;
  EXPECT_THROW(world->run(inbox, received), std::runtime_error);
}

}  // namespace
}  // namespace kvtwin::test
