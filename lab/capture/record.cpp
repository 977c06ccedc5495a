#include "lab/capture/record.hpp"

#include "lab/error.hpp"

#if KVTWIN_HAVE_ZMQ
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lab/capture/kv_events.hpp"
#include "lab/decision_text.hpp"
#endif

namespace kvtwin {

#if !KVTWIN_HAVE_ZMQ

RecordedEvents record_kv_events(const RecordArguments& /*arguments*/, const std::atomic<bool>& /*stop*/,
                                const Listener& /*listener*/) {
  throw InputError("record: this build has no libzmq; install libzmq3-dev and build again");
}

#else

namespace {

using Clock = std::chrono::steady_clock;
using Frames = std::vector<std::vector<std::uint8_t> >;

constexpr long kPollMs = 100;
constexpr std::int64_t kMaxMessageBytes = std::int64_t{1} << 28;
constexpr std::size_t kMaxFrames = 8;  // of one message; the rest is dropped
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};
constexpr auto kReplayPatience = std::chrono::seconds(5);  // between two messages of a replay

class Socket {
 public:
  Socket(void* context, int type, const std::string& endpoint, const char* option)
      : socket_(zmq_socket(context, type)) {
    if (socket_ == nullptr) throw WorkError(std::string("record: no socket: ") + zmq_strerror(zmq_errno()));
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &none, sizeof none);  // loses nothing here
    zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &kMaxMessageBytes, sizeof kMaxMessageBytes);
    if (zmq_connect(socket_, endpoint.c_str()) == 0) return;
    const std::string why = zmq_strerror(zmq_errno());
    zmq_close(socket_);
    throw InputError(std::string(option) + " " + endpoint + ": " + why + "; give tcp://HOST:PORT");
  }
  ~Socket() { zmq_close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void subscribe(const std::string& topic) { zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size()); }

  void send(std::span<const std::uint8_t> frame, bool more) {
    if (zmq_send(socket_, frame.data(), frame.size(), (more ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) < 0) {
      throw WorkError(std::string("record: the replay socket can't be asked: ") + zmq_strerror(zmq_errno()));
    }
  }

  // Waits for at most `ms`; false if no whole message came.
  bool receive(Frames& frames, long ms) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, ms) <= 0) return false;  // a signal, too
    frames.clear();
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        return false;
      }
      const auto* const bytes = static_cast<const std::uint8_t*>(zmq_msg_data(&message));
      if (frames.size() < kMaxFrames) frames.emplace_back(bytes, bytes + zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return true;
  }

 private:
  void* socket_;
};

std::uint64_t number_in(std::span<const std::uint8_t> bytes) {
  std::uint64_t number = 0;
  for (const std::uint8_t byte : bytes) number = number << 8 | byte;
  return number;
}

class Recorder {
 public:
  Recorder(const RecordArguments& arguments, void* context, const std::atomic<bool>& stop)
      : arguments_(arguments),
        stop_(stop),
        live_(context, ZMQ_SUB, arguments.kv_events, "--kv-events"),
        writer_(arguments.out, arguments.kv_events, arguments.topic, arguments.force) {
    if (!arguments.replay.empty()) {
      replay_ = std::make_unique<Socket>(context, ZMQ_DEALER, arguments.replay, "--replay");
      writer_.expect_from_zero();
    }
    live_.subscribe(arguments.topic);
  }

  void run() {
    const auto begin = Clock::now();
    const std::chrono::duration<double> limit(arguments_.seconds);
    while (!stop_ && (arguments_.seconds == 0 || Clock::now() - begin < limit)) {
      Frames frames;
      if (live_.receive(frames, kPollMs)) take(frames);
    }
    writer_.finish();
  }

  const KvEventWriter& writer() const { return writer_; }
  std::uint64_t replayed() const { return replayed_; }
  std::uint64_t malformed() const { return malformed_; }
  bool replay_fell_silent() const { return replay_silent_; }

 private:
  void take(const Frames& frames) {
    if (frames.size() != 3 || frames[1].size() != 8) {
      ++malformed_;
      return;
    }
    const std::uint64_t seq = number_in(frames[1]);
    if (seq == kEndOfReplay) {
      ++malformed_;
      return;
    }
    if (writer_.missing_before(seq) && replay_ != nullptr) fetch_before(seq);
    writer_.write(seq, frames[2]);
  }

  // Asks for what is missing before `seq`, and writes of it what the publisher still has.
  void fetch_before(std::uint64_t seq) {
    std::array<std::uint8_t, 8> first{};
    for (std::size_t i = 0; i < first.size(); ++i) {
      first[i] = static_cast<std::uint8_t>((*writer_.missing_before(seq))[0] >> (8 * (first.size() - 1 - i)));
    }
    replay_->send({}, true);
    replay_->send(first, false);
    auto last_heard = Clock::now();
    for (;;) {  // to its end, whatever `stop_` says: what is known of the gap depends on it
      Frames frames;
      if (!replay_->receive(frames, kPollMs)) {
        replay_silent_ = Clock::now() - last_heard > kReplayPatience;
        if (replay_silent_) return;
        continue;
      }
      last_heard = Clock::now();
      // An empty frame, the topic (SGLang), the number and the payload.
      if (frames.size() < 3 || frames[frames.size() - 2].size() != 8) {
        ++malformed_;
        continue;
      }
      const std::uint64_t number = number_in(frames[frames.size() - 2]);
      if (number == kEndOfReplay) return;
      const auto missing = writer_.missing_before(seq);
      if (!missing || number < missing->front() || number >= seq) continue;  // it comes by the other socket
      writer_.write(number, frames.back());
      ++replayed_;
    }
  }

  const RecordArguments& arguments_;
  const std::atomic<bool>& stop_;
  Socket live_;
  std::unique_ptr<Socket> replay_;
  KvEventWriter writer_;
  std::uint64_t replayed_ = 0, malformed_ = 0;
  bool replay_silent_ = false;
};

std::string text_of(const Recorder& recorder) {
  const KvEventCounts& counts = recorder.writer().counts();
  return "messages     " + grouped(counts.messages) + ", " + grouped(recorder.replayed()) + " of them replayed\n" +
         "stored       " + grouped(counts.stored_blocks) + " blocks in " + grouped(counts.stored_events) + " events\n" +
         "removed      " + grouped(counts.removed_blocks) + " blocks in " + grouped(counts.removed_events) +
         " events\n" + "cleared      " + grouped(counts.cleared) + " times\n" + "missing      " +
         grouped(counts.missing) + " messages\n" + "written to   " + recorder.writer().path().string() + "\n";
}

std::string faults_of(const Recorder& recorder) {
  const KvEventCounts& counts = recorder.writer().counts();
  std::string sentence;
  const auto add = [&sentence](const std::string& words) { sentence += (sentence.empty() ? "" : "; ") + words; };
  if (counts.missing > 0) add(grouped(counts.missing) + " messages were lost");
  if (counts.restarts > 0) add("the sequence numbers began again " + grouped(counts.restarts) + " times");
  if (counts.bad > 0) add(grouped(counts.bad) + " messages could not be read, the first: " + counts.first_problem);
  if (recorder.malformed() > 0) add(grouped(recorder.malformed()) + " messages are not topic, number and payload");
  if (recorder.replay_fell_silent()) add("the replay socket gave no answer for 5 s");
  return sentence.empty() ? "" : "record: " + sentence;
}

}  // namespace

RecordedEvents record_kv_events(const RecordArguments& arguments, const std::atomic<bool>& stop,
                                const Listener& listener) {
  const std::unique_ptr<void, int (*)(void*)> context(zmq_ctx_new(), zmq_ctx_term);
  if (context == nullptr) throw WorkError(std::string("record: no ZeroMQ: ") + zmq_strerror(zmq_errno()));
  Recorder recorder(arguments, context.get(), stop);
  listener.begin("recording " + arguments.kv_events + (arguments.seconds == 0 ? "; stop with Ctrl-C" : ""));
  recorder.run();
  return {text_of(recorder), faults_of(recorder)};
}

#endif

}  // namespace kvtwin
