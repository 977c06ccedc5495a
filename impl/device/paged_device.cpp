#include "impl/device/paged_device.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "impl/device/kv_pools.hpp"
#include "impl/device/ledger.hpp"
#include "impl/runtime/worker.hpp"
#include "kernels/page_pattern.hpp"
#include "policy/base/check.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

namespace {

// A wrong page was found on the device; check its host copy.
struct HostCheckJob {
  KvPools* pools = nullptr;
  Ledger::HostCheck check;
};

constexpr Pages kNotMoved = ~Pages{0};  // cancelled, or the device stops

using Job = std::variant<TransferJob, PassJob, HostCheckJob>;

class PagedDevice final : public Device {
 public:
  explicit PagedDevice(std::vector<PagedDevicePart> parts) : config_(parts.front().config) {
    for (PagedDevicePart& part : parts) {
      stores_.push_back(std::make_unique<KvPools>(part.config, std::move(part.engine)));
      if (part.config.kind == KvKind::draft) draft_ = stores_.back().get();
      if (part.config.pool == 0) continue;
      store_of_pool_.resize(std::max(store_of_pool_.size(), part.config.pool));
      store_of_pool_[part.config.pool - 1] = stores_.size() - 1;
    }
    if (draft_ != nullptr) lacks_draft_.resize(config_.device_pages);
  }
  ~PagedDevice() override;

  void start(CompletionQueue& queue, const RunClock& clock) override;
  void submit(OperationId id, const Operation& operation) override;
  void cancel(OperationId id) override;
  void retire(OperationId id) override { flights_.erase(id); }
  void announce_get(OperationId get, const StorageOperation& operation) override;
  void landed(OperationId get, bool done) override;
  PageMemory& memory() override { return target(); }
  std::vector<DevicePool> pools() override;
  void expect_pages(std::span<const SlotId> slots, std::span<const Pages> beside) override;
  PageMemory* draft_memory() override { return draft_ == nullptr || draft_->config().stays ? nullptr : draft_; }
  PageMemory& pool_memory(std::size_t pool) override { return *stores_[store_of_pool_.at(pool - 1)]; }
  Verification finish() override;
  std::vector<std::string> notes() const override;

 private:
  FlightPtr new_flight(OperationId id);
  TransferJob transfer_job(const TransferOperation& operation);
  PassJob pass_job(const ForwardOperation& pass);
  PassJob draft_job(const PassJob& target, std::size_t store, Tokens page_tokens);
  void add_parts(const ForwardOperation& pass, PassJob& job);
  PassJob window_job(const PassJob& target, std::size_t store, std::size_t pool);
  StatePass state_pass(std::size_t store, std::size_t pool, bool gated);
  void add_transfer_part(TransferJob& job, std::size_t store, const Plan& plan, std::span<const PageMove> moves);
  void arrives(SlotId slot) {
    target().arrives(slot);
    if (draft_ != nullptr && draft_->config().stays) lacks_draft_[slot] = true;
  }
  KvPools& target() { return *stores_.front(); }
  const KvPools& target() const { return *stores_.front(); }
  static void add(Verification&& part, const KvPools& store, Verification& all);
  void land(Flight& flight, bool done) const;
  void land_beside(Flight& flight, std::size_t store, bool done) const {
    Flight* const part = flight.beside[store - 1].get();
    if (part != nullptr) part->land(done ? stores_[store]->config().shape.layers : Flight::kLost);
  }
  static void answer(Flight& flight);
  void end(const Completion& completion, LaneSpan span, const std::string& failure = {});

  // Copy threads.
  void execute(TransferJob& job);
  Pages move(const TransferJob& job);
  bool wait_for_passes(const TransferJob& job) const;

  // The compute thread.
  void execute(PassJob& job);
  bool step(const PassJob& job, std::uint64_t number, TimeNs& stalled);
  bool run_step(const PassJob& job, std::uint64_t number, bool first, TimeNs& stalled);
  bool run_part(const PassJob& job, std::uint64_t number, bool awaits, TimeNs& stalled);
  bool read_states(const PassJob& job, std::uint64_t number, bool first, TimeNs& stalled);
  void leave_states(const PassJob& job, std::uint64_t number);
  bool takes_parts_of_steps(const PassJob& job) const {
    return job.shape.draft_tokens != 0 || draft_ != nullptr;  // steps write several tokens, and not all the same number
  }
  void run_pass(const PassJob& job, Completion& completion);
  void run_joint_pass(const PassJob& job, Completion& completion);

  const DeviceConfig config_;
  std::vector<std::unique_ptr<KvPools>> stores_;  // the first one: of pages of full attention
  KvPools* draft_ = nullptr;                      // of a draft model, if its pool lies beside the target's
  std::vector<std::size_t> store_of_pool_;        // by EngineConfig::pools
  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;

  std::unordered_map<OperationId, FlightPtr> flights_;  // event loop
  std::vector<bool> lacks_draft_;                       // event loop; by device slot: came back without the draft's KV
  std::vector<std::vector<SequencePart>> sequence_parts_;  // event loop: scratch, by sequence
  std::uint64_t passes_ = 0;                               // event loop: submitted passes
  std::atomic<std::uint64_t> passes_ended_{0};             // passes end in the order of submission
  std::mutex announced_mutex_;
  std::unordered_map<OperationId, FlightPtr> announced_;  // gets into L1 that have not landed
  std::atomic<std::uint64_t> left_out_{0};                // pages that the draft model's passes did not read
  std::uint64_t states_copied_ = 0;                       // compute thread

  // Last members: their threads end first, and the compute thread before the threads for which it waits.
  Worker<Job> d2h_, h2d_, compute_;
};

// ---- start and stop ------------------------------------------------------------------------------------------

// Ends the wait for layers of an operation: all have landed, or will never land.
void PagedDevice::land(Flight& flight, bool done) const {
  flight.land(done ? config_.shape.layers : Flight::kLost);
  for (std::size_t store = 1; store < stores_.size(); ++store) land_beside(flight, store, done);
}

void PagedDevice::answer(Flight& flight) {
  for (const FlightPtr& part : flight.beside) {
    if (part) part->answer();
  }
  flight.answer();
}

// Allowed in the middle of a run: jobs that have not begun never begin, and the passes that wait for them are woken.
PagedDevice::~PagedDevice() {
  for (const auto& store : stores_) store->engine().stop();
  compute_.drop();
  d2h_.drop();
  const auto mark_lost = [this](Flight& flight) {
    land(flight, false);
    answer(flight);
  };
  for (Job& job : h2d_.drop()) {
    if (auto* transfer = std::get_if<TransferJob>(&job)) mark_lost(*transfer->flight);
  }
  {
    const std::lock_guard lock(announced_mutex_);
    for (const auto& [get, flight] : announced_) mark_lost(*flight);
  }
  // Above any count; the running pass may still add one.
  passes_ended_.store(UINT64_MAX / 2, std::memory_order_release);
  passes_ended_.notify_all();
}

void PagedDevice::start(CompletionQueue& queue, const RunClock& clock) {
  queue_ = &queue;
  clock_ = &clock;
  config_.acquire("compute thread");
  compute_.start("compute thread", [this](Job& job) { execute(std::get<PassJob>(job)); });
  config_.acquire("host-to-device thread");
  h2d_.start("host-to-device thread", [this](Job& job) { execute(std::get<TransferJob>(job)); });
  config_.acquire("device-to-host thread");
  d2h_.start("device-to-host thread", [this](Job& job) {
    if (const auto* it = std::get_if<HostCheckJob>(&job)) return it->pools->ledger().run_host_check(it->check);
    execute(std::get<TransferJob>(job));
  });
}

Verification PagedDevice::finish() {
  compute_.finish();
  h2d_.finish();
  d2h_.finish();  // after compute_, which submits to this thread
  Verification all = target().finish();
  for (std::size_t i = 1; i < stores_.size(); ++i) add(stores_[i]->finish(), *stores_[i], all);
  all.draft_pages_left_out = left_out_.load(std::memory_order_relaxed);
  all.states_copied = states_copied_;
  return all;
}

// Adds what the checks of further pools have found.
void PagedDevice::add(Verification&& part, const KvPools& store, Verification& all) {
  all.pages_read += part.pages_read;
  all.bytes_read += part.bytes_read;
  all.bytes_checked += part.bytes_checked;
  all.pages_audited += part.pages_audited;
  all.bytes_audited += part.bytes_audited;
  all.wrong_reads += part.wrong_reads;
  all.flipped |= part.flipped;
  const KvKind kind = store.config().kind;
  if (kind == KvKind::draft) {
    all.draft_pages_read = part.pages_read;
    all.draft_bytes_read = part.bytes_read;
    all.draft_bytes_checked = part.bytes_checked;
    all.draft_pages_audited = part.pages_audited;
    all.draft_bytes_audited = part.bytes_audited;
  } else {
    (kind == KvKind::windows ? all.windows : all.states) +=
        {part.pages_read, part.pages_audited, part.bytes_read, part.bytes_checked, part.bytes_audited};
  }
  for (WrongPage& wrong : part.wrong) {
    if (kind == KvKind::draft) wrong.key = store.own_key(wrong.key);
    wrong.found = (kind == KvKind::draft     ? "KV of the draft model, "
                   : kind == KvKind::windows ? "KV of a sliding window, "
                                             : "a state, ") +
                  wrong.found;
    all.wrong.push_back(std::move(wrong));
  }
}

std::vector<std::string> PagedDevice::notes() const {
  std::vector<std::string> notes;
  for (const auto& store : stores_) {
    for (std::string& note : store->engine().notes()) {
      if (std::ranges::find(notes, note) == notes.end()) notes.push_back(std::move(note));
    }
  }
  return notes;
}

// ---- the event loop's calls ----------------------------------------------------------------------------------

FlightPtr PagedDevice::new_flight(OperationId id) {
  auto flight = std::make_shared<Flight>();
  for (std::size_t i = 1; i < stores_.size(); ++i) {
    flight->beside.push_back(stores_[i]->config().stays ? nullptr : std::make_shared<Flight>());
  }
  flights_[id] = flight;
  return flight;
}

TransferJob PagedDevice::transfer_job(const TransferOperation& operation) {
  KV_CHECK(operation.lane == Lane::h2d || operation.lane == Lane::d2h, "the device has no such lane");
  const std::size_t further = draft_memory() != nullptr ? 1 : 0;
  KV_CHECK(operation.beside.size() == further || operation.pages.empty(),
           "the draft's KV moves if it has a pool to move to");
  TransferJob job;
  job.lane = operation.lane;
  job.plan = operation.plan;
  job.runs.assign(operation.plan.runs.begin(), operation.plan.runs.end());
  job.plan.runs = {};  // borrowed for the call only
  job.pages.assign(operation.pages.begin(), operation.pages.end());
  for (const PageMove& page : job.pages) {
    job.after_pass = std::max(job.after_pass, target().pass_before(page, job.to_device()));
    if (job.to_device()) arrives(page.target);
  }
  for (const Plan& plan : operation.beside) add_transfer_part(job, 1, plan, operation.pages);
  for (const TransferOperation::Part& part : operation.parts) {
    add_transfer_part(job, store_of_pool_.at(part.pool), part.plan, part.moves);
  }
  return job;
}

void PagedDevice::add_transfer_part(TransferJob& job, std::size_t store, const Plan& plan,
                                    std::span<const PageMove> moves) {
  KvPools& pools = *stores_[store];
  TransferJob part;
  part.store = store;
  part.lane = job.lane;
  part.plan = plan;
  part.runs.assign(plan.runs.begin(), plan.runs.end());
  part.plan.runs = {};
  part.pages.assign(moves.begin(), moves.end());
  for (PageMove& move : part.pages) {
    move.key = pools.own_key(move.key);
    if (pools.config().kind == KvKind::draft) continue;  // the slots are those of the target
    job.after_pass = std::max(job.after_pass, pools.pass_before(move, job.to_device()));
    if (job.to_device()) pools.arrives(move.target);
  }
  job.beside.push_back(std::move(part));
}

PassJob PagedDevice::pass_job(const ForwardOperation& pass) {
  const Tokens page_tokens = config_.shape.page_tokens;
  PassJob job;
  job.shape = pass.shape;
  job.steps = pass.steps;
  job.gated = !pass.gates.empty();
  ++passes_;
  for (const SequenceWork& work : pass.sequences) {
    job.sequences.push_back(
        {work.request, work.context_tokens, work.new_tokens, job.slots.size(), work.slots.size(), work.yield});
    job.slots.insert(job.slots.end(), work.slots.begin(), work.slots.end());
    job.keys.insert(job.keys.end(), work.keys.begin(), work.keys.end());
    const std::size_t first_written = work.context_tokens / page_tokens;
    for (std::size_t page = 0; page < work.slots.size(); ++page) {
      job.landed.push_back(target().use(work.slots[page], page >= first_written, passes_, job.gated) ? 1 : 0);
    }
    if (draft_ == nullptr) continue;
    const std::size_t first_new = (work.context_tokens + page_tokens - 1) / page_tokens;
    for (const SlotId slot : work.slots.subspan(first_new)) lacks_draft_[slot] = false;
  }
  for (const OperationId gate : pass.gates) {
    const auto found = flights_.find(gate);
    if (found != flights_.end()) job.gates.push_back(found->second);  // otherwise the gate has landed
  }
  for (std::size_t store = 1; store < stores_.size(); ++store) {
    if (stores_[store].get() == draft_) job.beside.push_back(draft_job(job, store, page_tokens));
  }
  if (pass.parts != nullptr) add_parts(pass, job);
  return job;
}

// The windows and the states of the pass.
void PagedDevice::add_parts(const ForwardOperation& pass, PassJob& job) {
  sequence_parts_.resize(pass.sequences.size());
  for (std::size_t i = 0; i < pass.sequences.size(); ++i) pass.parts->get(i, sequence_parts_[i]);
  for (std::size_t pool = 0; pool < store_of_pool_.size(); ++pool) {
    const std::size_t store = store_of_pool_[pool];
    if (stores_[store]->config().kind == KvKind::windows) {
      job.beside.push_back(window_job(job, store, pool));
    } else {
      job.states.push_back(state_pass(store, pool, job.gated));
    }
  }
}

// A sequence begins with the first window that its new tokens attend to.
PassJob PagedDevice::window_job(const PassJob& target, std::size_t store, std::size_t pool) {
  KvPools& pools = *stores_[store];
  const Tokens page_tokens = pools.config().shape.page_tokens;
  PassJob job;
  job.store = store;
  job.shape = target.shape;
  job.shape.draft_tokens = 0;
  job.steps = target.steps;
  job.gated = target.gated;
  for (const FlightPtr& gate : target.gates) job.gates.push_back(gate->beside[store - 1]);
  for (std::size_t i = 0; i < target.sequences.size(); ++i) {
    const PassJob::Sequence& whole = target.sequences[i];
    const SequencePart& part = sequence_parts_[i][pool];
    job.sequences.push_back({whole.request, whole.context - part.first * page_tokens, whole.fresh, job.slots.size(),
                             part.slots.size(), whole.yield});
    const std::size_t first_written = whole.context / page_tokens - part.first;
    for (std::size_t page = 0; page < part.slots.size(); ++page) {
      job.slots.push_back(part.slots[page]);
      job.keys.push_back(pools.own_key(target.keys[whole.first_page + part.first + page]));
      job.landed.push_back(pools.use(part.slots[page], page >= first_written, passes_, job.gated) ? 1 : 0);
    }
  }
  return job;
}

StatePass PagedDevice::state_pass(std::size_t store, std::size_t pool, bool gated) {
  KvPools& pools = *stores_[store];
  StatePass states;
  states.store = store;
  for (const std::vector<SequencePart>& parts : sequence_parts_) {
    const SequencePart& part = parts[pool];
    states.sequences.push_back({part.from, part.running, part.points});
    if (part.from != kNoSlot && part.from != part.running) pools.use(part.from, false, passes_, gated);
    pools.use(part.running, true, passes_, gated);
    for (const SequencePart::Point& point : part.points) pools.use(point.slot, true, passes_, gated);
  }
  return states;
}

// The draft model computes the same tokens. It leaves out pages of the context that lack its KV: a sequence with such
// pages becomes one sequence for each run of the other pages.
PassJob PagedDevice::draft_job(const PassJob& target, std::size_t store, Tokens page_tokens) {
  PassJob job = target;
  job.store = store;
  job.shape.draft_tokens = 0;  // a draft model verifies no tokens
  for (PageKey& key : job.keys) key = draft_->own_key(key);
  job.gates.clear();
  for (const FlightPtr& gate : target.gates) {
    if (gate->beside[store - 1]) job.gates.push_back(gate->beside[store - 1]);
  }
  job.sequences.clear();
  for (const PassJob::Sequence& whole : target.sequences) {
    const auto lacks = [&](std::size_t page) { return lacks_draft_[job.slots[whole.first_page + page]]; };
    for (std::size_t page = 0; page < whole.pages;) {
      std::size_t end = page;
      while (end < whole.pages && !lacks(end)) ++end;
      if (end > page) {
        // A page that the prompt fills in part may have been handed over without the draft's KV. Its new tokens are
        // left out, too.
        const Tokens first = page * page_tokens, left_out = std::max(whole.context, first) - whole.context;
        const Tokens context = std::min(whole.context, end * page_tokens);
        job.sequences.push_back({whole.request, context - std::min(context, first),
                                 end == whole.pages ? whole.fresh - std::min(whole.fresh, left_out) : 0,
                                 whole.first_page + page, end - page, whole.yield, left_out});
      }
      for (page = end; page < whole.pages && lacks(page); ++page) left_out_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return job;
}

void PagedDevice::submit(OperationId id, const Operation& operation) {
  FlightPtr flight = new_flight(id);
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
    TransferJob job = transfer_job(*transfer);
    job.id = id;
    job.flight = std::move(flight);
    for (TransferJob& part : job.beside) {
      part.id = id;
      part.flight = job.flight->beside[part.store - 1];
    }
    for (std::size_t store = 1; store < stores_.size() && job.to_device(); ++store) {  // nothing moves there
      if (std::ranges::find(job.beside, store, &TransferJob::store) == job.beside.end()) {
        land_beside(*job.flight, store, true);
      }
    }
    return (job.to_device() ? h2d_ : d2h_).submit(std::move(job));
  }
  KV_CHECK(std::holds_alternative<ForwardOperation>(operation), "storage operations are the storage tiers'");
  PassJob job = pass_job(std::get<ForwardOperation>(operation));
  job.id = id;
  job.flight = std::move(flight);
  compute_.submit(std::move(job));
}

void PagedDevice::cancel(OperationId id) {
  const auto found = flights_.find(id);
  if (found == flights_.end()) return;
  found->second->cancelled.store(true, std::memory_order_relaxed);
  for (const FlightPtr& part : found->second->beside) {
    if (part) part->cancelled.store(true, std::memory_order_relaxed);
  }
}

void PagedDevice::announce_get(OperationId get, const StorageOperation& operation) {
  KV_CHECK(operation.pool == 0, "windows and states go through the host");
  const FlightPtr flight = new_flight(get);
  for (std::size_t store = 1; store < stores_.size(); ++store) {
    if (stores_[store].get() != draft_) land_beside(*flight, store, true);  // it brings no windows and no states
  }
  for (const StoragePage& page : operation.pages) arrives(page.slot);
  const std::lock_guard lock(announced_mutex_);
  announced_[get] = flight;
}

std::vector<DevicePool> PagedDevice::pools() {
  std::vector<DevicePool> pools;
  for (const auto& store : stores_) {
    DevicePool pool = store->engine().device_pool();
    if (pool.bytes.empty()) return {};
    if (store->config().kind != KvKind::draft || store->config().handed) pools.push_back(std::move(pool));
  }
  return pools;
}

void PagedDevice::expect_pages(std::span<const SlotId> slots, std::span<const Pages> beside) {
  KV_CHECK(beside.size() == store_of_pool_.size(), "room is of every pool");
  const Pages others = std::accumulate(beside.begin(), beside.end(), Pages{0});
  for (const SlotId slot : slots.first(slots.size() - others)) {
    target().expect(slot);
    if (draft_ == nullptr) continue;
    if (draft_->config().handed) draft_->ledger().expect_page(slot);
    lacks_draft_[slot] = !draft_->config().handed;
  }
  std::span<const SlotId> rest = slots.last(others);
  for (std::size_t pool = 0; pool < beside.size(); rest = rest.subspan(beside[pool++])) {
    for (const SlotId slot : rest.first(beside[pool])) stores_[store_of_pool_[pool]]->expect(slot);
  }
}

void PagedDevice::landed(OperationId get, bool done) {
  FlightPtr flight;
  {
    const std::lock_guard lock(announced_mutex_);
    const auto found = announced_.find(get);
    flight = std::move(found->second);
    announced_.erase(found);
  }
  land(*flight, done);
  answer(*flight);
}

void PagedDevice::end(const Completion& completion, LaneSpan span, const std::string& failure) {
  span.id = completion.id;
  span.end = clock_->now();
  span.status = completion.status;
  Finished finished{completion, span};
  if (!failure.empty()) finished.failure = std::make_shared<const std::string>(failure);
  queue_->push(finished);
}

// ---- copies --------------------------------------------------------------------------------------------------

// Returns false if the device stops.
bool PagedDevice::wait_for_passes(const TransferJob& job) const {
  for (;;) {
    const std::uint64_t ended = passes_ended_.load(std::memory_order_acquire);
    if (ended >= job.after_pass) return !target().engine().stopping();
    passes_ended_.wait(ended, std::memory_order_acquire);
  }
}

// A page counts if all that belongs to it has moved.
Pages PagedDevice::move(const TransferJob& job) {
  const Pages moved = target().move(job);
  if (job.beside.empty()) return moved;
  const auto moves = [this](const TransferJob& part) { return stores_[part.store]->move(part) == part.plan.pages; };
  return moved == job.plan.pages && std::ranges::all_of(job.beside, moves) ? moved : kNotMoved;
}

void PagedDevice::execute(TransferJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  std::string failure;
  try {
    const Pages moved = wait_for_passes(job) ? move(job) : kNotMoved;
    if (moved != job.plan.pages) completion.status = Status::cancelled;
    if (moved != kNotMoved) {
      completion.bytes = moved * config_.shape.page_bytes();
      for (const TransferJob& part : job.beside) completion.bytes += part.plan.pages * part.plan.shape.page_bytes();
    }
  } catch (const std::exception& error) {
    completion.status = Status::failed;
    failure = error.what();
  }
  // Pushes the completion first: a pass that waits for this operation is answered after it.
  end(completion, {.lane = job.lane, .begin = begin, .flowing = begin, .bytes = completion.bytes}, failure);
  if (completion.status != Status::done) land(*job.flight, false);
  answer(*job.flight);
}

// ---- passes --------------------------------------------------------------------------------------------------

void PagedDevice::execute(PassJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  std::string failure;
  try {
    target().ledger().begin_pass(job);
    for (const PassJob& part : job.beside) stores_[part.store]->ledger().begin_pass(part);
    if (config_.ranks != nullptr && config_.ranks->size() > 1) {
      run_joint_pass(job, completion);
    } else {
      run_pass(job, completion);
    }
    target().end_pass(job, completion.steps);
    for (const PassJob& part : job.beside) stores_[part.store]->end_pass(part, completion.steps);
  } catch (const std::exception& error) {
    completion.status = Status::failed;
    failure = error.what();
  }
  passes_ended_.fetch_add(1, std::memory_order_acq_rel);
  passes_ended_.notify_all();
  // A pass is never answered before its gates, except when the run ends with a failure.
  if (failure.empty()) {
    for (const FlightPtr& gate : job.gates) gate->wait_for_answer();
  }
  end(completion,
      {.lane = Lane::compute, .begin = begin, .stalled_ns = completion.stalled_ns, .steps = completion.steps}, failure);
}

void PagedDevice::run_pass(const PassJob& job, Completion& completion) {
  while (completion.steps < job.steps) {
    if (job.flight->cancelled.load(std::memory_order_relaxed) && (job.steps > 1 || completion.steps == 0)) {
      completion.status = Status::cancelled;
      return;
    }
    if (!step(job, completion.steps, completion.stalled_ns)) {
      completion.status = Status::gate_failed;
      return;
    }
    leave_states(job, completion.steps);
    ++completion.steps;
  }
}

// Returns a number that must be equal on all ranks.
std::int64_t fingerprint(const PassJob& job) {
  std::uint64_t mixed = pattern_mix(job.steps ^ (job.shape.prefill_tokens << 20) ^ (job.slots.size() << 40));
  for (const PassJob::Sequence& sequence : job.sequences) {
    mixed = pattern_mix(mixed ^ sequence.request ^ (sequence.context << 20) ^ (sequence.fresh << 40));
  }
  return static_cast<std::int64_t>(mixed >> 2);
}

// The ranks also agree on the end of the last step, because another rank may have lost a load.
void PagedDevice::run_joint_pass(const PassJob& job, Completion& completion) {
  const std::int64_t own_fingerprint = fingerprint(job);
  while (completion.steps < job.steps) {
    const bool done = step(job, completion.steps, completion.stalled_ns);
    const bool cancelled = job.flight->cancelled.load(std::memory_order_relaxed);
    std::array<std::int64_t, 4> agreed{done ? 1 : 0, cancelled ? 0 : 1, own_fingerprint, -own_fingerprint};
    const bool all_here = config_.ranks->minimum(RankChannel::passes, agreed);
    KV_CHECK(!all_here || agreed[2] == -agreed[3], "all ranks of an engine do the same passes");
    if (!all_here || agreed[0] == 0) {
      completion.status = job.gated ? Status::gate_failed : Status::failed;
      completion.steps = 0;
      return;
    }
    leave_states(job, completion.steps);
    ++completion.steps;
    if (agreed[1] == 0 && completion.steps < job.steps) {
      completion.status = Status::cancelled;
      return;
    }
  }
}

// Returns false if a load of a gate is lost, or if the device stops.
bool PagedDevice::step(const PassJob& job, std::uint64_t number, TimeNs& stalled) {
  if (!takes_parts_of_steps(job)) return run_step(job, number, number == 0, stalled);
  return run_step(job.at_step(number), 0, number == 0, stalled);
}

bool PagedDevice::run_part(const PassJob& job, std::uint64_t number, bool awaits, TimeNs& stalled) {
  KvPools& pools = *stores_[job.store];
  std::vector<Ledger::HostCheck> checks;
  const bool done = pools.run_layers(job, number, awaits, stalled, checks);
  for (const Ledger::HostCheck& check : checks) d2h_.submit(HostCheckJob{&pools, check});
  return done;
}

// The draft model proposes one token after another, then the target verifies them. Windows and states belong to layers
// of the target. The order does not matter for the bytes, and the pages of full attention arrive first, so their layers
// run first.
bool PagedDevice::run_step(const PassJob& job, std::uint64_t number, bool first, TimeNs& stalled) {
  if (!run_part(job, number, first, stalled)) return false;
  for (const PassJob& part : job.beside) {
    const bool draft = stores_[part.store].get() == draft_;
    const std::uint32_t proposals = !draft || job.prefill() ? 1 : std::max(1U, job.shape.draft_tokens);
    for (std::uint32_t i = 0; i < proposals; ++i) {
      if (!run_part(part, number, first && i == 0, stalled)) return false;
    }
  }
  if (!read_states(job, number, first, stalled)) return false;
  for (const PassJob& part : job.beside) stores_[part.store]->record_step(part, number);
  target().record_step(job, number);
  return true;
}

// Adds a state as a page of one token, which is read or written.
void add_state(PassJob& job, RequestId request, bool read, SlotId slot, const PageKey& key) {
  job.sequences.push_back({request, read ? Tokens{1} : 0, read ? Tokens{0} : 1, job.slots.size(), 1});
  job.slots.push_back(slot);
  job.keys.push_back(key);
  job.landed.push_back(1);
}

// Reads the states that the step begins with. A pass first copies those that are cached.
bool PagedDevice::read_states(const PassJob& job, std::uint64_t number, bool first, TimeNs& stalled) {
  for (const StatePass& states : job.states) {
    KvPools& pools = *stores_[states.store];
    PassJob read;
    read.store = states.store;
    read.shape.prefill_tokens = 1;  // it takes no arithmetic, and no graph
    for (const FlightPtr& gate : job.gates) {
      if (first) read.gates.push_back(gate->beside[states.store - 1]);
    }
    for (std::size_t i = 0; i < states.sequences.size(); ++i) {
      const StatePass::Sequence& state = states.sequences[i];
      const Tokens length = job.context(job.sequences[i], number);
      if (length == 0) continue;
      const PageKey key = pools.state_key_of(job, i, length, config_);
      if (first) pools.ledger().reads(state.from, key);
      if (first && state.from != state.running) {
        read.copies.emplace_back(state.from, state.running);
      }
      add_state(read, job.sequences[i].request, true, state.running, key);
    }
    if (read.slots.empty()) continue;
    if (!run_part(read, 0, first, stalled)) return false;
    pools.record_step(read, 0);
    states_copied_ += read.copies.size();
  }
  return true;
}

// The step counts: leaves the states behind its tokens.
void PagedDevice::leave_states(const PassJob& whole, std::uint64_t number) {
  if (whole.states.empty()) return;
  const bool parts = takes_parts_of_steps(whole);
  const PassJob job = parts ? whole.at_step(number) : whole;
  const std::uint64_t step = parts ? 0 : number;
  for (const StatePass& states : job.states) {
    KvPools& pools = *stores_[states.store];
    PassJob left;
    left.store = states.store;
    left.shape.prefill_tokens = 1;
    for (std::size_t i = 0; i < states.sequences.size(); ++i) {
      const StatePass::Sequence& state = states.sequences[i];
      const Tokens from = job.context(job.sequences[i], step), to = from + job.fresh(job.sequences[i]);
      const auto leave = [&](Tokens length, SlotId slot) {
        add_state(left, job.sequences[i].request, false, slot, pools.state_key_of(job, i, length, config_));
      };
      for (const SequencePart::Point& point : state.points) {
        if (from < point.length && point.length <= to) leave(point.length, point.slot);
      }
      if (from < to) leave(to, state.running);
    }
    if (left.slots.empty()) continue;
    pools.ledger().begin_pass(left);
    TimeNs stalled = 0;
    run_part(left, 0, false, stalled);
    pools.record_step(left, 0);
  }
}

}  // namespace

std::unique_ptr<Device> make_paged_device(std::vector<PagedDevicePart> parts) {
  return std::make_unique<PagedDevice>(std::move(parts));
}

}  // namespace kvtwin
