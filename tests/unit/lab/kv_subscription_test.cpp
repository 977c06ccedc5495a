// Publishers that answer a replay badly end neither the recording nor the watch.
#include "lab/capture/kv_subscription.hpp"

#include <gtest/gtest.h>

#if KVTWIN_TEST_ZMQ

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/lab/bound_socket.hpp"

namespace kvtwin {
namespace {

// Message 0 is expected first.
class Numbers final : public KvMessageSink {
 public:
  std::optional<std::array<std::uint64_t, 2>> missing_before(std::uint64_t seq) const override {
    if (seq <= next_) return std::nullopt;
    return std::array{next_, seq - 1};
  }
  void write(std::uint64_t seq, std::span<const std::uint8_t> /*payload*/) override {
    seen.push_back(seq);
    next_ = seq + 1;
  }
  void write_unread(std::uint64_t seq, const std::string& /*why*/) override { write(seq, {}); }

  std::vector<std::uint64_t> seen;

 private:
  std::uint64_t next_ = 0;
};

class BadReplayTest : public testing::Test {
 protected:
  // Publishes message 5 while `replay` answers the request for those before it. Returns the fault.
  std::string fault_of(const std::function<void(const std::vector<std::uint8_t>& client)>& answer,
                       bool is_over = false) {
    settings_.endpoint = publisher_.endpoint;
    settings_.replay = replay_.endpoint;
    const KvConnections connections;
    Numbers numbers;
    KvSubscription subscription(settings_, connections, numbers, [is_over] { return is_over; });
    std::thread engine([&] {
      publisher_.receive();
      publisher_.send(std::string("kv"), true);
      publisher_.send(test::big_endian(5), true);
      publisher_.send(std::string("x"), false);
      if (!replay_.wait([this] { return is_done_.load(); })) return;
      const std::vector<std::uint8_t> client = replay_.receive();
      replay_.receive();
      replay_.receive();
      answer(client);
    });
    while (!subscription.receive(std::chrono::milliseconds(100))) {
    }
    is_done_ = true;
    engine.join();
    EXPECT_EQ(numbers.seen.back(), 5U);
    const std::vector<std::string> faults = subscription.faults();
    return faults.size() == 1 ? faults.front() : std::to_string(faults.size()) + " faults";
  }
  void send(const std::vector<std::uint8_t>& client, std::uint64_t number) {
    replay_.send(client, true);
    replay_.send(std::string(), true);
    replay_.send(test::big_endian(number), true);
    replay_.send(std::string("x"), false);
  }

  std::unique_ptr<void, int (*)(void*)> context_{zmq_ctx_new(), zmq_ctx_term};
  test::BoundSocket publisher_{context_.get(), ZMQ_XPUB}, replay_{context_.get(), ZMQ_ROUTER};
  KvSubscriptionSettings settings_;
  std::atomic<bool> is_done_ = false;
};

TEST_F(BadReplayTest, ThatNeverEnds) {
  settings_.longest_replay = std::chrono::milliseconds(20);
  const std::string fault = fault_of([&](const auto& client) {
    for (std::uint64_t number = 100; !is_done_; ++number) send(client, number);  // each of them is new
  });
  EXPECT_EQ(fault, "a replay took longer than 0 s; no more is requested");
}

TEST_F(BadReplayTest, ThatRepeatsItself) {
  settings_.replay_patience = std::chrono::milliseconds(0);
  const std::string fault = fault_of([&](const auto& client) {
    while (!is_done_) send(client, 1);
  });
  EXPECT_EQ(fault, "the replay socket sent nothing new for 0 s, and no end of its replay");
}

TEST_F(BadReplayTest, ThatIsSilentAfterTheEnd) {
  settings_.replay_after_end = std::chrono::milliseconds(0);
  EXPECT_EQ(fault_of([](const auto&) {}, true), "the replay did not end with the recording");
}

}  // namespace
}  // namespace kvtwin

#endif
