// Records the KV events of a running engine.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "lab/listener.hpp"

namespace kvtwin {

struct RecordArguments {
  std::string kv_events;                             // tcp://HOST:PORT of the engine's publisher
  std::string replay;                                // of its replay socket; empty: none
  std::string topic;                                 // only messages whose topic begins with this
  std::string out;                                   // folder
  double seconds = 0;                                // 0: until `stop`
  std::uint64_t max_message_mib = 16;                // larger messages are counted, and not read
  std::uint64_t max_queue_mib = 1024;                // of messages that have arrived and have not been read
  std::chrono::milliseconds longest_replay{60'000};  // after a longer one, no other is requested
  std::chrono::milliseconds replay_after_end{2000};  // the longest time for a replay after the end of the recording
  bool without_token_ids = false;                    // nothing of the prompts: hashes, sizes and times only
  bool force = false;
};

struct RecordedEvents {
  std::string text;    // for people
  std::string faults;  // a sentence, if something was lost, passed over, or could not be read
};

// Subscribes and writes OUT/kv_events.jsonl until the time is over or `stop` is true. Messages that are missing are
// asked for at the replay socket, if there is one: those before the first message too. A replay ends with the
// recording, or replay_after_end later, whatever the other side sends. Memory: max_queue_mib, what arrives while one
// message is read, and a multiple of max_message_mib. Thread: one, and those of libzmq. Errors: InputError (also if
// this build lacks libzmq), WorkError.
RecordedEvents record_kv_events(const RecordArguments& arguments, const std::atomic<bool>& stop,
                                const Listener& listener);

}  // namespace kvtwin
