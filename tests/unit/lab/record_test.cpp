// kvtwin record against a publisher in this process, which sends what SGLang's sent.
#include "lab/capture/record.hpp"

#include <gtest/gtest.h>

#include <string>

#include "lab/error.hpp"
#include "tests/folder.hpp"

#if KVTWIN_TEST_ZMQ
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "lab/capture/kv_events.hpp"
#include "tests/free_port.hpp"
#include "tests/unit/lab/bound_socket.hpp"
#include "tests/unit/lab/kv_messages.hpp"
#endif

namespace kvtwin {
namespace {

#if KVTWIN_TEST_ZMQ

using test::big_endian;
using test::BoundSocket;

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

  // Of the recording so far.
  std::uintmax_t written_bytes() const {
    std::error_code none;
    const std::uintmax_t bytes =
        std::filesystem::file_size(std::filesystem::path(arguments_.out) / "kv_events.jsonl", none);
    return none ? 0 : bytes;
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

TEST_F(HostileEngine, AReplayThatGoesOnAndOnIsTheLastOne) {
  arguments_.longest_replay = std::chrono::milliseconds(20);
  const RecordedEvents recording = record([&] {
    publish(5, good_);
    for (std::uint64_t seq = 9; !ended_; ++seq) {  // none is requested before this one
      publish(seq, good_);
      stop_ = written_bytes() > 0;
    }
  });
  EXPECT_NE(recording.faults.find("a replay took longer than 0 s; no more is requested"), std::string::npos)
      << recording.faults;
}

// As an engine that has answered a request, and whose events are still on their way at the signal.
TEST_F(HostileEngine, MessagesThatWereSentBeforeTheSignalAreWritten) {
  record([&] {
    publish(5, good_);
    const std::vector<std::uint8_t> client = replay_.receive();  // the recorder waits for the answer
    for (const std::uint64_t seq : {6U, 7U, 8U}) publish(seq, good_);
    stop_ = true;
    answer(client, ~std::uint64_t{0}, {});
  });
  EXPECT_EQ(recorded().back().seq, 8U);
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

TEST_F(HostileEngine, MessagesOfAnyShapeAreCounted) {
  const RecordedEvents recording = record([&] {
    publisher_.send(std::string("kv"), false);  // a topic alone
    for (std::size_t i = 0; i < 100'000; ++i) publisher_.send(std::string("frame"), true);
    publisher_.send(std::string("last"), false);
    publish(~std::uint64_t{0}, good_);  // the number that ends a replay
    publish(0, std::vector<std::uint8_t>(100'000, 0x91));
    end_with_a_gap(2);
  });
  EXPECT_NE(recording.faults.find("3 messages are not topic, number and payload"), std::string::npos)
      << recording.faults;
  EXPECT_NE(recording.faults.find("message 0 is no MessagePack, or deeper than 16"), std::string::npos)
      << recording.faults;
  EXPECT_EQ(recorded().back().seq, 2U);
}

TEST_F(HostileEngine, NumbersThatBeginAgainAreARestart) {
  const RecordedEvents recording = record([&] {
    publish(~std::uint64_t{0} - 1, good_);
    const std::vector<std::uint8_t> client = replay_.receive();
    EXPECT_TRUE(replay_.receive().empty());
    EXPECT_EQ(replay_.receive().size(), 8U);
    answer(client, ~std::uint64_t{0}, {});
    publish(0, good_);
    end_with_a_gap(2);
  });
  EXPECT_NE(recording.faults.find("the sequence numbers began again 1 times"), std::string::npos) << recording.faults;
  EXPECT_EQ(recorded().back().seq, 2U);
}

// A publisher by hand, byte by byte (ZMTP 3.0).
class RawPublisher {
  test::FreePort port_;

 public:
  RawPublisher() : endpoint("tcp://127.0.0.1:" + std::to_string(port_.number())) {
    EXPECT_EQ(listen(port_.socket(), 8), 0);
  }
  ~RawPublisher() { close(connection_); }
  RawPublisher(const RawPublisher&) = delete;
  RawPublisher& operator=(const RawPublisher&) = delete;

  // Accepts a connection, in the place of the one before, and waits for the subscription.
  void accept_one() {
    close(connection_);
    connection_ = accept(port_.socket(), nullptr, nullptr);
    std::string greeting("\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL", 16);
    greeting.resize(64);
    EXPECT_TRUE(send_all(greeting));
    EXPECT_TRUE(send_all(std::string("\4\x19\5READY\x0bSocket-Type\0\0\0\3PUB", 27)));
    std::string received;
    // Greeting, READY, and a subscription of everything: a message of one byte.
    while (received.size() < 64 || !received.substr(64).ends_with(std::string("\0\1\1", 3))) {
      char bytes[256];
      const ssize_t got = recv(connection_, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      received.append(bytes, static_cast<std::size_t>(got));
    }
  }

  // Sends the head of a frame that declares `size` bytes, and `body`. Returns false if the connection has broken.
  template <class Bytes>
  bool send_frame(std::uint64_t size, const Bytes& body, bool more) {
    std::string head(1, more ? '\3' : '\2');
    for (const std::uint8_t byte : big_endian(size)) head += static_cast<char>(byte);
    return send_all(head) && send_all(body);
  }
  template <class Bytes>
  bool send_frame(const Bytes& body, bool more) {
    return send_frame(body.size(), body, more);
  }

  std::string endpoint;

 private:
  template <class Bytes>
  bool send_all(const Bytes& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t part = send(connection_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (part <= 0) return false;
      sent += static_cast<std::size_t>(part);
    }
    return true;
  }

  int connection_ = -1;
};

// Records what `engine` sends on its last connection: message 7, after which the recording ends. It ends after a minute
// at the latest.
template <class Engine>
RecordedEvents record_by_hand(const Engine& engine, const test::Folder& folder) {
  RawPublisher publisher;
  std::atomic<bool> stop = false, ended = false;
  RecordArguments arguments;
  arguments.seconds = 60;
  arguments.kv_events = publisher.endpoint;
  arguments.out = folder.path() / "events";
  arguments.max_queue_mib = 64;
  std::thread thread([&] {
    engine(publisher);
    publisher.accept_one();
    const std::filesystem::path file = folder.path() / "events/kv_events.jsonl";
    const std::uintmax_t before = std::filesystem::file_size(file);
    const std::vector<std::uint8_t>& payload = test::sglang_messages()[1].payload;
    EXPECT_TRUE(publisher.send_frame(std::string("kv"), true));
    EXPECT_TRUE(publisher.send_frame(big_endian(7), true));
    EXPECT_TRUE(publisher.send_frame(payload, false));
    while (std::filesystem::file_size(file) == before && !ended) std::this_thread::yield();
    stop = true;
  });
  RecordedEvents recording = record_kv_events(arguments, stop, {});
  ended = true;
  thread.join();
  KvEventReader reader(arguments.out);
  KvEvent event;
  while (reader.next(event)) EXPECT_EQ(event.seq, 7U);
  EXPECT_EQ(event.seq, 7U) << "the recording goes on";
  return recording;
}

TEST(HostileBytes, AMessageWithoutAnEndTakesNoMoreThanTheQueueMay) {
  const test::Folder folder;
  const RecordedEvents recording = record_by_hand(
      [](RawPublisher& publisher) {
        const std::vector<std::uint8_t> megabyte(std::size_t{1} << 20);
        for (int round = 0; round < 2; ++round) {
          publisher.accept_one();
          std::size_t sent = 0;
          while (publisher.send_frame(megabyte, true)) ++sent;
          EXPECT_GE(sent, 64U);
          EXPECT_LT(sent, 4'096U);
        }
      },
      folder);
  EXPECT_NE(recording.faults.find("took too much memory 2 times, and were dropped"), std::string::npos)
      << recording.faults;
}

TEST(HostileBytes, FramesOfAnyDeclaredLengthBreakTheConnectionOnly) {
  const test::Folder folder;
  const RecordedEvents recording = record_by_hand(
      [](RawPublisher& publisher) {
        for (const std::uint64_t size : {std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
          publisher.accept_one();
          while (publisher.send_frame(size, std::string(1 << 16, 'x'), false)) continue;
        }
      },
      folder);
  EXPECT_NE(recording.faults.find("the connection broke off 2 times"), std::string::npos) << recording.faults;
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
