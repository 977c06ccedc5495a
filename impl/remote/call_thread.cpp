#include "impl/remote/call_thread.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

namespace {

std::atomic<int> late_calls = 0;  // in progress, of all threads

// At the end of the process, libraries destroy their state. A late call would use it afterwards; so would a thread of
// the library that is not over with a call that was late and has ended.
void end_without_destructors(int status, void*) {
#ifdef KVTWIN_LEAK_CHECKS
  if (late_calls == 0) return;  // the sanitizer looks for leaks at the end of exit()
#endif
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

struct CallThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;
  bool busy = false, late = false, stopping = false;
};

CallThread::CallThread() : state_(std::make_shared<State>()), thread_([state = state_] { loop(*state); }) {}

CallThread::~CallThread() {
  bool busy;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    busy = state_->busy;
    state_->changed.notify_all();
  }
  if (busy) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

bool CallThread::run(std::function<void()> call, TimeNs timeout) {
  std::unique_lock lock(state_->mutex);
  KV_CHECK(!state_->busy, "one call at a time");
  state_->call = std::move(call);
  state_->busy = true;
  state_->changed.notify_all();
  const auto ended = [this] { return !state_->busy; };
  if (state_->changed.wait_for(lock, std::chrono::nanoseconds(timeout), ended)) return true;
  state_->late = true;
  // The handler that is registered last runs first: before those of the library.
  if (late_calls++ == 0) ::on_exit(end_without_destructors, nullptr);
  return false;
}

bool CallThread::busy() const {
  const std::lock_guard lock(state_->mutex);
  return state_->busy;
}

void CallThread::loop(State& state) {
  for (;;) {
    std::function<void()> call;
    {
      std::unique_lock lock(state.mutex);
      state.changed.wait(lock, [&state] { return state.busy || state.stopping; });
      if (!state.busy) return;
      call = std::move(state.call);
    }
    try {
      call();
    } catch (const abi::__forced_unwind&) {  // the library ends its thread: the call is late forever
      throw;
    } catch (...) {  // the results that the call did not write say that it failed
    }
    call = nullptr;
    const std::lock_guard lock(state.mutex);
    state.busy = false;
    if (std::exchange(state.late, false)) --late_calls;
    state.changed.notify_all();
  }
}

}  // namespace kvtwin
