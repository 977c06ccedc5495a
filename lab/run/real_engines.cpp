#include "lab/run/real_engines.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/request_route.hpp"
#include "lab/run/engine_messages.hpp"
#include "policy/base/check.hpp"
#include "policy/seam/live_source.hpp"

namespace kvtwin {
namespace {

std::string died_at_the_end(std::size_t engine) {
  return "engine " + std::to_string(engine) + " has died after its last request, before its part of the report";
}

// Returns whether the request has ended.
bool is_answer(EventKind kind) {
  return kind == EventKind::finished || kind == EventKind::rejected || kind == EventKind::aborted;
}

}  // namespace

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
  bool with_pages_;  // a router follows the pages of the engines
};

// The notices of the other engines to this one, and the ends of all processes.
//
// The first rank of an engine receives the notices and passes them on, so all ranks get them in one order. It holds a
// notice back until the request is there; the other ranks hold back all notices behind such a one. The input of all
// ranks ends after the same notice: once process 0 has told the first rank that no input follows, this rank takes only
// the notices that end a lease. Inputs that process 0 has sent after the loss of an engine are held back on the other
// ranks until the first rank has passed the loss on.
// Thread: that of the mail, but for room_given(), wait(), lost() and fail().
class RealEngines::Notices {
 public:
  Notices(Inbox& inbox, Mail& mail, std::size_t process, const Setup& setup)
      : inbox_(inbox),
        mail_(mail),
        ranks_(setup.engine.ranks),
        rank_(process % ranks_),
        first_(process - rank_),
        has_roles_(setup.decode != nullptr),
        lost_(setup.world.engines),
        ended_(setup.world.engines * ranks_) {
    ended_[process] = true;
  }

  // An input for this engine, from process 0.
  void input(std::string_view message) {
    if (losses_passed_ < losses_) {
      held_.emplace_back(losses_, message);
    } else {
      deliver_input(message);
    }
  }
  void receive(std::string_view message) { receive(ReceivedNotice(message).notice, message); }
  // The last pages of a request have landed on one rank. Those of the same write are complete on all ranks.
  void landed(std::size_t engine, std::string_view message) {
    const LandedPages pages = landed_pages(message);
    const PartId part{pages.request, pages.attempt};
    Landed& of_part = landed_[part];
    if (pages.write < of_part.write) return;  // written again since, because another rank's write failed
    if (pages.write > of_part.write) of_part = {pages.write, 0};
    if (++of_part.ranks < ranks_) return;
    Notice handed;
    handed.kind = NoticeKind::handed;
    handed.request = pages.request;
    handed.attempt = pages.attempt;
    handed.peer = static_cast<std::uint32_t>(engine);
    receive(handed, message_of(handed));
  }
  // From the first rank of this engine.
  void passed(std::string_view message) {
    passed_.emplace_back(message);
    deliver_passed();
  }
  void sealed() { close(sealed_); }
  // No input follows from process 0.
  void closed() {
    if (passes_on() && rank_ == 0) pass_on(message_of(EngineMessage::sealed));
    if (!passes_on() || rank_ == 0) sealed_ = true;
    close(closed_);
  }
  // This engine has sent `room`, and waits for the end of the lease. Thread: the event loop's.
  void room_given(std::uint32_t peer, const Notice& room) {
    const std::lock_guard lock(mutex_);
    leased_[{room.request, room.attempt}] = peer;
  }
  // No message follows from this process.
  void ended(std::size_t process) {
    const std::lock_guard lock(mutex_);
    ended_[process] = true;
    changed_.notify_one();
  }
  // The engine has died. Its requests that are sent again follow from process 0. They may come before the first rank of
  // this engine has passed the loss on, and are held back until then.
  void lose(std::size_t engine) {
    {
      const std::lock_guard lock(mutex_);
      lost_[engine] = true;
    }
    if (has_roles_ && rank_ == 0) {
      Notice lost;
      lost.kind = NoticeKind::peer_lost;
      lost.peer = static_cast<std::uint32_t>(engine);
      deliver(lost);
    } else if (has_roles_) {
      ++losses_;
    }
    for (std::size_t rank = 0; rank < ranks_; ++rank) ended(engine * ranks_ + rank);
  }
  std::vector<bool> lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }
  // wait() throws from now on.
  void fail(std::string why) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(why);
    changed_.notify_one();
  }
  // Waits until no message follows. Errors: WorkError.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !failure_.empty() || std::ranges::find(ended_, false) == ended_.end(); });
    if (!failure_.empty()) throw WorkError(failure_);
  }

 private:
  using PartId = std::pair<RequestId, std::uint32_t>;  // with the attempt
  struct Landed {
    std::uint64_t write = 0;
    std::size_t ranks = 0;
  };

  void deliver_input(std::string_view message) {
    const ReceivedInput got(message);
    inbox_.push(got.input);
    const auto* const arrival = std::get_if<Arrival>(&got.input.what);
    if (arrival == nullptr) return;
    if (arrival->attempt == 0) {
      arrived_ = arrival->request + 1;  // first attempts come in the order of their requests
    } else {
      arrived_again_.insert({arrival->request, arrival->attempt});
    }
    deliver_passed();
    for (auto at = early_.begin(); at != early_.end();) {
      const ReceivedNotice received(*at);
      const bool its = received.notice.request == arrival->request && received.notice.attempt == arrival->attempt;
      if (its) deliver(received.notice);
      at = its ? early_.erase(at) : at + 1;
    }
  }
  bool passes_on() const { return has_roles_ && ranks_ > 1; }
  void pass_on(std::string_view message) {
    for (std::size_t rank = 1; rank < ranks_; ++rank) mail_.send(first_ + rank, message);
  }
  bool is_here(const Notice& notice) const {
    if (notice.kind == NoticeKind::peer_lost) return true;
    return notice.attempt == 0 ? notice.request < arrived_ : arrived_again_.contains({notice.request, notice.attempt});
  }
  // `message`: the notice as a message.
  void receive(const Notice& notice, std::string_view message) {
    if (lost_[notice.peer]) return;
    if (is_here(notice)) {
      deliver(notice);
    } else {
      early_.emplace_back(message);
    }
  }
  void deliver(const Notice& notice) {
    bool ends_lease = false;
    if (notice.kind == NoticeKind::handed || notice.kind == NoticeKind::withdrawn) {
      const PartId part{notice.request, notice.attempt};
      landed_.erase(part);
      const std::lock_guard lock(mutex_);
      ends_lease = leased_.erase(part) > 0;
    } else if (notice.kind == NoticeKind::peer_lost) {
      const std::lock_guard lock(mutex_);
      ends_lease = std::erase_if(leased_, [&](const auto& lease) { return lease.second == notice.peer; }) > 0;
    }
    if (passes_on()) {
      if (closed_ && !ends_lease) return;
      pass_on(message_of(notice, EngineMessage::passed));
    }
    inbox_.push({0, notice});
  }
  void deliver_passed() {
    while (!passed_.empty()) {
      const ReceivedNotice received(passed_.front());
      if (!is_here(received.notice)) return;
      passed_.pop_front();
      inbox_.push({0, received.notice});
      if (received.notice.kind != NoticeKind::peer_lost) continue;
      ++losses_passed_;
      while (!held_.empty() && held_.front().first <= losses_passed_) {
        const std::string message = std::move(held_.front().second);
        held_.pop_front();
        deliver_input(message);
      }
    }
  }
  void close(bool& end) {
    end = true;
    if (closed_ && sealed_) inbox_.close();
  }

  Inbox& inbox_;
  Mail& mail_;
  const std::size_t ranks_, rank_, first_;  // first_: the process of the engine's first rank
  const bool has_roles_;
  RequestId arrived_ = 0;  // requests below may have come, in their first attempt
  std::set<PartId> arrived_again_;
  std::vector<std::string> early_;   // before their request
  std::map<PartId, Landed> landed_;  // on some ranks
  std::deque<std::string> passed_;   // by the first rank, and not delivered yet
  // Inputs behind a loss that the first rank has not passed on yet, and the number of that loss.
  std::deque<std::pair<std::size_t, std::string>> held_;
  // Not on the first rank: how many losses process 0 has told, and the first rank has passed on, in the same order.
  std::size_t losses_ = 0, losses_passed_ = 0;
  bool closed_ = false, sealed_ = false;
  mutable std::mutex mutex_;  // of the members below
  std::condition_variable changed_;
  std::map<PartId, std::uint32_t> leased_;  // this engine has sent room to this engine, and has no end of that
  std::vector<bool> lost_, ended_;          // by engine; by process
  std::string failure_;                     // empty: none
};

// The thread of process 0 that reads the stream, routes it, and observes all events.
class RealEngines::Dispatch {
 public:
  Dispatch(Mail& mail, const Setup& setup, std::size_t ranks, const EngineStream& stream,
           std::function<void(std::exception_ptr)> failed)
      : mail_(mail),
        route_(setup.route, setup.router, setup.route_view_delay, setup.roles),
        has_roles_(setup.decode != nullptr),
        closes_when_idle_(has_roles_ || setup.roles.engines_die),
        prefill_engines_(setup.roles.prefill),
        engines_(setup.world.engines),
        ranks_(ranks),
        stream_(stream),
        live_(dynamic_cast<LiveSource*>(stream.source)),
        failed_(std::move(failed)),
        states_(setup.world.engines) {
    route_.tell_losses_to(stream_.lost);
  }
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
  // An event or the end of an engine, from its first rank, or the loss of a process. Returns false if all engines
  // have ended: then nobody reads the message. Called by any thread.
  bool receive(std::size_t process, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (all_over_) return false;
    received_.emplace_back(process / ranks_, message);
    changed_.notify_one();
    return true;
  }
  // Waits for the end of all engines. Errors: those of the stream.
  void join() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  using Message = std::pair<std::size_t, std::string>;  // engine, bytes
  struct EngineState {
    std::uint64_t unanswered = 0;  // requests and parts that were sent to it and have not ended
    bool over = false, lost = false;
    std::size_t dead_ranks = 0;
    TimeNs heard = 0;  // time of its last message, or of the first request after a time without requests
  };

  // A request in two parts. The events of its engines may come in another order than they happened. Events of the
  // prefill part are held until the decode part arrives; `first_token` is held until the prompt ends.
  struct Split {
    bool arrived = false, prefilled = false;
    bool decode_over = false, prefill_over = false;
    std::size_t prefill = 0, decode = 0;         // engines
    std::vector<Message> of_prefill, of_decode;  // that wait
  };
  using PartId = std::pair<RequestId, std::uint32_t>;  // with the attempt

  void loop(const RunClock& clock);
  void receive_from(std::size_t engine, const std::string& message);
  bool comes_too_early(std::size_t engine, const std::string& message, const Event& event);
  void follow_split(const Event& event);
  void observe(std::size_t engine, const Event& event);
  void count_answer(std::size_t engine, const Event& event);
  void route(Input& input, TimeNs now);
  void lose(std::size_t engine, TimeNs now);
  void forget_splits_of(std::size_t engine);
  void send_request(std::size_t engine, const Input& input, TimeNs now);
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
  const bool has_roles_;
  const bool closes_when_idle_;  // an engine may get more work from others: requests of a dead one, or parts
  const std::size_t prefill_engines_;
  const std::size_t engines_, ranks_;
  const EngineStream stream_;
  LiveSource* const live_;  // the source, or null
  const std::function<void(std::exception_ptr)> failed_;

  Input held_;  // the next input of the source
  bool has_ = false;
  bool closed_ = false;
  std::uint64_t unanswered_ = 0;  // of all engines, parts count by themselves
  std::size_t over_ = 0;          // engines that have ended
  std::vector<EngineState> states_;
  std::map<PartId, Split> splits_;  // that are not over

  std::mutex mutex_;  // of `received_`
  std::condition_variable changed_;
  std::vector<Message> received_;
  bool all_over_ = false;

  std::exception_ptr failure_;
  std::thread thread_;
};

void RealEngines::Dispatch::loop(const RunClock& clock) {
  has_ = stream_.source->next(held_);
  std::vector<Message> messages;
  while (over_ < engines_) {
    for (const auto& [engine, message] : messages) {
      if (states_[engine].lost) continue;
      if (kind_of(message) == EngineMessage::lost) {
        if (++states_[engine].dead_ranks == ranks_) lose(engine, clock.now());
        continue;
      }
      states_[engine].heard = clock.now();
      receive_from(engine, message);
      if (live_ != nullptr && live_->overtake(held_, has_)) has_ = true;
    }
    messages.clear();
    while (has_ && held_.now <= clock.now()) {
      route(held_, clock.now());
      has_ = stream_.source->next(held_);
    }
    // A source that waits for answers may have more after each of them.
    if (!has_ && !closed_ && ((live_ == nullptr && !closes_when_idle_) || unanswered_ == 0)) {
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
  {
    const std::lock_guard lock(mutex_);
    all_over_ = true;
    for (const auto& [engine, message] : received_) {
      if (kind_of(message) == EngineMessage::lost) ++states_[engine].dead_ranks;
    }
  }
  for (std::size_t engine = 0; engine < engines_; ++engine) {
    if (states_[engine].dead_ranks > 0 && !states_[engine].lost) throw WorkError(died_at_the_end(engine));
  }
  if (unanswered_ != 0) {
    throw WorkError("all engines have ended, and " + std::to_string(unanswered_) + " requests have no answer");
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

void RealEngines::Dispatch::route(Input& input, TimeNs now) {
  const InputRoute::Way way = route_.way_of(input);
  const auto* const arrival = std::get_if<Arrival>(&input.what);
  if (arrival != nullptr && way.prefill != InputRoute::kNoEngine) {
    Split& split = splits_[{arrival->request, arrival->attempt}];
    split.prefill = way.prefill;
    split.decode = way.engine;
  }
  // In a real run, the number of an engine is its seat.
  deliver_by(way, engines_, 1, input, [&](std::size_t engine, const Input& part) { send_request(engine, part, now); });
}

// All ranks of the engine have died, so none writes into the memory of another engine any more. What the engine has
// sent and is not read yet does not count.
void RealEngines::Dispatch::lose(std::size_t engine, TimeNs now) {
  EngineState& state = states_[engine];
  state.lost = true;
  const std::size_t prefill = has_roles_ ? prefill_engines_ : engines_;
  const std::size_t first = engine < prefill ? 0 : prefill, end = engine < prefill ? prefill : engines_;
  if (std::all_of(states_.begin() + static_cast<std::ptrdiff_t>(first),
                  states_.begin() + static_cast<std::ptrdiff_t>(end),
                  [](const EngineState& one) { return one.lost; })) {
    throw WorkError("engine " + std::to_string(engine) +
                    " has died, and no other engine can serve its requests; start more engines of its kind");
  }
  for (std::size_t other = 0; other < engines_; ++other) {
    if (!states_[other].lost) send(other, message_of_loss(engine));
  }
  if (state.over) return;
  state.over = true;
  ++over_;
  unanswered_ -= std::exchange(state.unanswered, 0);
  forget_splits_of(engine);
  route_.engine_lost(engine);
  Input again;
  while (route_.sent_again(again)) {
    again.now = now;
    route(again, now);
  }
}

// Drops the prefill parts that were made for the dead decode engine. The decode parts of a dead prefill engine continue
// on their living decode engines.
void RealEngines::Dispatch::forget_splits_of(std::size_t engine) {
  std::vector<Message> of_prefill, of_decode;
  for (auto at = splits_.begin(); at != splits_.end();) {
    Split& split = at->second;
    const bool its = split.prefill == engine || split.decode == engine;
    if (split.decode == engine) std::ranges::move(split.of_prefill, std::back_inserter(of_prefill));
    if (split.prefill == engine) std::ranges::move(split.of_decode, std::back_inserter(of_decode));
    at = its ? splits_.erase(at) : std::next(at);
  }
  for (const auto& [of, message] : of_prefill) count_answer(of, ReceivedEvent(message).event);
  for (const auto& [of, message] : of_decode) receive_from(of, message);
}

void RealEngines::Dispatch::send_request(std::size_t engine, const Input& input, TimeNs now) {
  if (std::holds_alternative<Arrival>(input.what)) {
    ++unanswered_;
    if (states_[engine].unanswered++ == 0) states_[engine].heard = now;
  }
  send(engine, message_of(input));
}

void RealEngines::Dispatch::receive_from(std::size_t engine, const std::string& message) {
  if (kind_of(message) == EngineMessage::over) {
    ++over_;
    states_[engine].over = true;
    return;
  }
  ReceivedEvent received(message);
  received.event.engine = engine;
  if (!splits_.empty() && comes_too_early(engine, message, received.event)) return;
  observe(engine, received.event);
  if (!splits_.empty()) follow_split(received.event);
}

bool RealEngines::Dispatch::comes_too_early(std::size_t engine, const std::string& message, const Event& event) {
  if (event.record == nullptr) return false;
  const auto at = splits_.find({event.record->request, event.record->attempt});
  if (at == splits_.end()) return false;
  Split& split = at->second;
  if (event.record->part == RequestPart::prefill) {
    if (split.arrived) return false;
    split.of_prefill.emplace_back(engine, message);
    return true;
  }
  const bool received = event.kind == EventKind::first_token && event.record->compute_ns == 0;
  if (split.of_decode.empty() && (split.prefilled || !received)) return false;
  split.of_decode.emplace_back(engine, message);
  return true;
}

void RealEngines::Dispatch::follow_split(const Event& event) {
  if (event.record == nullptr) return;
  const auto at = splits_.find({event.record->request, event.record->attempt});
  if (at == splits_.end()) return;
  Split& split = at->second;
  std::vector<Message> due;
  if (event.record->part == RequestPart::prefill) {
    if (event.kind == EventKind::prefilled) {
      split.prefilled = true;
      due.swap(split.of_decode);
    }
    split.prefill_over |= event.kind == EventKind::handed_over || event.kind == EventKind::hand_over_dropped;
  } else {
    if (event.kind == EventKind::arrived) {
      split.arrived = true;
      due.swap(split.of_prefill);
    }
    split.decode_over |= is_answer(event.kind);
  }
  if (split.decode_over && split.prefill_over) splits_.erase(at);
  for (const auto& [engine, message] : due) receive_from(engine, message);
}

void RealEngines::Dispatch::count_answer(std::size_t engine, const Event& event) {
  if (is_answer(event.kind) || event.kind == EventKind::handed_over || event.kind == EventKind::hand_over_dropped) {
    KV_CHECK(states_[engine].unanswered > 0, "a request ends once, on its engine");
    --unanswered_;
    --states_[engine].unanswered;
  }
}

void RealEngines::Dispatch::observe(std::size_t engine, const Event& event) {
  count_answer(engine, event);
  route_.on_event(engine, event);
  if (stream_.observer != nullptr) stream_.observer->on_event(event);
}

// ---- one process -------------------------------------------------------------------------------------

RealEngines::RealEngines(Mail& mail, const Setup& setup, std::size_t process)
    : mail_(mail), setup_(setup), process_(process), ranks_(setup.engine.ranks) {
  if (process_ % ranks_ != 0) return;
  const RequestRoute route(setup.route, setup.router, 0, setup.roles);
  reporter_ = std::make_unique<Reporter>(mail, route.follows_pages());
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
    begun_ = true;
  });
  notices_ = std::make_unique<Notices>(*inbox_, mail_, process_, setup_);
  mail_.start([this](std::size_t from, std::string_view message) {
    switch (kind_of(message)) {
      case EngineMessage::input: return notices_->input(message);
      case EngineMessage::notice: return notices_->receive(message);
      case EngineMessage::landed: return notices_->landed(from / ranks_, message);
      case EngineMessage::passed: return notices_->passed(message);
      case EngineMessage::sealed: return notices_->sealed();
      case EngineMessage::last: return notices_->ended(from);
      case EngineMessage::lost: return notices_->lose(lost_engine(message));
      case EngineMessage::closed: return notices_->closed();
      case EngineMessage::event:
      case EngineMessage::over: dispatch_->receive(from, message); return;
    }
  });
  serve(*inbox_);
  if (reporter_) mail_.send(0, message_of(EngineMessage::over));
  // After the last word of process 0, no engine counts as lost any more.
  if (dispatch_) dispatch_->join();
  for (std::size_t process = 0; process < setup_.world.engines * ranks_; ++process) {
    if (process != process_) mail_.send(process, message_of(EngineMessage::last));
  }
  notices_->wait();
  mail_.stop();
}

// Process 0 decides which engines are lost.
AfterDeath RealEngines::lose(std::size_t process) {
  const std::size_t dead = process / ranks_;
  if (!begun_ || dead == 0) return AfterDeath::ends_run;
  if (dead == engine()) return AfterDeath::ends_itself;
  mail_.forget(process);
  if (dispatch_ && !dispatch_->receive(process, message_of(EngineMessage::lost))) notices_->fail(died_at_the_end(dead));
  return AfterDeath::goes_on;
}

std::vector<bool> RealEngines::lost_processes() const {
  std::vector<bool> lost;
  for (const bool engine : notices_->lost()) lost.insert(lost.end(), ranks_, engine);
  return lost;
}

// All ranks send the same notices, so those of the first rank are enough.
void RealEngines::notify(std::uint32_t peer, const Notice& notice) {
  if (process_ % ranks_ != 0) return;
  if (notice.kind == NoticeKind::room) notices_->room_given(peer, notice);
  Notice sent = notice;
  sent.peer = static_cast<std::uint32_t>(engine());
  mail_.send(peer * ranks_, message_of(sent));
}

void RealEngines::landed(std::uint32_t peer, const LandedPages& pages) { mail_.send(peer * ranks_, message_of(pages)); }

}  // namespace kvtwin
