#include "lab/capture/kv_subscription.hpp"

#if KVTWIN_HAVE_ZMQ
#include <malloc.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"

// Sanitizers have an allocator of their own. GCC says so by a macro, and clang by a feature.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVTWIN_SANITIZED_ALLOCATOR 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVTWIN_SANITIZED_ALLOCATOR 1
#endif
#ifdef KVTWIN_SANITIZED_ALLOCATOR
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // GCC has no header with it
#endif

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long kPollMs = 100;  // of a replay
// libzmq gives the connection up at a larger frame, without its number. Frames up to this size are received, and those
// above the limit of the recording are counted by number.
constexpr std::uint64_t kMinReceivedBytes = std::uint64_t{1} << 28;
constexpr int kMaxQueuedMessages = 100'000;  // as many as vLLM's publisher queues; more are missing, and asked for
constexpr std::size_t kMaxFrames = 8;        // of one message; the rest is dropped
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};
constexpr auto kReconnectPatience = std::chrono::seconds(1);
constexpr auto kMemoryPeriod = std::chrono::milliseconds(20);       // between two looks at the memory
constexpr auto kRemovalPatience = std::chrono::milliseconds(1000);  // for libzmq to free a queue

struct Frame {
  std::vector<std::uint8_t> bytes;
  std::uint64_t size = 0;  // bytes is empty if this is above the limit
};
using Frames = std::vector<Frame>;

// The memory that the process has allocated, bytes.
std::uint64_t allocated_bytes() {
#ifdef KVTWIN_SANITIZED_ALLOCATOR
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 all = mallinfo2();
  return all.uordblks + all.hblkhd;
#endif
}

// What libzmq says of a socket's connection.
class ConnectionMonitor {
 public:
  ConnectionMonitor(void* context, void* socket) : monitored_(socket) {
    const std::string endpoint = "inproc://monitor-" + std::to_string(reinterpret_cast<std::uintptr_t>(socket));
    if (zmq_socket_monitor(socket, endpoint.c_str(), ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED) != 0) return;
    events_ = zmq_socket(context, ZMQ_PAIR);
    if (events_ != nullptr) zmq_connect(events_, endpoint.c_str());
  }
  ~ConnectionMonitor() {
    zmq_socket_monitor(monitored_, nullptr, 0);
    if (events_ != nullptr) zmq_close(events_);
  }
  ConnectionMonitor(const ConnectionMonitor&) = delete;
  ConnectionMonitor& operator=(const ConnectionMonitor&) = delete;

  // Returns true if the connection broke off, and libzmq does not make it again: the other side sent a frame that is
  // too large, or bytes that are no ZeroMQ.
  bool is_given_up() {
    while (events_ != nullptr) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, events_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        break;
      }
      std::uint16_t event = 0;  // the first frame begins with it; the second one is the address
      if (zmq_msg_more(&message) != 0 && zmq_msg_size(&message) >= sizeof event) {
        std::memcpy(&event, zmq_msg_data(&message), sizeof event);
        broken_.reset();
        if (event == ZMQ_EVENT_DISCONNECTED) broken_ = Clock::now();
      }
      zmq_msg_close(&message);
    }
    return broken_ && Clock::now() - *broken_ > kReconnectPatience;
  }

 private:
  void* monitored_;
  void* events_ = nullptr;
  std::optional<Clock::time_point> broken_;
};

class Socket {
 public:
  Socket(void* context, int type, std::string endpoint, const char* option, std::uint64_t max_bytes)
      : context_(context), type_(type), endpoint_(std::move(endpoint)), option_(option), max_bytes_(max_bytes) {
    open();
  }
  ~Socket() {
    if (socket_ != nullptr) close();
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void subscribe(const std::string& topic) {
    topic_ = topic;
    zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic_.data(), topic_.size());
  }

  void send(std::span<const std::uint8_t> frame, bool more) {
    if (zmq_send(socket_, frame.data(), frame.size(), (more ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) < 0) {
      throw WorkError(std::string("the replay socket can't be asked: ") + zmq_strerror(zmq_errno()));
    }
  }

  // Waits for at most `ms`; false if no whole message came.
  bool receive(Frames& frames, long ms) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    const int ready = zmq_poll(&item, 1, ms);
    if (ready == 0 && monitor_->is_given_up()) {
      ++broken_;
      close();
      connect();
    }
    if (ready <= 0) return false;  // a signal, too
    frames.clear();
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        return false;
      }
      const auto* const bytes = static_cast<const std::uint8_t*>(zmq_msg_data(&message));
      const std::size_t size = zmq_msg_size(&message);
      if (frames.size() < kMaxFrames) {
        frames.push_back({size <= max_bytes_ ? std::vector(bytes, bytes + size) : std::vector<std::uint8_t>(), size});
      }
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return true;
  }

  std::uint64_t broken_connections() const { return broken_; }

  // Drops all that has arrived, with the connection.
  void close() {
    monitor_.reset();
    zmq_close(socket_);
    socket_ = nullptr;
  }
  // Requires: closed.
  void connect() {
    open();
    if (type_ == ZMQ_SUB) subscribe(topic_);
  }

 private:
  void open() {
    socket_ = zmq_socket(context_, type_);
    if (socket_ == nullptr) throw WorkError(std::string("no socket: ") + zmq_strerror(zmq_errno()));
    const int none = 0;
    const auto largest = static_cast<std::int64_t>(std::max(max_bytes_, kMinReceivedBytes));
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &kMaxQueuedMessages, sizeof kMaxQueuedMessages);
    zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    monitor_ = std::make_unique<ConnectionMonitor>(context_, socket_);
    if (zmq_connect(socket_, endpoint_.c_str()) == 0) return;
    const std::string why = zmq_strerror(zmq_errno());
    close();
    throw InputError(std::string(option_) + " " + endpoint_ + ": " + why + "; give tcp://HOST:PORT");
  }

  void* context_;
  int type_;
  std::string endpoint_, topic_;
  const char* option_;
  std::uint64_t max_bytes_;
  void* socket_ = nullptr;
  std::unique_ptr<ConnectionMonitor> monitor_;
  std::uint64_t broken_ = 0;
};

std::uint64_t number_in(std::span<const std::uint8_t> bytes) {
  std::uint64_t number = 0;
  for (const std::uint8_t byte : bytes) number = number << 8 | byte;
  return number;
}

}  // namespace

struct KvSubscription::State {
  State(const KvSubscriptionSettings& how, void* context, KvMessageSink& to, std::function<bool()> over)
      : settings(how),
        sink(to),
        is_over(std::move(over)),
        live(context, ZMQ_SUB, settings.endpoint, settings.option, max_bytes()) {
    if (!settings.replay.empty()) {
      replay = std::make_unique<Socket>(context, ZMQ_DEALER, settings.replay, settings.replay_option, max_bytes());
    }
    live.subscribe(settings.topic);
  }

  std::uint64_t max_bytes() const { return settings.max_message_mib << 20; }

  // libzmq keeps a message until its last frame has arrived, however many come. If the queues have outgrown their
  // limit, both are dropped, and the connections are made again when the memory is free.
  void bound_queues() {
    const auto now = Clock::now();
    if (now - last_look < kMemoryPeriod) return;
    last_look = now;
    const std::uint64_t limit = before + ((settings.max_queue_mib + settings.own_mib) << 20) + 2 * max_bytes();
    if (allocated_bytes() <= limit) return;
    ++dropped_queues;
    live.close();
    if (replay != nullptr) replay->close();
    // libzmq frees the queue in a thread of its own, and does not say when.
    while (allocated_bytes() > limit && Clock::now() - now < kRemovalPatience) {
      std::this_thread::sleep_for(kMemoryPeriod);
    }
    live.connect();
    if (replay != nullptr) replay->connect();
  }

  void write(std::uint64_t seq, const Frame& payload) {
    if (payload.size <= max_bytes()) return sink.write(seq, payload.bytes);
    sink.write_unread(seq, "has " + std::to_string(payload.size) + " bytes, more than --max-message-mib " +
                               std::to_string(settings.max_message_mib));
  }

  void take(const Frames& frames) {
    if (frames.size() != 3 || frames[1].bytes.size() != 8) {
      ++malformed;
      return;
    }
    const std::uint64_t seq = number_in(frames[1].bytes);
    if (seq == kEndOfReplay) {
      ++malformed;
      return;
    }
    ++messages;
    if (sink.missing_before(seq) && replay != nullptr) fetch_before(seq);
    write(seq, frames[2]);
  }

  // Requests the messages that are missing before `seq`, and writes those that the publisher still holds. Returns at
  // the end of the replay, if no new number comes for replay_patience, after longest_replay, or replay_after_end after
  // the end of the recording.
  void fetch_before(std::uint64_t seq) {
    std::array<std::uint8_t, 8> first{};
    for (std::size_t i = 0; i < first.size(); ++i) {
      first[i] = static_cast<std::uint8_t>((*sink.missing_before(seq))[0] >> (8 * (first.size() - 1 - i)));
    }
    replay->send({}, true);
    replay->send(first, false);
    const auto begin = Clock::now();
    auto last_new = begin;
    std::optional<Clock::time_point> over;
    std::optional<std::uint64_t> last_number;
    for (;;) {
      const auto now = Clock::now();
      if (!over && is_over()) over = now;
      if (now - last_new > settings.replay_patience) {
        replay_fault = "the replay socket sent nothing new for " +
                       std::to_string(settings.replay_patience.count() / 1000) + " s, and no end of its replay";
        return;
      }
      if (now - begin > settings.longest_replay) {
        replay_fault = "a replay took longer than " + std::to_string(settings.longest_replay.count() / 1000) +
                       " s; no more is requested";
        replay.reset();
        return;
      }
      if (over && now - *over > settings.replay_after_end) {
        replay_fault = "the replay did not end with the recording";
        return;
      }
      Frames frames;
      bound_queues();
      if (!replay->receive(frames, kPollMs)) continue;
      // An empty frame, the topic (SGLang), the number and the payload.
      if (frames.size() < 3 || frames[frames.size() - 2].bytes.size() != 8) {
        ++malformed;
        continue;
      }
      const std::uint64_t number = number_in(frames[frames.size() - 2].bytes);
      if (number == kEndOfReplay) return;
      if (!last_number || number > *last_number) {
        last_number = number;
        last_new = now;
      }
      const auto missing = sink.missing_before(seq);
      if (!missing || number < missing->front() || number >= seq) continue;  // it comes by the other socket
      write(number, frames.back());
      ++replayed;
    }
  }

  const KvSubscriptionSettings settings;
  KvMessageSink& sink;
  std::function<bool()> is_over;
  Socket live;
  std::unique_ptr<Socket> replay;
  std::uint64_t messages = 0, replayed = 0, malformed = 0;
  std::string replay_fault;
  Clock::time_point last_look = Clock::now();
  std::uint64_t before = allocated_bytes(), dropped_queues = 0;
};

KvConnections::KvConnections() : context_(zmq_ctx_new()) {
  if (context_ == nullptr) throw WorkError(std::string("no ZeroMQ: ") + zmq_strerror(zmq_errno()));
}
KvConnections::~KvConnections() { zmq_ctx_term(context_); }

KvSubscription::KvSubscription(const KvSubscriptionSettings& settings, const KvConnections& connections,
                               KvMessageSink& sink, std::function<bool()> is_over)
    : state_(std::make_unique<State>(settings, connections.get(), sink, std::move(is_over))) {}
KvSubscription::~KvSubscription() = default;

bool KvSubscription::receive(std::chrono::milliseconds longest) {
  Frames frames;
  state_->bound_queues();
  if (!state_->live.receive(frames, longest.count())) return false;
  state_->take(frames);
  return true;
}

std::uint64_t KvSubscription::messages() const { return state_->messages; }
std::uint64_t KvSubscription::replayed() const { return state_->replayed; }
std::uint64_t KvSubscription::dropped_queues() const { return state_->dropped_queues; }

std::vector<std::string> KvSubscription::faults() const {
  std::vector<std::string> parts;
  const State& s = *state_;
  if (s.malformed > 0) parts.push_back(grouped(s.malformed) + " messages are not topic, number and payload");
  if (!s.replay_fault.empty()) parts.push_back(s.replay_fault);
  const std::uint64_t broken = s.live.broken_connections() + (s.replay == nullptr ? 0 : s.replay->broken_connections());
  if (broken > 0) {
    parts.push_back("the connection broke off " + grouped(broken) +
                    " times, at a frame that is too large or at bytes that are no ZeroMQ, and was made again");
  }
  if (s.dropped_queues > 0) {
    parts.push_back("messages that had not been read took too much memory " + grouped(s.dropped_queues) +
                    " times, and were dropped with the connection");
  }
  return parts;
}

}  // namespace kvtwin
#endif
