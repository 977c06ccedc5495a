// A thread for calls of a library that may take longer than the caller can wait, or forever. If a call was late, exit()
// leaves out the destructors of libraries, because the call, or a thread of the library, may still use their state.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "policy/base/types.hpp"

namespace kvtwin {

// Thread: one thread at a time. Ownership: a call that is late goes on after run(), and after the end of this object.
// Therefore a call owns all that it uses.
class CallThread {
 public:
  // Errors: std::system_error if the system has no thread.
  CallThread();
  // Ends the thread. Does not wait for a late call: its thread ends after the call.
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  // Runs `call` and destroys it. Returns false if this takes longer than `timeout`. An exception of the call, of
  // any type, is dropped. Requires: not busy().
  bool run(std::function<void()> call, TimeNs timeout);
  // Returns whether a late call is still in progress.
  bool busy() const;

 private:
  struct State;
  static void loop(State& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace kvtwin
