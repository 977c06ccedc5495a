#include "traces/closed_loop.hpp"

#include <algorithm>
#include <utility>

namespace kvtwin {

ClosedLoopSource::ClosedLoopSource(TraceSource& trace, const TraceInputOptions& options, TimeNs service_ns)
    : trace_(trace),
      users_(trace.user_traffic()),
      options_(options),
      service_ns_(service_ns),
      maker_(trace.block_tokens(), options) {}

bool ClosedLoopSource::later(const std::unique_ptr<Ready>& a, const std::unique_ptr<Ready>& b) {
  return a->time != b->time ? a->time > b->time : a->order > b->order;
}

void ClosedLoopSource::push(TimeNs time, TraceRequest request, std::uint64_t user) {
  if (!request.is_hint) time += front_end(request.input);
  ready_.push_back(std::make_unique<Ready>(Ready{time, order_++, std::move(request), user}));
  std::push_heap(ready_.begin(), ready_.end(), later);
}

// Adds the user's next request: the first one, or the one after the answer at `answered`.
void ClosedLoopSource::push_of_user(std::uint64_t user, TimeNs answered) {
  const bool first = answered < 0;
  const TimeNs begin = first ? scaled(users_->first_of(user), options_.time_scale) : answered;
  users_->reached(begin);
  TraceRequest request;
  if ((options_.limit > 0 && read_ == options_.limit) || !users_->next_of(user, request)) return cut(begin);
  const TimeNs at = first ? begin : begin + scaled(request.think, options_.time_scale);
  if (users_->end() > 0 && at >= users_->end()) return;
  ++read_;
  push(at, std::move(request), user);
}

// Reads the trace until no later line can arrive before the earliest entry of ready_.
void ClosedLoopSource::read() {
  if (users_ != nullptr) {
    for (std::uint64_t user = 0; !begun_ && user < users_->users(); ++user) push_of_user(user, -1);
    begun_ = true;
    return;
  }
  if (!begun_) has_ahead_ = trace_.next(ahead_);
  begun_ = true;
  while (has_ahead_ && (ready_.empty() || scaled(ahead_.arrival, options_.time_scale) <= ready_.front()->time)) {
    if (!ahead_.is_hint && options_.limit > 0 && read_ == options_.limit) {
      has_ahead_ = false;
      return;
    }
    if (!ahead_.is_hint) {
      ++read_;
      without_session_ += ahead_.session == 0 ? 1 : 0;
    }
    take(std::move(ahead_));
    ahead_ = {};
    has_ahead_ = trace_.next(ahead_);
  }
}

void ClosedLoopSource::take(TraceRequest request) {
  request.arrival = scaled(request.arrival, options_.time_scale);
  const TimeNs due = request.arrival;
  if (request.is_hint || request.session == 0) return push(due, std::move(request));
  const auto [entry, fresh] = sessions_.try_emplace(request.session);
  Session& session = entry->second;
  const TimeNs gap = due - session.trace_time;
  request.think =
      request.think >= 0 ? scaled(request.think, options_.time_scale) : std::max<TimeNs>(0, gap - service_ns_);
  session.trace_time = due;
  if (session.open) {
    session.waiting.push_back(std::move(request));
    return;
  }
  session.open = true;
  const TimeNs thought = fresh ? due : session.answered + request.think;
  push(std::max(due, thought), std::move(request));
}

// Moves the earliest entry of ready_ to held_ and fills `input` with it.
void ClosedLoopSource::hold(Input& input) {
  std::pop_heap(ready_.begin(), ready_.end(), later);
  held_ = std::move(ready_.back());
  ready_.pop_back();
  maker_.make(held_->request, ordinal_, input);
  input.now = held_->time;
  if (!held_->request.is_hint) session_of_running_[ordinal_] = users_ != nullptr ? held_->user : held_->request.session;
}

bool ClosedLoopSource::next(Input& input) {
  if (held_ != nullptr && !held_->request.is_hint) ++ordinal_;
  held_.reset();
  read();
  if (ready_.empty()) return false;
  hold(input);
  return true;
}

std::string ClosedLoopSource::note() const {
  if (without_session_ == 0) return {};
  return "workload.loop=closed: " + std::to_string(without_session_) + " of " + std::to_string(read_) +
         " requests have no session, so they arrive at their times in the trace, as in an open loop";
}

bool ClosedLoopSource::overtake(Input& held, bool has) {
  if (!has && held_ == nullptr) read();
  if (ready_.empty() || (has && held_->time <= ready_.front()->time)) return false;
  if (has) {
    std::unique_ptr<Ready> back = std::move(held_);
    if (!back->request.is_hint) session_of_running_.erase(ordinal_);
    hold(held);
    ready_.push_back(std::move(back));
    std::push_heap(ready_.begin(), ready_.end(), later);
  } else {
    hold(held);
  }
  return true;
}

void ClosedLoopSource::answered(RequestId request, TimeNs time) {
  const auto ended = session_of_running_.find(request);
  if (ended == session_of_running_.end()) return;
  const std::uint64_t name = ended->second;
  session_of_running_.erase(ended);
  if (users_ != nullptr) return push_of_user(name, time);
  if (name == 0) return;
  Session& session = sessions_.at(name);
  session.answered = time;
  session.open = !session.waiting.empty();
  if (!session.open) return;
  TraceRequest next = std::move(session.waiting.front());
  session.waiting.pop_front();
  const TimeNs at = std::max(next.arrival, time + next.think);
  push(at, std::move(next));
}

}  // namespace kvtwin
