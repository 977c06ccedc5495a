// Messages between the processes of a run. Messages from one process to another arrive in the order in which they were
// sent, and none is lost. A process may send to itself.
//
// Thread: any thread may send. The mail's own thread calls the receiver.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace kvtwin {

class Mail {
 public:
  // `bytes` are borrowed for the call.
  using Receiver = std::function<void(std::size_t from, std::string_view bytes)>;

  virtual ~Mail() = default;
  // Starts the thread. `receiver` must not throw. Call it once.
  virtual void start(Receiver receiver) = 0;
  // Copies the message and returns: never waits for another process.
  virtual void send(std::size_t to, std::string_view bytes) = 0;
  // The process has ended: messages to it are dropped. Thread: any.
  virtual void forget(std::size_t /*process*/) {}
  // Returns when all messages of this process have been handed over; the thread has ended then. Requires: no process
  // sends to this one any more, and no send() follows.
  virtual void stop() = 0;
};

}  // namespace kvtwin
