#include "impl/storage/tier_queues.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "impl/runtime/worker.hpp"
#include "policy/base/check.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {
namespace {

// A page of several objects that is in progress.
struct PageInProgress {
  std::uint32_t delivered = 0;   // objects that a get has delivered
  std::vector<std::byte> bytes;  // if the memory has no pieces: the whole page, which is copied at once
};

// The pages of an operation in one part of the tier. Objects are numbered from the first page's first object on.
struct TierJob {
  OperationId id = OperationId::none;
  StorageWork work;
  PageKey space;
  std::vector<StoragePage> pages;
  // Of a remove whose keys are of several pools: the number of each page in the operation, and then the number of all.
  std::vector<std::size_t> places;
  bool cancelled = false;
  std::size_t begun = 0;            // the first `begun` objects were begun
  std::size_t open = 0;             // number of begun objects that have not ended
  std::vector<std::uint32_t> left;  // by page: objects that have not succeeded yet
  std::size_t limit = 0;            // pages from here on are not begun or completed, because this page failed
  Cause cause = Cause::none;
  TimeNs begin = -1;
  std::map<std::size_t, PageInProgress> in_progress;  // by page

  // A page that has begun is completed, unless it fails.
  bool has_next(std::uint32_t objects) const { return begun < limit * objects && (!cancelled || begun % objects != 0); }
};

struct LookUpJob {
  OperationId id = OperationId::none;
  StorageWork work;
  PageKey space;
  std::vector<PageKey> keys;
  std::vector<StorageOperation::Need> needs;
};

// Passes the results of operations to the event loop. Thread: any thread.
class Answers {
 public:
  void start(CompletionQueue& queue, const RunClock& clock, std::function<void(OperationId, bool)> landed) {
    queue_ = &queue;
    clock_ = &clock;
    landed_ = std::move(landed);
  }
  TimeNs now() const { return clock_->now(); }
  void fail(const char* what) {
    Finished finished;
    finished.failure = std::make_shared<const std::string>(what);
    queue_->push(finished);
  }

  void end(const StorageWork& work, Completion completion, TimeNs begin, std::vector<Pages> usable = {}) {
    LaneSpan span{.lane = lane_of(work), .id = completion.id, .begin = begin, .bytes = completion.bytes};
    span.flowing = begin;
    span.status = completion.status;
    span.end = clock_->now();
    Finished finished{completion, span};
    if (!usable.empty()) {
      finished.usable = std::make_shared<const std::vector<Pages>>(std::move(usable));
      finished.completion.usable = *finished.usable;
    }
    queue_->push(finished);
    const bool gate = work.verb == StorageVerb::get && work.memory == Tier::device;
    if (gate) landed_(completion.id, completion.status == Status::done);
  }

  // The operation is about to go to so many parts. Call in the order of submission.
  void expect(const StorageWork& work, OperationId id, std::size_t parts) {
    const std::lock_guard lock(mutex_);
    order_of(work).push_back({id, work, parts});
  }
  // One part has ended the operation: so many leading pages, of `page_bytes` bytes each in this part. Answers finished
  // operations in the order of submission, up to the first unfinished one.
  void end_part(const StorageWork& work, const Completion& part, Bytes page_bytes, TimeNs begin) {
    const std::lock_guard lock(mutex_);
    std::deque<Expected>& order = order_of(work);
    const auto at = std::ranges::lower_bound(order, part.id, {}, [](const Expected& it) { return it.completion.id; });
    KV_CHECK(at != order.end() && at->completion.id == part.id, "a part ends what it was given");
    at->add(part, page_bytes, begin);
    for (; !order.empty() && order.front().parts == 0; order.pop_front()) {
      const Expected& it = order.front();
      end(it.work, it.completion, it.begin);
    }
  }

 private:
  struct Expected {
    Expected(OperationId id, const StorageWork& of, std::size_t count) : work(of), parts(count) { completion.id = id; }
    void add(const Completion& part, Bytes bytes, TimeNs began) {
      const bool worse =
          part.pages < completion.pages || (part.pages == completion.pages && part.status == Status::failed);
      if (begin < 0 || worse) completion = part;
      begin = begin < 0 ? began : std::min(begin, began);
      page_bytes += bytes;
      completion.bytes = completion.pages * page_bytes;
      --parts;
    }
    StorageWork work;
    Completion completion;  // of the part with the fewest pages
    std::size_t parts;      // that have not ended
    TimeNs begin = -1;      // of the first part; -1: no part has ended
    Bytes page_bytes = 0;
  };
  std::deque<Expected>& order_of(const StorageWork& work) { return order_[work.verb == StorageVerb::get ? 0 : 1]; }

  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;
  std::function<void(OperationId, bool)> landed_;
  std::mutex mutex_;
  std::array<std::deque<Expected>, 2> order_;  // gets; sets and removes: those without an answer
};

// Delays the threads of a slow rank, or of slow drives: each operation takes `factor` times as long, and the factors of
// `spans` times as long if it begins in them, unless the run is aborted.
class SlowRank {
 public:
  SlowRank(double factor, std::vector<SlowSpan> spans) : factor_(factor), spans_(std::move(spans)) {}
  bool slows() const { return factor_ > 1 || !spans_.empty(); }
  // Call after an operation that began at `begin` and took `time`.
  void delay(TimeNs begin, TimeNs time) {
    constexpr double kMaxDelayNs = 1e17;  // three years; clocks cannot wait for longer times
    const double delay_ns = std::clamp(static_cast<double>(time) * (factor_at(begin) - 1), 0.0, kMaxDelayNs);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(static_cast<TimeNs>(delay_ns)), [this] { return aborted_; });
  }
  void end() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  double factor_at(TimeNs begin) const {
    double factor = factor_;
    for (const SlowSpan& span : spans_) factor *= span.at(begin);
    return factor;
  }

  const double factor_;
  const std::vector<SlowSpan> spans_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

// The queue of gets, or of sets and removes, of one part, with its thread. The thread calls the back end for the
// objects.
class PageQueue final : public PageWork {
 public:
  PageQueue(const StorePart& part, Answers& answers, SlowRank& slow_rank)
      : PageWork(object_form(part.memory->form(), part.objects), part.backend->seal()),
        memory_(*part.memory),
        backend_(*part.backend),
        objects_(part.objects),
        first_object_(part.first_object),
        answers_(answers),
        slow_rank_(slow_rank) {}
  ~PageQueue() override { stop(true); }

  using Call = void (StorageBackend::*)(PageWork&);
  void start(const char* what, Call call) {
    try {
      thread_ = std::thread([this, call] { loop(call); });
    } catch (const std::system_error& error) {
      throw std::system_error(error.code(), std::string("starting the ") + what);
    }
  }
  // `done`: another rank does the work; the job only takes its place in the order. `places`: of the pages that concern
  // this part, and then the number of all; empty: all do.
  void submit(OperationId id, const StorageOperation& operation, bool done = false,
              std::vector<std::size_t> places = {}) {
    TierJob job;
    job.id = id;
    job.work = operation.work;
    job.space = operation.space;
    if (places.empty()) {
      job.pages.assign(operation.pages.begin(), operation.pages.end());
    } else {
      for (const std::size_t place : std::span(places).first(places.size() - 1)) {
        job.pages.push_back(operation.pages[place]);
      }
    }
    job.places = std::move(places);
    job.left.assign(job.pages.size(), done ? 0 : objects_);
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
  PageKey key_of_object(const PageKey& page, std::size_t object) const {
    if (objects_ == 1 && first_object_ == 0) return page;
    return storage_object_key(page, first_object_ + static_cast<std::uint32_t>(object));
  }
  std::vector<PageKey> objects_of(std::span<const PageKey> pages) const {
    std::vector<PageKey> objects;
    for (const PageKey& page : pages) {
      for (std::uint32_t i = 0; i < objects_; ++i) objects.push_back(key_of_object(page, i));
    }
    return objects;
  }
  // Requires: the thread has ended.
  std::uint64_t moved_objects() const { return moved_; }

  bool next(PageTask& task) override;
  bool pieces(const PageTask& task, Pieces& pieces) override;
  void take_bare(const PageTask& task, std::span<std::byte> payload) override;
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override;
  void landed(const PageTask& task) override;
  void end(const PageTask& task, Cause cause) override;

 private:
  struct Where {
    Tier memory;
    StoragePage page;
    Bytes first;  // of the object, in the page
  };

  void loop(Call call);
  void answer_finished();
  Where where_is(const PageTask& task);
  PageInProgress& in_progress(const PageTask& task);
  bool is_last_of_page(const PageTask& task);
  // A ticket has 32 bits for the serial number, so the difference is computed in 32 bits.
  TierJob& job_of(const PageTask& task) {
    return jobs_[static_cast<std::uint32_t>((task.ticket >> 32) - first_serial_)];
  }
  std::size_t page_of(const PageTask& task) const { return (task.ticket & 0xFFFFFFFF) / objects_; }
  Bytes page_bytes() const { return objects_ * form().bytes(); }

  PageMemory& memory_;
  StorageBackend& backend_;
  const std::uint32_t objects_, first_object_;
  Answers& answers_;
  SlowRank& slow_rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TierJob> jobs_;
  std::uint64_t first_serial_ = 0;  // of jobs_.front()
  std::size_t cursor_ = 0;          // jobs before this position have no object to begin
  std::size_t open_ = 0;            // objects in progress, all of verb_
  StorageVerb verb_ = StorageVerb::get;
  std::uint64_t moved_ = 0;  // objects read, or stored
  TimeNs busy_since_ = 0;    // back end's thread: objects in progress have not been delayed since this time
  bool stopping_ = false, aborting_ = false;
  std::thread thread_;
};

void PageQueue::loop(Call call) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty() || aborting_) return;
    }
    try {
      (backend_.*call)(*this);
    } catch (const std::exception& error) {  // from the memory, or no memory left; the event loop ends the run
      answers_.fail(error.what());
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
    if (job.has_next(objects_) || job.open > 0) return;
    Completion completion{.id = job.id};
    const auto whole = [](std::uint32_t left) { return left == 0; };
    completion.pages = static_cast<Pages>(std::ranges::find_if_not(job.left, whole) - job.left.begin());
    if (completion.pages != job.pages.size()) {
      completion.status = job.cause == Cause::none ? Status::cancelled : Status::failed;
      completion.cause = job.cause;
    }
    if (!job.places.empty()) completion.pages = job.places[completion.pages];
    const bool moves = job.work.verb != StorageVerb::remove && job.begun > 0;
    answers_.end_part(job.work, completion, moves ? page_bytes() : 0, job.begin < 0 ? answers_.now() : job.begin);
    jobs_.pop_front();
    ++first_serial_;
    if (cursor_ > 0) --cursor_;
  }
}

bool PageQueue::next(PageTask& task) {
  const std::lock_guard lock(mutex_);
  if (aborting_) return false;
  while (cursor_ < jobs_.size() && !jobs_[cursor_].has_next(objects_)) ++cursor_;
  answer_finished();
  if (cursor_ == jobs_.size()) return false;
  TierJob& job = jobs_[cursor_];
  if (open_ > 0 && job.work.verb != verb_) return false;
  verb_ = job.work.verb;
  if (open_ == 0 && slow_rank_.slows()) busy_since_ = answers_.now();
  if (job.begun == 0) job.begin = answers_.now();
  const StoragePage& page = job.pages[job.begun / objects_];
  const std::uint64_t ticket = (first_serial_ + cursor_) << 32 | job.begun;
  task = {job.work.verb, job.space, key_of_object(page.key, job.begun % objects_), ticket, job.work.memory, page.slot};
  ++job.begun;
  ++job.open;
  ++open_;
  return true;
}

void PageQueue::end(const PageTask& task, Cause cause) {
  if (slow_rank_.slows()) {
    slow_rank_.delay(busy_since_, answers_.now() - busy_since_);
    busy_since_ = answers_.now();
  }
  const std::lock_guard lock(mutex_);
  TierJob& job = job_of(task);
  const std::size_t page = page_of(task);
  --job.open;
  --open_;
  if (cause == Cause::none) {
    if (task.verb != StorageVerb::remove) ++moved_;
    if (--job.left[page] == 0) job.in_progress.erase(page);
  } else if (page < job.limit) {  // an earlier page may fail later
    job.limit = page;
    job.cause = cause;
  }
  answer_finished();
}

// ---- the way to and from the slots -------------------------------------------------------------------------

PageQueue::Where PageQueue::where_is(const PageTask& task) {
  const std::lock_guard lock(mutex_);
  const TierJob& job = job_of(task);
  return {job.work.memory, job.pages[page_of(task)], (task.ticket & 0xFFFFFFFF) % objects_ * form().bytes()};
}

bool PageQueue::pieces(const PageTask& task, Pieces& pieces) {
  const Where where = where_is(task);
  if (!memory_.pieces(where.memory, where.page.slot, where.first, form().bytes(), pieces)) return false;
  if (task.verb == StorageVerb::get) memory_.begin_write(where.memory, where.page.slot);
  return true;
}

// The page stays where it is until its last object has ended.
PageInProgress& PageQueue::in_progress(const PageTask& task) {
  const std::lock_guard lock(mutex_);
  return job_of(task).in_progress[page_of(task)];
}

// An object of a get has been delivered. Returns true for the page's last one.
bool PageQueue::is_last_of_page(const PageTask& task) {
  if (objects_ == 1) return true;
  const std::lock_guard lock(mutex_);
  return ++job_of(task).in_progress[page_of(task)].delivered == objects_;
}

void PageQueue::take_bare(const PageTask& task, std::span<std::byte> payload) {
  KV_CHECK(task.verb == StorageVerb::set && payload.size() == form().bytes(), "a set takes an object's bytes");
  Pieces list;
  if (pieces(task, list)) return gather(list, payload);
  const Where where = where_is(task);
  if (objects_ == 1) return memory_.read_page(where.memory, where.page.slot, payload);
  std::vector<std::byte>& page = in_progress(task).bytes;
  if (page.empty()) {
    page.resize(page_bytes());
    memory_.read_page(where.memory, where.page.slot, page);
  }
  std::ranges::copy(std::span(page).subspan(where.first, payload.size()), payload.begin());
}

Cause PageQueue::give_bare(const PageTask& task, std::span<const std::byte> payload) {
  KV_CHECK(task.verb == StorageVerb::get, "a get gives");
  if (payload.size() != form().bytes()) return Cause::corrupt;
  const Where where = where_is(task);
  Pieces list;
  if (pieces(task, list)) {
    scatter(payload, list);
    landed(task);
  } else if (objects_ == 1) {
    memory_.write_page(where.memory, where.page.slot, where.page.key, payload);
  } else {
    std::vector<std::byte>& page = in_progress(task).bytes;
    page.resize(page_bytes());
    std::ranges::copy(payload, page.begin() + static_cast<std::ptrdiff_t>(where.first));
    if (is_last_of_page(task)) memory_.write_page(where.memory, where.page.slot, where.page.key, page);
  }
  return Cause::none;
}

void PageQueue::landed(const PageTask& task) {
  const Where where = where_is(task);
  if (is_last_of_page(task)) memory_.written(where.memory, where.page.slot, where.page.key);
}

// A part of the tier: its back end and its queues.
struct Part {
  Part(StorePart of, bool s, Answers& answers, SlowRank& slow_rank)
      : part(std::move(of)),
        stores(s || part.of_rank),
        gets(part, answers, slow_rank),
        writes(part, answers, slow_rank) {}
  const StorePart part;
  const bool stores;
  PageQueue gets, writes;
};

}  // namespace

struct TierQueues::State {
  State(Tier which, std::vector<StorePart> list, bool stores, double slow_factor, std::vector<SlowSpan> slow_spans)
      : tier(which), slow_rank(slow_factor, std::move(slow_spans)) {
    const auto of_pages = std::ranges::count(list, std::size_t{0}, &StorePart::pool);
    KV_CHECK(of_pages == 1 || of_pages == 2, "pages have a target's part, and perhaps a draft's");
    KV_CHECK(std::ranges::is_sorted(list, {}, &StorePart::pool), "the parts of the pages come first");
    for (StorePart& part : list) parts.emplace_back(std::move(part), stores, answers, slow_rank);
  }
  // The parts of a pool.
  std::vector<Part*> of(std::size_t pool) {
    std::vector<Part*> list;
    for (Part& it : parts) {
      if (it.part.pool == pool) list.push_back(&it);
    }
    KV_CHECK(!list.empty(), "an operation names a pool that the tier stores");
    return list;
  }
  void remove(OperationId id, const StorageOperation& operation);
  LookedUp look_up(const LookUpJob& job);
  std::vector<Pages> usable(const LookUpJob& job, LookedUp& found);

  const Tier tier;
  Answers answers;
  SlowRank slow_rank;
  std::deque<Part> parts;
  Worker<LookUpJob> look_ups;  // last member: its thread ends first
};

// A remove may have keys of several pools. Each part removes those of its pool.
void TierQueues::State::remove(OperationId id, const StorageOperation& operation) {
  std::map<std::size_t, std::vector<std::size_t>> places;  // by pool
  for (std::size_t i = 0; i < operation.pages.size(); ++i) places[pool_of(operation.pages[i].key)].push_back(i);
  std::size_t count = 0;
  for (const auto& [pool, list] : places) count += of(pool).size();
  answers.expect(operation.work, id, count);
  for (auto& [pool, list] : places) {
    list.push_back(operation.pages.size());
    for (Part* const it : of(pool)) it->writes.submit(id, operation, false, list);
  }
}

// A page is there if all its objects are.
LookedUp TierQueues::State::look_up(const LookUpJob& job) {
  LookedUp found{job.keys.size(), Cause::none};
  for (Part* const it : of(0)) {
    const std::vector<PageKey> objects = it->gets.objects_of(std::span(job.keys).first(found.pages));
    const LookedUp there = it->part.backend->look_up(job.space, objects);
    const Pages pages = there.pages / it->part.objects;
    if (pages < found.pages) found = {pages, there.cause};
  }
  return found;
}

// Returns the lengths at which the windows and states that a prefix needs are there, too. If that is not known of some
// of them, which then count as absent, `found` says why.
std::vector<Pages> TierQueues::State::usable(const LookUpJob& job, LookedUp& found) {
  if (job.needs.empty()) return {};
  std::map<std::size_t, std::vector<bool>> there;  // by pool: by object
  for (const StorageOperation::Need& need : job.needs) {
    if (there.contains(need.pool)) continue;
    std::vector<PageKey> keys(job.keys.begin(), job.keys.begin() + static_cast<std::ptrdiff_t>(found.pages));
    for (PageKey& key : keys) key = pool_page_key(key, need.pool);
    Part& it = *of(need.pool).front();
    const Cause unknown = it.part.backend->find(job.space, it.gets.objects_of(keys), there[need.pool]);
    const bool known_so_far = found.cause == Cause::none || found.cause == Cause::missing;
    if (unknown != Cause::none && known_so_far) found.cause = unknown;
  }
  return usable_lengths(job.needs, found.pages, [&](std::size_t pool, Pages page) {
    const std::uint32_t objects = of(pool).front()->part.objects;
    const auto first = there[pool].begin() + static_cast<std::ptrdiff_t>(page * objects);
    return std::all_of(first, first + objects, [](bool is_there) { return is_there; });
  });
}

TierQueues::TierQueues(Tier tier, std::vector<StorePart> parts, bool stores, double slow_factor,
                       std::vector<SlowSpan> slow_spans)
    : state_(std::make_unique<State>(tier, std::move(parts), stores, slow_factor, std::move(slow_spans))) {}

namespace {

std::vector<StorePart> one_part(std::unique_ptr<StorageBackend> backend, PageMemory& memory) {
  std::vector<StorePart> parts;
  parts.push_back({std::move(backend), &memory});
  return parts;
}

}  // namespace

TierQueues::TierQueues(Tier tier, std::unique_ptr<StorageBackend> backend, PageMemory& memory, bool stores,
                       double slow_factor)
    : TierQueues(tier, one_part(std::move(backend), memory), stores, slow_factor) {}

TierQueues::~TierQueues() {
  state_->look_ups.drop();
  state_->slow_rank.end();
}

Tier TierQueues::tier() const { return state_->tier; }

void TierQueues::start(CompletionQueue& queue, const RunClock& clock, std::function<void(OperationId, bool)> landed) {
  State& s = *state_;
  s.answers.start(queue, clock, std::move(landed));
  for (Part& it : s.parts) {
    it.part.backend->start([&clock] { return clock.now(); });
    it.gets.start("storage reader", &StorageBackend::read);
    it.writes.start("storage writer", &StorageBackend::write);
  }
  s.look_ups.start("storage look-ups", [&s](LookUpJob& job) {
    const TimeNs begin = s.answers.now();
    LookedUp found = s.look_up(job);
    std::vector<Pages> usable = s.usable(job, found);
    if (s.slow_rank.slows()) s.slow_rank.delay(begin, s.answers.now() - begin);
    Completion completion{.id = job.id};
    completion.pages = found.pages;
    if (found.cause != Cause::none && found.cause != Cause::missing) {
      completion.status = Status::failed;
      completion.cause = found.cause;
    }
    s.answers.end(job.work, completion, begin, std::move(usable));
  });
}

void TierQueues::submit(OperationId id, const StorageOperation& operation) {
  State& s = *state_;
  if (operation.work.verb == StorageVerb::look_up) {
    LookUpJob job{id, operation.work, operation.space, {}, {operation.needs.begin(), operation.needs.end()}};
    for (const StoragePage& page : operation.pages) job.keys.push_back(page.key);
    return s.look_ups.submit(std::move(job));
  }
  if (operation.work.verb == StorageVerb::remove) return s.remove(id, operation);
  const std::vector<Part*> parts = s.of(operation.pool);
  s.answers.expect(operation.work, id, parts.size());
  for (Part* const it : parts) {
    if (operation.work.verb == StorageVerb::get) {
      it->gets.submit(id, operation);
    } else {
      it->writes.submit(id, operation, operation.work.verb == StorageVerb::set && !it->stores);
    }
  }
}

void TierQueues::cancel(OperationId id) {
  for (Part& it : state_->parts) {
    if (!it.gets.cancel(id)) it.writes.cancel(id);
  }
}

void TierQueues::finish() {
  state_->look_ups.finish();
  for (Part& it : state_->parts) {
    it.gets.stop(false);
    it.writes.stop(false);
    it.part.backend->finish();
  }
}

std::vector<std::pair<std::string, std::uint64_t>> TierQueues::counters() const {
  std::vector<std::pair<std::string, std::uint64_t>> list;
  std::uint64_t objects = 0, read = 0, stored = 0;
  for (const Part& it : state_->parts) {
    const std::string prefix = it.part.pool != 0               ? "pool" + std::to_string(it.part.pool) + "_"
                               : &it == &state_->parts.front() ? ""
                                                               : "draft_";
    for (const auto& [name, count] : it.part.backend->counters()) list.emplace_back(prefix + name, count);
    if (it.part.pool != 0) {
      list.emplace_back(prefix + "objects_read", it.gets.moved_objects());
      list.emplace_back(prefix + "objects_stored", it.writes.moved_objects());
      continue;
    }
    if (it.stores) objects += it.part.objects;  // else another rank stores the page for all
    read += it.gets.moved_objects();
    stored += it.writes.moved_objects();
  }
  list.insert(list.end(), {{"objects_per_page", objects}, {"objects_read", read}, {"objects_stored", stored}});
  return list;
}

}  // namespace kvtwin
