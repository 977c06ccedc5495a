// A subscription to an engine's publisher of KV events: messages in the order of their numbers, with lost ones filled
// from the replay socket, within limits of memory whatever the other side sends. Only in builds with libzmq.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvtwin {

// Takes the messages.
class KvMessageSink {
 public:
  virtual ~KvMessageSink() = default;
  // Returns the numbers, first and last, that are missing before `seq`, if any.
  virtual std::optional<std::array<std::uint64_t, 2>> missing_before(std::uint64_t seq) const = 0;
  virtual void write(std::uint64_t seq, std::span<const std::uint8_t> payload) = 0;
  // A message that was too large to read.
  virtual void write_unread(std::uint64_t seq, const std::string& why) = 0;
};

struct KvSubscriptionSettings {
  std::string endpoint, replay;  // tcp://HOST:PORT; replay: empty: none
  std::string topic;             // only messages whose topic begins with this
  std::uint64_t max_message_mib = 16;
  std::uint64_t max_queue_mib = 1024;  // of messages that have arrived and have not been read, of the process
  std::uint64_t own_mib = 0;           // that the process may allocate besides
  std::chrono::milliseconds replay_after_end{2000};  // the longest time for a replay after the end
  std::chrono::milliseconds longest_replay{60'000};  // in all; after a longer one, no other is requested
  std::chrono::milliseconds replay_patience{5'000};  // between two new messages of a replay
  const char* option = "--kv-events";                // for errors
  const char* replay_option = "--replay";
};

// The connections of a process.
class KvConnections {
 public:
  KvConnections();
  ~KvConnections();
  KvConnections(const KvConnections&) = delete;
  KvConnections& operator=(const KvConnections&) = delete;
  void* get() const { return context_; }

 private:
  void* context_;
};

class KvSubscription {
 public:
  // `is_over`: whether the recording has ended. Requires: all outlive this object. Errors: InputError, WorkError.
  KvSubscription(const KvSubscriptionSettings& settings, const KvConnections& connections, KvMessageSink& sink,
                 std::function<bool()> is_over);
  ~KvSubscription();
  KvSubscription(const KvSubscription&) = delete;
  KvSubscription& operator=(const KvSubscription&) = delete;

  // Waits at most so long for a message, and passes it on. Returns false if none came. Errors: those of the sink.
  bool receive(std::chrono::milliseconds longest);

  std::uint64_t messages() const;
  std::uint64_t replayed() const;
  // What went wrong, as parts of a sentence, beside what the sink knows.
  std::vector<std::string> faults() const;
  std::uint64_t dropped_queues() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
