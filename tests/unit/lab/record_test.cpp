// kvtwin record against a publisher in this process, which sends what SGLang's sent.
#include "lab/capture/record.hpp"

#include <gtest/gtest.h>

#include <string>

#include "lab/error.hpp"
#include "tests/folder.hpp"

#if KVTWIN_TEST_ZMQ
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "lab/capture/kv_events.hpp"
#include "tests/unit/lab/kv_messages.hpp"
#endif

namespace kvtwin {
namespace {

#if KVTWIN_TEST_ZMQ

std::array<std::uint8_t, 8> big_endian(std::uint64_t number) {
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(number >> (56 - 8 * i));
  return bytes;
}

class BoundSocket {
 public:
  BoundSocket(void* context, int type) : socket_(zmq_socket(context, type)) {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_SNDHWM, &none, sizeof none);
    EXPECT_EQ(zmq_bind(socket_, "tcp://127.0.0.1:*"), 0);
    std::array<char, 256> text{};
    std::size_t size = text.size();
    zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &size);
    endpoint = text.data();
  }
  ~BoundSocket() { zmq_close(socket_); }
  std::vector<std::uint8_t> receive() {
    std::vector<std::uint8_t> bytes(4096);
    const int size = zmq_recv(socket_, bytes.data(), bytes.size(), 0);
    bytes.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return bytes;
  }
  template <class Bytes>
  void send(const Bytes& bytes, bool more) {
    zmq_send(socket_, bytes.data(), bytes.size(), more ? ZMQ_SNDMORE : 0);
  }

  std::string endpoint;

 private:
  void* socket_;
};

// Sends SGLang's messages but those of `lost`, and answers one request for a replay with those of `replayed`. The last
// message comes after a gap, so that the recorder asks before it ends.
TEST(Record, AsksForWhatIsMissing) {
  const std::unique_ptr<void, int (*)(void*)> context(zmq_ctx_new(), zmq_ctx_term);
  BoundSocket publisher(context.get(), ZMQ_XPUB), replay(context.get(), ZMQ_ROUTER);
  const std::vector<test::KvMessage>& all = test::sglang_messages();
  const std::size_t last = 20;
  std::atomic<bool> stop = false;
  std::uint64_t asked_from = 0;
  std::thread engine([&] {
    publisher.receive();  // the subscription has arrived
    const auto send = [&](const test::KvMessage& message) {
      publisher.send(message.topic, true);
      publisher.send(big_endian(message.seq), true);
      publisher.send(message.payload, false);
    };
    for (std::size_t i = 0; i < 15; ++i) send(all[i]);
    publisher.send(std::string("kv"), true);
    publisher.send(std::string("no number"), false);
    send(all[last]);
    const std::vector<std::uint8_t> client = replay.receive();
    EXPECT_TRUE(replay.receive().empty());
    for (const std::uint8_t byte : replay.receive()) asked_from = asked_from << 8 | byte;
    for (std::size_t i = 0; i <= last; ++i) {
      if (i == 17) continue;  // the publisher has forgotten it
      replay.send(client, true);
      replay.send(std::string(), true);
      replay.send(all[i].topic, true);
      replay.send(big_endian(all[i].seq), true);
      replay.send(all[i].payload, false);
    }
    stop = true;
    replay.send(client, true);
    replay.send(std::string(), true);
    replay.send(std::string(), true);
    replay.send(big_endian(~std::uint64_t{0}), true);
    replay.send(std::string(), false);
  });
  const test::Folder folder;
  RecordArguments arguments;
  arguments.kv_events = publisher.endpoint;
  arguments.replay = replay.endpoint;
  arguments.out = folder.path() / "events";
  const RecordedEvents recording = record_kv_events(arguments, stop, {});
  engine.join();
  EXPECT_EQ(asked_from, 15U);
  KvEventReader reader(arguments.out);
  std::vector<std::uint64_t> numbers, missing;
  for (KvEvent event; reader.next(event);) {
    if (event.kind == KvEvent::Kind::missing) missing.push_back(event.seq);
    if (event.kind != KvEvent::Kind::missing && (numbers.empty() || numbers.back() != event.seq)) {
      numbers.push_back(event.seq);
    }
  }
  EXPECT_TRUE(std::ranges::is_sorted(numbers));
  EXPECT_EQ(numbers.back(), last);
  EXPECT_EQ(missing, std::vector<std::uint64_t>{17});
  EXPECT_NE(recording.text.find("20, 4 of them replayed"), std::string::npos) << recording.text;
  EXPECT_NE(recording.faults.find("1 messages were lost"), std::string::npos) << recording.faults;
  EXPECT_NE(recording.faults.find("1 messages are not topic, number and payload"), std::string::npos)
      << recording.faults;
}

// Connects to a publisher that `engine` plays in a thread of its own, after the subscription has arrived.
class HostileEngine : public testing::Test {
 protected:
  template <typename Engine>
  RecordedEvents record(const Engine& engine) {
    arguments_.kv_events = publisher_.endpoint;
    arguments_.replay = replay_.endpoint;
    arguments_.out = folder_.path() / "events";
    std::thread thread([&] {
      publisher_.receive();
      engine();
    });
    RecordedEvents recording = record_kv_events(arguments_, stop_, {});
    ended_ = true;
    thread.join();
    return recording;
  }

  void publish(std::uint64_t seq, const std::vector<std::uint8_t>& payload) {
    publisher_.send(std::string("kv"), true);
    publisher_.send(big_endian(seq), true);
    publisher_.send(payload, false);
  }

  void answer(const std::vector<std::uint8_t>& client, std::uint64_t seq, const std::vector<std::uint8_t>& payload) {
    replay_.send(client, true);
    replay_.send(std::string(), true);
    replay_.send(big_endian(seq), true);
    replay_.send(payload, false);
  }

  // Publishes a message after a gap, and ends the recording as soon as it asks for what is missing.
  void end_with_a_gap(std::uint64_t seq) {
    publish(seq, good_);
    const std::vector<std::uint8_t> client = replay_.receive();
    stop_ = true;
    answer(client, ~std::uint64_t{0}, {});
  }

  std::vector<KvEvent> recorded() const {
    KvEventReader reader(arguments_.out);
    std::vector<KvEvent> events;
    for (KvEvent event; reader.next(event);) events.push_back(event);
    return events;
  }

  std::unique_ptr<void, int (*)(void*)> context_{zmq_ctx_new(), zmq_ctx_term};
  BoundSocket publisher_{context_.get(), ZMQ_XPUB}, replay_{context_.get(), ZMQ_ROUTER};
  std::atomic<bool> stop_ = false, ended_ = false;
  test::Folder folder_;
  RecordArguments arguments_;
  const std::vector<std::uint8_t> good_ = test::sglang_messages()[1].payload;
};

TEST_F(HostileEngine, AReplayWithoutAnEndEndsAfterTheSignal) {
  arguments_.replay_after_end = std::chrono::milliseconds(0);
  const RecordedEvents recording = record([&] {
    publish(5, good_);
    const std::vector<std::uint8_t> client = replay_.receive();
    while (!ended_) {
      answer(client, 0, good_);
      stop_ = true;  // as at a signal
    }
  });
  EXPECT_NE(recording.faults.find("the replay did not end with the recording"), std::string::npos) << recording.faults;
  EXPECT_EQ(recorded().back().seq, 5U) << "the message that came by the other socket is written";
}

TEST_F(HostileEngine, AMessageAboveTheLimitIsNamedAndTheRecordingGoesOn) {
  arguments_.max_message_mib = 1;
  const RecordedEvents recording = record([&] {
    publish(0, good_);
    publish(1, std::vector<std::uint8_t>((std::size_t{1} << 20) + 1, 0xc0));
    end_with_a_gap(3);
  });
  EXPECT_NE(recording.faults.find("1 messages could not be read, the first: message 1 has 1048577 bytes, more than "
                                  "--max-message-mib 1"),
            std::string::npos)
      << recording.faults;
  EXPECT_EQ(recorded().back().seq, 3U);
}

TEST(Record, RefusesWhatIsNoEndpoint) {
  const test::Folder folder;
  RecordArguments arguments;
  arguments.out = folder.path() / "events";
  arguments.kv_events = "localhost";
  const std::atomic<bool> stop = true;
  EXPECT_THROW(record_kv_events(arguments, stop, {}), InputError);
  EXPECT_FALSE(std::filesystem::exists(arguments.out));
}

#else

TEST(Record, SaysThatLibzmqIsMissing) {
  const std::atomic<bool> stop = true;
  EXPECT_THROW(record_kv_events({}, stop, {}), InputError);
}

#endif

}  // namespace
}  // namespace kvtwin
