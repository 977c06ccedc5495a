#include "lab/run/real_engines.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/run/engine_messages.hpp"
#include "lab/run/request_route.hpp"
#include "policy/base/check.hpp"
#include "policy/seam/live_source.hpp"

namespace kvtwin {

// Sends the events of an engine to process 0.
class RealEngines::Reporter final : public Observer {
 public:
  Reporter(Mail& mail, bool with_pages) : mail_(mail), with_pages_(with_pages) {}
  void on_event(const Event& event) override {
    switch (event.kind) {
      case EventKind::slots_allocated:
      case EventKind::slots_released: return;
      case EventKind::pages_stored:
      case EventKind::pages_removed:
        if (!with_pages_) return;
        break;
      default: break;
    }
    mail_.send(0, message_of(event));
  }

 private:
  Mail& mail_;
  bool with_pages_;  // the router follows the pages of the engines
};

// The thread of process 0 that reads the stream, routes it, and observes all events.
class RealEngines::Dispatch {
 public:
  Dispatch(Mail& mail, const Setup& setup, std::size_t ranks, const EngineStream& stream,
           std::function<void(std::exception_ptr)> failed)
      : mail_(mail),
        route_(setup.route, setup.router, setup.route_view_delay),
        engines_(setup.world.engines),
        ranks_(ranks),
        stream_(stream),
        live_(dynamic_cast<LiveSource*>(stream.source)),
        failed_(std::move(failed)),
        states_(setup.world.engines) {}
  ~Dispatch() {
    if (thread_.joinable()) thread_.join();
  }

  // Starts the thread. Arrivals are due by this clock.
  void begin(const RunClock& clock) {
    thread_ = std::thread([this, &clock] {
      try {
        loop(clock);
      } catch (...) {
        failure_ = std::current_exception();
        failed_(failure_);
      }
    });
  }
  // An event or the end of an engine, from its first rank. Called by the thread of the mail.
  void receive(std::size_t process, std::string_view message) {
    {
      const std::lock_guard lock(mutex_);
      received_.emplace_back(process / ranks_, message);
    }
    changed_.notify_one();
  }
  // Waits for the end of all engines. Errors: those of the stream.
  void join() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  using Message = std::pair<std::size_t, std::string>;  // engine, bytes
  struct EngineState {
    std::uint64_t unanswered = 0;  // requests that were sent to it and have not ended
    bool over = false;
    TimeNs heard = 0;  // time of its last message, or of the first request after a time without requests
  };

  void loop(const RunClock& clock);
  void observe(std::size_t engine, const std::string& message);
  void route_held(TimeNs now);
  TimeNs end_of_patience() const;
  [[noreturn]] void refuse_silence() const;
  void send(std::size_t engine, const std::string& message) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) mail_.send(engine * ranks_ + rank, message);
  }
  void send_to_all(const std::string& message) {
    for (std::size_t engine = 0; engine < engines_; ++engine) send(engine, message);
  }

  Mail& mail_;
  RequestRoute route_;
  const std::size_t engines_, ranks_;
  const EngineStream stream_;
  LiveSource* const live_;  // the source, or null
  const std::function<void(std::exception_ptr)> failed_;

  Input held_;  // the next input of the source
  bool has_ = false;
  bool closed_ = false;
  std::uint64_t unanswered_ = 0;  // of all engines
  std::size_t over_ = 0;          // engines that have ended
  std::vector<EngineState> states_;

  std::mutex mutex_;  // of `received_`
  std::condition_variable changed_;
  std::vector<Message> received_;

  std::exception_ptr failure_;
  std::thread thread_;
};

void RealEngines::Dispatch::loop(const RunClock& clock) {
  has_ = stream_.source->next(held_);
  std::vector<Message> messages;
  while (over_ < engines_) {
    for (const auto& [engine, message] : messages) {
      states_[engine].heard = clock.now();
      observe(engine, message);
      if (live_ != nullptr && live_->overtake(held_, has_)) has_ = true;
    }
    messages.clear();
    while (has_ && held_.now <= clock.now()) route_held(clock.now());
    // A source that waits for answers may have more after each of them.
    if (!has_ && !closed_ && (live_ == nullptr || unanswered_ == 0)) {
      closed_ = true;
      send_to_all(message_of(EngineMessage::closed));
      for (EngineState& state : states_) state.heard = std::max(state.heard, clock.now());
    }
    if (stream_.ticks) stream_.ticks(clock.now());
    std::unique_lock lock(mutex_);
    const auto has_messages = [this] { return !received_.empty(); };
    const TimeNs patience = end_of_patience();
    const TimeNs until = has_ ? std::min(patience, held_.now) : patience;
    if (over_ < engines_) changed_.wait_until(lock, clock.at(until), has_messages);
    if (received_.empty() && clock.now() > patience) refuse_silence();
    messages.swap(received_);
  }
}

// Returns the time at which an engine that has work and stays silent until then has hung.
TimeNs RealEngines::Dispatch::end_of_patience() const {
  TimeNs end = INT64_MAX;
  for (const EngineState& state : states_) {
    if (state.over || (state.unanswered == 0 && !closed_)) continue;
    end = std::min(end, state.heard + stream_.most_silence);
  }
  return end;
}

void RealEngines::Dispatch::refuse_silence() const {
  const auto most = std::ranges::min_element(states_, {}, [this](const EngineState& state) {
    return state.over || (state.unanswered == 0 && !closed_) ? INT64_MAX : state.heard;
  });
  throw WorkError("engine " + std::to_string(most - states_.begin()) + " has work and has sent nothing for " +
                  std::to_string(stream_.most_silence / kNsPerSecond) + " s; has it hung, or been stopped?");
}

void RealEngines::Dispatch::route_held(TimeNs now) {
  const std::size_t engine = route_.engine_of(held_);
  if (std::holds_alternative<Arrival>(held_.what)) {
    ++unanswered_;
    if (states_[engine].unanswered++ == 0) states_[engine].heard = now;
  }
  const std::string message = message_of(held_);
  if (engine == InputRoute::kEveryEngine) {
    send_to_all(message);
  } else {
    send(engine, message);
  }
  has_ = stream_.source->next(held_);
}

void RealEngines::Dispatch::observe(std::size_t engine, const std::string& message) {
  if (kind_of(message) == EngineMessage::over) {
    ++over_;
    states_[engine].over = true;
    return;
  }
  ReceivedEvent received(message);
  Event& event = received.event;
  event.engine = engine;
  if (event.kind == EventKind::finished || event.kind == EventKind::rejected || event.kind == EventKind::aborted) {
    KV_CHECK(states_[engine].unanswered > 0, "a request ends once, on its engine");
    --unanswered_;
    --states_[engine].unanswered;
  }
  route_.on_event(engine, event);
  if (stream_.observer != nullptr) stream_.observer->on_event(event);
}

// ---- one process -------------------------------------------------------------------------------------

RealEngines::RealEngines(Mail& mail, const Setup& setup, std::size_t process)
    : mail_(mail), setup_(setup), process_(process), ranks_(setup.engine.ranks) {
  if (process_ % ranks_ != 0) return;
  const bool with_pages = make_router(setup.route, setup.router)->follows_pages();
  reporter_ = std::make_unique<Reporter>(mail, with_pages);
}

RealEngines::~RealEngines() = default;

Observer* RealEngines::reporter() { return reporter_.get(); }

void RealEngines::run(const EngineStream& stream, const std::function<void(InputSource&)>& serve) {
  if (process_ == 0) {
    dispatch_ = std::make_unique<Dispatch>(mail_, setup_, ranks_, stream,
                                           [this](std::exception_ptr error) { inbox_->fail(std::move(error)); });
  }
  inbox_ = std::make_unique<Inbox>([this](const RunClock& clock) {
    if (dispatch_) dispatch_->begin(clock);
  });
  mail_.start([this](std::size_t from, std::string_view message) {
    switch (kind_of(message)) {
      case EngineMessage::input: return inbox_->push(ReceivedInput(message).input);
      case EngineMessage::closed: return inbox_->close();
      case EngineMessage::event:
      case EngineMessage::over: return dispatch_->receive(from, message);
    }
  });
  serve(*inbox_);
  if (reporter_) mail_.send(0, message_of(EngineMessage::over));
  if (dispatch_) dispatch_->join();
  mail_.stop();
}

}  // namespace kvtwin
