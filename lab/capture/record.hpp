// Records the KV events of a running engine.
#pragma once

#include <atomic>
#include <string>

#include "lab/listener.hpp"

namespace kvtwin {

struct RecordArguments {
  std::string kv_events;  // tcp://HOST:PORT of the engine's publisher
  std::string replay;     // of its replay socket; empty: none
  std::string topic;      // only messages whose topic begins with this
  std::string out;        // folder
  double seconds = 0;     // 0: until `stop`
  bool force = false;
};

struct RecordedEvents {
  std::string text;    // for people
  std::string faults;  // a sentence, if a message was lost or could not be read
};

// Subscribes and writes OUT/kv_events.jsonl until the time is over or `stop` is true. Messages that are missing are
// asked for at the replay socket, if there is one: those before the first message too.
// Thread: one. Errors: InputError (also if this build lacks libzmq), WorkError.
RecordedEvents record_kv_events(const RecordArguments& arguments, const std::atomic<bool>& stop,
                                const Listener& listener);

}  // namespace kvtwin
