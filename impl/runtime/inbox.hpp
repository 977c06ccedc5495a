// Inputs from other threads for the event loop, in the order of their push: the arrivals that a router sends to this
// engine while the run goes on, and the notices of other engines.
//
// Thread: any thread may push and close; the event loop calls the other functions.
// Requires: the time of an input is not before the time of the input pushed before it, except that notices have none.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "impl/runtime/completion_queue.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class Inbox final : public InputSource {
 public:
  // `begun` is called when the clock of the run has started; may be empty. The clock lives as long as the world.
  explicit Inbox(std::function<void(const RunClock&)> begun = {}) : begun_(std::move(begun)) {}

  // Copies the keys of an arrival and the slots of a notice.
  void push(const Input& input) {
    Item item{input, {}, {}};
    if (auto* arrival = std::get_if<Arrival>(&item.input.what)) {
      item.keys.assign(arrival->keys.begin(), arrival->keys.end());
    }
    if (auto* notice = std::get_if<Notice>(&item.input.what)) {
      item.slots.assign(notice->slots.begin(), notice->slots.end());
    }
    put([&] { items_.push_back(std::move(item)); });
  }
  // No input follows.
  void close() {
    put([this] { closed_ = true; });
  }
  // next() throws the error from now on, which ends the run.
  void fail(std::exception_ptr error) {
    put([&] { failure_ = std::move(error); });
  }

  // The run has begun. `wake` ends a wait of the event loop.
  void begin(const RunClock& clock, std::function<void()> wake) {
    {
      const std::lock_guard lock(mutex_);
      wake_ = std::move(wake);
    }
    if (begun_) begun_(clock);
  }
  // Returns whether an input is there or may follow.
  bool open() const {
    const std::lock_guard lock(mutex_);
    return !closed_ || !items_.empty() || failure_;
  }
  // Returns false if no input is there now.
  bool next(Input& input) override {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (items_.empty()) return false;
    taken_ = std::move(items_.front());
    items_.pop_front();
    if (auto* arrival = std::get_if<Arrival>(&taken_.input.what)) arrival->keys = taken_.keys;
    if (auto* notice = std::get_if<Notice>(&taken_.input.what)) notice->slots = taken_.slots;
    input = taken_.input;
    return true;
  }

 private:
  struct Item {
    Input input;
    std::vector<PageKey> keys;
    std::vector<SlotId> slots;
  };

  template <typename Change>
  void put(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    if (wake_) wake_();
  }

  std::function<void(const RunClock&)> begun_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::deque<Item> items_;
  Item taken_;  // the input of the last next(), which borrows its keys and slots
  bool closed_ = false;
  std::exception_ptr failure_;
};

}  // namespace kvtwin
