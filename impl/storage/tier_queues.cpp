#include "impl/storage/tier_queues.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "impl/runtime/worker.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

struct TierJob {
  OperationId id = OperationId::none;
  StorageWork work;
  PageKey space;
  std::vector<StoragePage> pages;
  bool cancelled = false;
  std::size_t begun = 0;  // the first `begun` pages were begun
  std::size_t open = 0;   // number of begun pages that have not ended
  std::vector<bool> done;
  std::size_t limit = 0;  // pages from here on are not begun, because this page failed
  Cause cause = Cause::none;
  TimeNs begin = -1;

  bool nothing_to_begin() const { return cancelled || begun >= limit; }
};

struct LookUpJob {
  OperationId id = OperationId::none;
  StorageWork work;
  PageKey space;
  std::vector<PageKey> keys;
};

// Passes the results of operations to the event loop.
struct Answers {
  Tier tier;
  CompletionQueue* queue = nullptr;
  const RunClock* clock = nullptr;
  std::function<void(OperationId, bool)> landed;

  void end(const StorageWork& work, Completion completion, TimeNs begin) const {
    LaneSpan span{.lane = lane_of(work), .id = completion.id, .begin = begin, .bytes = completion.bytes};
    span.flowing = begin;
    span.status = completion.status;
    span.end = clock->now();
    queue->push({completion, span});
    const bool gate = work.verb == StorageVerb::get && work.memory == Tier::device;
    if (gate) landed(completion.id, completion.status == Status::done);
  }
};

// Delays the threads of a slow rank: each operation takes `factor` times as long, unless the run is aborted.
class SlowRank {
 public:
  explicit SlowRank(double factor) : factor_(factor) {}
  bool slows() const { return factor_ > 1; }
  // Call after an operation that took `time`.
  void delay(TimeNs time) {
    constexpr double kMaxDelayNs = 1e17;  // three years; clocks cannot wait for longer times
    const double delay_ns = std::clamp(static_cast<double>(time) * (factor_ - 1), 0.0, kMaxDelayNs);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(static_cast<TimeNs>(delay_ns)), [this] { return aborted_; });
  }
  void end() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  const double factor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

// The queue of gets, or of sets and removes, with its thread. The thread calls the back end for the pages.
class PageQueue final : public PageWork {
 public:
  PageQueue(PageMemory& memory, const PageSeal* seal, const Answers& answers, SlowRank& slow_rank)
      : PageWork(memory.form(), seal), memory_(memory), answers_(answers), slow_rank_(slow_rank) {}
  ~PageQueue() override { stop(true); }

  void start(const char* what, std::function<void(PageWork&)> work) {
    work_ = std::move(work);
    try {
      thread_ = std::thread([this] { loop(); });
    } catch (const std::system_error& error) {
      throw std::system_error(error.code(), std::string("starting the ") + what);
    }
  }
  // `done`: another rank does the work; the job only takes its place in the order.
  void submit(OperationId id, const StorageOperation& operation, bool done = false) {
    TierJob job;
    job.id = id;
    job.work = operation.work;
    job.space = operation.space;
    job.pages.assign(operation.pages.begin(), operation.pages.end());
    job.done.assign(job.pages.size(), done);
    job.limit = done ? 0 : job.pages.size();
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }
  bool cancel(OperationId id) {
    const std::lock_guard lock(mutex_);
    const auto job = std::ranges::lower_bound(jobs_, id, {}, &TierJob::id);
    if (job == jobs_.end() || job->id != id) return false;
    job->cancelled = true;
    return true;
  }
  // Ends the thread: after all jobs, or with `at_once` after the current call of the back end.
  void stop(bool at_once) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      if (at_once) aborting_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  bool next(PageTask& task) override;
  void take_bare(const PageTask& task, std::span<std::byte> payload) override;
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override;
  void end(const PageTask& task, Cause cause) override;

 private:
  void loop();
  void answer_finished();
  std::pair<Tier, SlotId> memory_and_slot_of(const PageTask& task);
  // A ticket has 32 bits for the serial number, so the difference is computed in 32 bits.
  TierJob& job_of(const PageTask& task) {
    return jobs_[static_cast<std::uint32_t>((task.ticket >> 32) - first_serial_)];
  }
  static std::size_t page_of(const PageTask& task) { return task.ticket & 0xFFFFFFFF; }

  PageMemory& memory_;
  const Answers& answers_;
  SlowRank& slow_rank_;
  std::function<void(PageWork&)> work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TierJob> jobs_;
  std::uint64_t first_serial_ = 0;  // of jobs_.front()
  std::size_t cursor_ = 0;          // jobs before this position have no page to begin
  std::size_t open_ = 0;            // pages in progress, all of verb_
  StorageVerb verb_ = StorageVerb::get;
  TimeNs busy_since_ = 0;  // back end's thread: pages in progress have not been delayed since this time
  bool stopping_ = false, aborting_ = false;
  std::thread thread_;
};

void PageQueue::loop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty() || aborting_) return;
    }
    try {
      work_(*this);
    } catch (const std::exception& error) {  // from the memory, or no memory left; the event loop ends the run
      Finished finished;
      finished.failure = std::make_shared<const std::string>(error.what());
      answers_.queue->push(finished);
      const std::lock_guard lock(mutex_);
      aborting_ = true;
      return;
    }
    const std::lock_guard lock(mutex_);
    KV_CHECK(open_ == 0, "a back end ends what it has begun");
    answer_finished();
  }
}

// Answers the finished jobs at the front, in order.
void PageQueue::answer_finished() {
  while (!jobs_.empty() && !aborting_) {
    TierJob& job = jobs_.front();
    if (!job.nothing_to_begin() || job.open > 0) return;
    Completion completion{.id = job.id};
    completion.pages = static_cast<Pages>(std::ranges::find(job.done, false) - job.done.begin());
    if (completion.pages != job.pages.size()) {
      completion.status = job.cause == Cause::none ? Status::cancelled : Status::failed;
      completion.cause = job.cause;
    }
    const bool moves = job.work.verb != StorageVerb::remove && job.begun > 0;
    completion.bytes = moves ? completion.pages * form().bytes() : 0;
    answers_.end(job.work, completion, job.begin < 0 ? answers_.clock->now() : job.begin);
    jobs_.pop_front();
    ++first_serial_;
    if (cursor_ > 0) --cursor_;
  }
}

bool PageQueue::next(PageTask& task) {
  const std::lock_guard lock(mutex_);
  if (aborting_) return false;
  while (cursor_ < jobs_.size() && jobs_[cursor_].nothing_to_begin()) ++cursor_;
  answer_finished();
  if (cursor_ == jobs_.size()) return false;
  TierJob& job = jobs_[cursor_];
  if (open_ > 0 && job.work.verb != verb_) return false;
  verb_ = job.work.verb;
  if (open_ == 0 && slow_rank_.slows()) busy_since_ = answers_.clock->now();
  if (job.begun == 0) job.begin = answers_.clock->now();
  const StoragePage& page = job.pages[job.begun];
  const std::uint64_t ticket = (first_serial_ + cursor_) << 32 | job.begun;
  task = {job.work.verb, job.space, page.key, ticket, job.work.memory, page.slot};
  ++job.begun;
  ++job.open;
  ++open_;
  return true;
}

void PageQueue::end(const PageTask& task, Cause cause) {
  if (slow_rank_.slows()) {
    slow_rank_.delay(answers_.clock->now() - busy_since_);
    busy_since_ = answers_.clock->now();
  }
  const std::lock_guard lock(mutex_);
  TierJob& job = job_of(task);
  const std::size_t page = page_of(task);
  --job.open;
  --open_;
  if (cause == Cause::none) {
    job.done[page] = true;
  } else if (page < job.limit) {  // an earlier page may fail later
    job.limit = page;
    job.cause = cause;
  }
  answer_finished();
}

std::pair<Tier, SlotId> PageQueue::memory_and_slot_of(const PageTask& task) {
  const std::lock_guard lock(mutex_);
  const TierJob& job = job_of(task);
  return {job.work.memory, job.pages[page_of(task)].slot};
}

void PageQueue::take_bare(const PageTask& task, std::span<std::byte> payload) {
  KV_CHECK(task.verb == StorageVerb::set && payload.size() == form().bytes(), "a set takes a page's bytes");
  const auto [memory, slot] = memory_and_slot_of(task);
  memory_.read_page(memory, slot, payload);
}

Cause PageQueue::give_bare(const PageTask& task, std::span<const std::byte> payload) {
  KV_CHECK(task.verb == StorageVerb::get, "a get gives");
  if (payload.size() != form().bytes()) return Cause::corrupt;
  const auto [memory, slot] = memory_and_slot_of(task);
  memory_.write_page(memory, slot, task.key, payload);
  return Cause::none;
}

}  // namespace

struct TierQueues::State {
  State(Tier which, std::unique_ptr<StorageBackend> b, PageMemory& memory, bool s, double slow_factor)
      : tier(which),
        stores(s),
        backend(std::move(b)),
        answers{which, nullptr, nullptr, {}},
        slow_rank(slow_factor),
        gets(memory, backend->seal(), answers, slow_rank),
        writes(memory, backend->seal(), answers, slow_rank) {}

  Tier tier;
  bool stores;
  std::unique_ptr<StorageBackend> backend;
  Answers answers;
  SlowRank slow_rank;
  PageQueue gets, writes;
  Worker<LookUpJob> look_ups;  // last member: its thread ends first
};

TierQueues::TierQueues(Tier tier, std::unique_ptr<StorageBackend> backend, PageMemory& memory, bool stores,
                       double slow_factor)
    : state_(std::make_unique<State>(tier, std::move(backend), memory, stores, slow_factor)) {}

TierQueues::~TierQueues() {
  state_->look_ups.drop();
  state_->slow_rank.end();
}

Tier TierQueues::tier() const { return state_->tier; }

void TierQueues::start(CompletionQueue& queue, const RunClock& clock, std::function<void(OperationId, bool)> landed) {
  State& s = *state_;
  s.answers = {s.tier, &queue, &clock, std::move(landed)};
  s.gets.start("storage reader", [&s](PageWork& work) { s.backend->read(work); });
  s.writes.start("storage writer", [&s](PageWork& work) { s.backend->write(work); });
  s.look_ups.start("storage look-ups", [&s](LookUpJob& job) {
    const TimeNs begin = s.answers.clock->now();
    const LookedUp found = s.backend->look_up(job.space, job.keys);
    if (s.slow_rank.slows()) s.slow_rank.delay(s.answers.clock->now() - begin);
    Completion completion{.id = job.id};
    completion.pages = found.pages;
    if (found.cause != Cause::none && found.cause != Cause::missing) {
      completion.status = Status::failed;
      completion.cause = found.cause;
    }
    s.answers.end(job.work, completion, begin);
  });
}

void TierQueues::submit(OperationId id, const StorageOperation& operation) {
  State& s = *state_;
  switch (operation.work.verb) {
    case StorageVerb::look_up: {
      LookUpJob job{id, operation.work, operation.space, {}};
      for (const StoragePage& page : operation.pages) job.keys.push_back(page.key);
      return s.look_ups.submit(std::move(job));
    }
    case StorageVerb::get: return s.gets.submit(id, operation);
    case StorageVerb::set: return s.writes.submit(id, operation, !s.stores);
    case StorageVerb::remove: return s.writes.submit(id, operation);
  }
}

void TierQueues::cancel(OperationId id) {
  if (!state_->gets.cancel(id)) state_->writes.cancel(id);
}

void TierQueues::finish() {
  state_->look_ups.finish();
  state_->gets.stop(false);
  state_->writes.stop(false);
  state_->backend->finish();
}

std::vector<std::pair<std::string, std::uint64_t>> TierQueues::counters() const { return state_->backend->counters(); }

}  // namespace kvtwin
