#include "impl/world.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "impl/runtime/worker.hpp"
#include "policy/base/check.hpp"
#include "policy/seam/live_source.hpp"

namespace kvtwin {
namespace {

// Histogram of durations, in buckets of 16 ns. The last bucket has all durations above 64 us.
class LoopTimeHistogram {
 public:
  void add(TimeNs time) {
    ++buckets_[static_cast<std::size_t>(std::clamp<TimeNs>(time / kWidth, 0, kBuckets - 1))];
    ++count_;
  }
  TimeNs quantile(std::uint64_t per_mille) const {
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      below += buckets_[i];
      if (below * 1000 >= count_ * per_mille && below > 0) return static_cast<TimeNs>(i) * kWidth + kWidth / 2;
    }
    return 0;
  }

 private:
  static constexpr TimeNs kWidth = 16, kBuckets = 4096;
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

class EventLoop final : public RealWorld, private Substrate {
 public:
  EventLoop(std::unique_ptr<Device> device, std::vector<std::unique_ptr<TierQueues>> storage, RankGroup* ranks,
            RankGroup* everyone, std::unique_ptr<HandOverLane> hand_overs)
      : ranks_(ranks != nullptr && ranks->size() > 1 ? ranks : nullptr),
        everyone_(everyone != nullptr ? everyone : ranks_),
        device_(std::move(device)),
        storage_(std::move(storage)),
        hand_overs_(std::move(hand_overs)) {}
  ~EventLoop() override {
    // Threads of this rank may wait for other ranks, and other ranks for this one.
    if (running_ && everyone_ != nullptr) everyone_->leave(1);
  }

  Substrate& substrate() override { return *this; }
  void run(InputSource& source, InputHandler& handler) override;
  TimeNs now() const override { return now_; }
  void watch_lanes(LaneObserver* observer) override { lanes_ = observer; }
  void set_progress(void (*tick)(void* context, TimeNs now), void* context) override {
    tick_ = tick;
    tick_context_ = context;
  }
  const LoopReport& loop() const override { return report_; }
  const Verification& verification() const override { return verification_; }
  std::vector<std::string> notes() const override { return device_->notes(); }
  std::vector<StorageCounters> storage() const override;

 private:
  // Measures the time of the substrate's calls within the handler.
  class CallTimer {
   public:
    explicit CallTimer(EventLoop& loop) : loop_(loop), begin_(loop.clock_.now()) {}
    ~CallTimer() {
      loop_.called_ns_ += loop_.clock_.now() - begin_;
      ++loop_.report_.calls;
    }
    CallTimer(const CallTimer&) = delete;
    CallTimer& operator=(const CallTimer&) = delete;

   private:
    EventLoop& loop_;
    TimeNs begin_;
  };

  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;
  void notify(std::uint32_t peer, const Notice& notice) override;

  // Runs in the thread of the reductions.
  void reduce_in_group(const Reduction& own);

  bool deliver_next();
  void deliver_finished(const Finished& finished);
  void wait();
  bool work_remains() const {
    return has_arrival_ || in_flight_ > 0 || !timers_.empty() || !reductions_.empty() ||
           (inbox_ != nullptr && inbox_->open()) || !rooms_.empty();
  }
  void deliver(Input input);
  bool start_clock();
  void take(const Notice& notice);

  TierQueues& storage_of(Tier tier);

  RankGroup* const ranks_;     // null: a single rank
  RankGroup* const everyone_;  // null: a single process
  bool running_ = false;

  // Threads use the queue and the clock, so both are destroyed after the threads. Storage tiers use the device's
  // memory.
  RunClock clock_;
  CompletionQueue queue_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<TierQueues>> storage_;
  std::unique_ptr<HandOverLane> hand_overs_;  // or null

  InputSource* source_ = nullptr;
  LiveSource* live_ = nullptr;  // source_ as a LiveSource, or null
  Inbox* inbox_ = nullptr;      // source_ as an Inbox, or null
  InputHandler* handler_ = nullptr;
  LaneObserver* lanes_ = nullptr;
  void (*tick_)(void*, TimeNs) = nullptr;
  void* tick_context_ = nullptr;

  TimeNs now_ = 0;  // time of the current or last input
  std::uint64_t last_id_ = 0;
  std::uint64_t in_flight_ = 0;  // operations of the device and of storage tiers; reductions of the group
  std::vector<Finished> finished_;
  std::size_t next_finished_ = 0;
  std::deque<Reduction> reductions_;
  std::set<std::pair<TimeNs, OperationId>> timers_;  // ordered by due time
  Input arrival_;                                    // the next input of source_
  bool has_arrival_ = false;
  // Decode engine: requests for which it has leased pages that the peer may still write, and the peer.
  std::map<std::pair<RequestId, std::uint32_t>, std::uint32_t> rooms_;
  // Leases that end before the step that makes them: while a reduction is in progress, notices are delivered.
  std::set<std::pair<RequestId, std::uint32_t>> ended_rooms_;
  std::set<std::uint32_t> lost_peers_;

  TimeNs own_time_begin_ = 0;  // the loop's own time counts from here
  TimeNs called_ns_ = 0;
  LoopTimeHistogram loop_times_;
  LoopReport report_;
  Verification verification_;

  Worker<Reduction> reducer_;  // last member: its thread ends first
};

OperationId EventLoop::submit(const Operation& operation) {
  const CallTimer call(*this);
  const OperationId id{++last_id_};
  ++in_flight_;
  if (const auto* stored = std::get_if<StorageOperation>(&operation)) {
    if (stored->work.verb == StorageVerb::get && stored->work.memory == Tier::device)
      device_->announce_get(id, *stored);
    storage_of(stored->work.tier).submit(id, *stored);
  } else if (const auto* hand_over = std::get_if<HandOverOperation>(&operation)) {
    KV_CHECK(hand_overs_ != nullptr, "an engine with a role hands pages over");
    hand_overs_->submit(id, *hand_over);
  } else {
    device_->submit(id, operation);
  }
  return id;
}

TierQueues& EventLoop::storage_of(Tier tier) {
  const auto found = std::ranges::find_if(storage_, [tier](const auto& queues) { return queues->tier() == tier; });
  KV_CHECK(found != storage_.end(), "an operation names a tier that is there");
  return **found;
}

OperationId EventLoop::call_at(TimeNs time) {
  const OperationId id{++last_id_};
  timers_.emplace(time, id);
  return id;
}

OperationId EventLoop::reduce_min(const ReduceVector& values) {
  const OperationId id{++last_id_};
  if (ranks_ == nullptr) {
    reductions_.push_back({id, values});
  } else {
    ++in_flight_;
    reducer_.submit({id, values});
  }
  return id;
}

void EventLoop::reduce_in_group(const Reduction& own) {
  auto values = std::make_shared<ReduceVector>(own.values);
  Finished finished;
  finished.completion.id = own.id;
  if (!ranks_->minimum(RankChannel::reductions, *values)) finished.completion.status = Status::failed;
  finished.agreed = std::move(values);
  finished.span.end = clock_.now();
  queue_.push(finished);
}

void EventLoop::cancel(OperationId id) {
  const CallTimer call(*this);
  const auto timer = std::ranges::find_if(timers_, [id](const auto& entry) { return entry.second == id; });
  if (timer == timers_.end()) {
    device_->cancel(id);
    for (const auto& queues : storage_) queues->cancel(id);
    if (hand_overs_ != nullptr) hand_overs_->cancel(id);
    return;
  }
  timers_.erase(timer);
  timers_.emplace(now_, id);
}

void EventLoop::notify(std::uint32_t peer, const Notice& notice) {
  const CallTimer call(*this);
  KV_CHECK(hand_overs_ != nullptr, "an engine with a role sends notices");
  if (notice.kind == NoticeKind::room) {
    device_->expect_pages(notice.slots, notice.beside);
    const std::pair part{notice.request, notice.attempt};
    if (ended_rooms_.erase(part) == 0 && !lost_peers_.contains(peer)) rooms_[part] = peer;
  }
  hand_overs_->notify(peer, notice);
}

void EventLoop::take(const Notice& notice) {
  if (notice.kind == NoticeKind::handed || notice.kind == NoticeKind::withdrawn) {
    const std::pair part{notice.request, notice.attempt};
    if (rooms_.erase(part) == 0) ended_rooms_.insert(part);
  }
  if (notice.kind == NoticeKind::peer_lost) {
    lost_peers_.insert(notice.peer);
    std::erase_if(rooms_, [&](const auto& room) { return room.second == notice.peer; });
  }
}

// The processes of one machine have one steady clock, so their runs begin at the same instant. Returns false if another
// process has left.
bool EventLoop::start_clock() {
  if (everyone_ == nullptr) {
    clock_.start();
    return true;
  }
  std::int64_t last = -clock_.since_boot();
  if (!everyone_->minimum(RankChannel::run, std::span(&last, 1))) return false;
  if (everyone_->size_here() == everyone_->size()) {
    clock_.start_at(-last);
  } else {
    clock_.start();
  }
  return true;
}

void EventLoop::run(InputSource& source, InputHandler& handler) {
  KV_CHECK(source_ == nullptr, "the real world runs once");
  source_ = &source;
  live_ = dynamic_cast<LiveSource*>(&source);
  inbox_ = dynamic_cast<Inbox*>(&source);
  handler_ = &handler;
  running_ = true;
  device_->start(queue_, clock_);
  for (const auto& queues : storage_) {
    queues->start(queue_, clock_, [this](OperationId get, bool done) { device_->landed(get, done); });
  }
  if (ranks_ != nullptr) {
    reducer_.start("reduction thread", [this](Reduction& own) { reduce_in_group(own); });
  }
  if (hand_overs_ != nullptr) hand_overs_->start(queue_, clock_);
  // Starting the threads takes time; arrivals count from here.
  if (!start_clock()) throw std::runtime_error("another rank has left the run");
  if (inbox_ != nullptr) inbox_->begin(clock_, [this] { queue_.wake(); });
  has_arrival_ = source_->next(arrival_);
  own_time_begin_ = clock_.now();
  while (work_remains()) {
    if (!deliver_next()) wait();
    if (live_ != nullptr && live_->overtake(arrival_, has_arrival_)) has_arrival_ = true;
    if (inbox_ != nullptr && !has_arrival_) has_arrival_ = inbox_->next(arrival_);
  }
  running_ = false;
  report_.run_ns = clock_.now();
  report_.loop_median_ns = loop_times_.quantile(500);
  report_.loop_p99_ns = loop_times_.quantile(990);
  for (const auto& queues : storage_) queues->finish();
  if (hand_overs_ != nullptr) hand_overs_->finish();
  verification_ = device_->finish();
}

std::vector<StorageCounters> EventLoop::storage() const {
  std::vector<StorageCounters> counters;
  for (const auto& queues : storage_) counters.push_back({queues->tier(), queues->counters()});
  return counters;
}

// Returns false if no input is due.
bool EventLoop::deliver_next() {
  if (!reductions_.empty()) {
    const Reduction reduction = reductions_.front();
    reductions_.pop_front();
    deliver({0, reduction});
    return true;
  }
  if (next_finished_ == finished_.size()) {
    finished_.clear();
    next_finished_ = 0;
    queue_.take(finished_);
  }
  constexpr TimeNs kNever = INT64_MAX;
  const TimeNs present = clock_.now();
  const TimeNs ended = next_finished_ < finished_.size() ? finished_[next_finished_].span.end : kNever;
  const TimeNs timer = timers_.empty() ? kNever : timers_.begin()->first;
  const TimeNs arrival = has_arrival_ ? arrival_.now : kNever;
  const TimeNs first = std::min({ended, timer, arrival});
  if (first == kNever || (first > present && first != ended)) return false;
  if (first == ended) {
    deliver_finished(finished_[next_finished_++]);
  } else if (first == timer) {
    const OperationId id = timers_.begin()->second;
    timers_.erase(timers_.begin());
    deliver({0, TimerFired{id}});
  } else {
    if (const auto* notice = std::get_if<Notice>(&arrival_.what)) {
      take(*notice);
    } else {
      const TimeNs late = present - arrival;
      ++report_.arrivals;
      report_.arrival_late_sum_ns += late;
      report_.arrival_late_max_ns = std::max(report_.arrival_late_max_ns, late);
    }
    deliver(arrival_);
    has_arrival_ = source_->next(arrival_);
    own_time_begin_ = clock_.now();  // reading the workload is the client's work, not the loop's
  }
  return true;
}

void EventLoop::deliver_finished(const Finished& finished) {
  if (finished.failure != nullptr) throw std::runtime_error(*finished.failure);
  --in_flight_;
  if (finished.agreed != nullptr) {
    if (finished.completion.status != Status::done) throw std::runtime_error("another rank has left the run");
    return deliver({0, Reduction{finished.completion.id, *finished.agreed}});
  }
  if (finished.span.lane == Lane::peer) {
    hand_overs_->retire(finished.completion);
  } else {
    device_->retire(finished.completion.id);
  }
  if (hand_overs_ != nullptr && finished.span.lane == Lane::compute) {
    hand_overs_->pass_ended(finished.completion.id, finished.completion.steps > 0);
  }
  if (lanes_ != nullptr) lanes_->on_lane(finished.span);
  deliver({0, finished.completion});
}

void EventLoop::deliver(Input input) {
  const TimeNs begin = clock_.now();
  now_ = std::max(now_ + 1, begin);
  input.now = now_;
  called_ns_ = 0;
  handler_->handle(input);
  const TimeNs end = clock_.now();
  const TimeNs own = begin - own_time_begin_;
  loop_times_.add(own);
  ++report_.inputs;
  report_.loop_ns += own;
  report_.calls_ns += called_ns_;
  report_.policy_ns += end - begin - called_ns_;
  if (tick_ != nullptr) tick_(tick_context_, now_);
  own_time_begin_ = clock_.now();
}

void EventLoop::wait() {
  TimeNs due = has_arrival_ ? arrival_.now : INT64_MAX;
  if (!timers_.empty()) due = std::min(due, timers_.begin()->first);
  KV_CHECK(due != INT64_MAX || in_flight_ > 0 || inbox_ != nullptr, "the loop waits for something");
  if (tick_ != nullptr) tick_(tick_context_, std::max(now_, clock_.now()));
  if (due == INT64_MAX) {
    queue_.wait(std::nullopt);
  } else {
    queue_.wait(clock_.at(due));
  }
  own_time_begin_ = clock_.now();
}

}  // namespace

std::unique_ptr<RealWorld> make_real_world(std::unique_ptr<Device> device,
                                           std::vector<std::unique_ptr<TierQueues>> storage, RankGroup* ranks,
                                           RankGroup* everyone, std::unique_ptr<HandOverLane> hand_overs) {
  return std::make_unique<EventLoop>(std::move(device), std::move(storage), ranks, everyone, std::move(hand_overs));
}

}  // namespace kvtwin
