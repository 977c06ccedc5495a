#include "impl/remote/call_thread.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {

struct CallThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;
  bool busy = false, stopping = false;
};

CallThread::~CallThread() {
  if (!state_) return;
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
  if (!state_) {
    auto state = std::make_shared<State>();
    thread_ = std::thread([state] { loop(*state); });
    state_ = std::move(state);
  }
  std::unique_lock lock(state_->mutex);
  KV_CHECK(!state_->busy, "one call at a time");
  state_->call = std::move(call);
  state_->busy = true;
  state_->changed.notify_all();
  return state_->changed.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return !state_->busy; });
}

bool CallThread::busy() const {
  if (!state_) return false;
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
    } catch (const std::exception&) {  // the results that the call did not write say that it failed
    }
    call = nullptr;
    const std::lock_guard lock(state.mutex);
    state.call = nullptr;
    state.busy = false;
    state.changed.notify_all();
  }
}

}  // namespace kvtwin
