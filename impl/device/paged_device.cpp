#include "impl/device/paged_device.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "impl/device/ledger.hpp"
#include "impl/disk/direct_pages.hpp"
#include "impl/runtime/worker.hpp"
#include "impl/storage/pool_blocks.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/transfer.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {

// Sleeps on purpose: faults = rank(factor=...) stands for a rank with slow copies. There is nothing to wait for,
// because the lost time itself is the effect that the other ranks must see.
void PageEngine::slow_down(double factor, Steady::time_point begin) const {
  if (factor <= 1) return;
  constexpr std::chrono::milliseconds kPiece{10};
  const auto extra = std::chrono::duration<double>(Steady::now() - begin) * (factor - 1);
  const Steady::time_point end = Steady::now() + std::chrono::duration_cast<Steady::duration>(extra);
  for (auto left = end - Steady::now(); left.count() > 0 && !stopping(); left = end - Steady::now()) {
    std::this_thread::sleep_for(std::min<Steady::duration>(left, kPiece));
  }
}

namespace {

// The engine's direct way, which also keeps the ledger.
class LedgerDirectPages final : public DirectPages {
 public:
  LedgerDirectPages(DirectPages& engine, Ledger& ledger) : engine_(engine), ledger_(ledger) {}
  std::uint32_t buffers() const override { return engine_.buffers(); }
  std::unique_ptr<BlockQueue> queue() override { return engine_.queue(); }
  bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) override {
    return engine_.read_headers(buffers, blocks);
  }
  bool land(std::span<Landing> pages) override {
    for (const Landing& it : pages) ledger_.begin_fetch(Tier::device, it.slot);
    return engine_.land(pages);
  }
  void landed(SlotId slot, const PageKey& key) override { ledger_.fetched(Tier::device, slot, key); }

 private:
  DirectPages& engine_;
  Ledger& ledger_;
};

// The KV of one model, the target or its draft: the pools, and the record of their pages. The bytes of a draft's page
// are generated from another key, so bytes of the wrong model are wrong bytes.
class KvPools final : public PageMemory {
 public:
  KvPools(const DeviceConfig& config, std::unique_ptr<PageEngine> engine, bool draft)
      : config_(config),
        engine_(std::move(engine)),
        ledger_(config, engine_->host_pool()),
        draft_(draft),
        steps_read_(config.device_pages),
        counted_in_(config.device_pages) {
    if (engine_->direct() != nullptr && !draft) direct_.emplace(*engine_->direct(), ledger_);
  }
  const DeviceConfig& config() const { return config_; }
  PageEngine& engine() { return *engine_; }
  const PageEngine& engine() const { return *engine_; }
  Ledger& ledger() { return ledger_; }
  PageKey own_key(PageKey key) const {
    constexpr std::uint64_t kDraftMark = 0x7466617264;  // "draft"
    if (draft_) key.words[0] ^= kDraftMark;
    return key;
  }

  // ---- for the threads of storage tiers
  PageForm form() const override { return {config_.shape, config_.host_layout}; }
  void read_page(Tier memory, SlotId slot, std::span<std::byte> page) override;
  void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) override;
  bool pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) override;
  void begin_write(Tier memory, SlotId slot) override;
  void written(Tier memory, SlotId slot, const PageKey& key) override;
  DirectPages* direct() override { return direct_ ? &*direct_ : nullptr; }

  // ---- copy threads
  // Returns the number of moved pages, in order. A load moves all pages or none.
  Pages move(const TransferJob& job);

  // ---- the compute thread
  // Runs all layers of a step once. `awaits`: the layers wait for the gates. Returns false if a load of a gate is lost,
  // or if the device stops. `number`: see PageEngine. Adds to `stalled` and `checks`.
  bool run_layers(const PassJob& job, std::uint64_t number, bool awaits, TimeNs& stalled,
                  std::vector<Ledger::HostCheck>& checks);
  // The tokens of the step have been written.
  void record_step(const PassJob& job, std::uint64_t number);
  // The first `steps` steps of a pass have read their pages.
  void end_pass(const PassJob& job, std::uint64_t steps);

  // After the threads have ended. Audits the pools.
  Verification finish();

 private:
  void convert_layout(std::byte* layer_first, std::byte* page, bool to_device) const;
  void flip_host(const TransferJob& job);
  void flip_device(SlotId slot);
  void audit_device();
  void begin_pass(const PassJob& job);

  const DeviceConfig config_;
  const std::unique_ptr<PageEngine> engine_;
  Ledger ledger_;
  const bool draft_;
  std::optional<LedgerDirectPages> direct_;
  bool flipped_device_ = false, flipped_host_ = false;  // compute thread; h2d thread
  Verification reads_;                                  // compute thread
  Bytes checked_ = 0;                                   // compute thread: in the last step

  // Compute thread, by device slot: number of steps that have read the page since a transfer wrote to the slot, and the
  // pass that was counted last.
  std::vector<std::uint32_t> steps_read_, counted_in_;
  std::uint32_t passes_ = 0;
  std::vector<std::uint32_t> page_reads_;  // by page of the current pass
};

// A wrong page was found on the device; check its host copy.
struct HostCheckJob {
  KvPools* pools = nullptr;
  Ledger::HostCheck check;
};

using Job = std::variant<TransferJob, PassJob, HostCheckJob>;

class PagedDevice final : public Device {
 public:
  PagedDevice(const DeviceConfig& config, std::unique_ptr<PageEngine> engine, const DeviceConfig* draft_config,
              std::unique_ptr<PageEngine> draft_engine)
      : config_(config),
        target_(config, std::move(engine), false),
        last_use_(config.device_pages),
        last_write_(config.device_pages),
        landed_since_(config.device_pages) {
    if (draft_config == nullptr) return;
    draft_.emplace(*draft_config, std::move(draft_engine), true);
    lacks_draft_.resize(config.device_pages);
  }
  ~PagedDevice() override;

  void start(CompletionQueue& queue, const RunClock& clock) override;
  void submit(OperationId id, const Operation& operation) override;
  void cancel(OperationId id) override;
  void retire(OperationId id) override { flights_.erase(id); }
  void announce_get(OperationId get, const StorageOperation& operation) override;
  void landed(OperationId get, bool done) override;
  PageMemory& memory() override { return target_; }
  DevicePool pool() override { return target_.engine().device_pool(); }
  void expect_pages(std::span<const SlotId> slots) override;
  PageMemory* draft_memory() override { return draft_ && !draft_->config().stays ? &*draft_ : nullptr; }
  Verification finish() override;
  std::vector<std::string> notes() const override;

 private:
  FlightPtr new_flight(OperationId id);
  TransferJob transfer_job(const TransferOperation& operation);
  PassJob pass_job(const ForwardOperation& pass);
  PassJob draft_job(const PassJob& target, Tokens page_tokens);
  void arrives(SlotId slot) {
    landed_since_[slot] = true;
    if (draft_ && draft_->config().stays) lacks_draft_[slot] = true;
  }
  void land(Flight& flight, bool done) const;
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
  void run_pass(const PassJob& job, Completion& completion);
  void run_joint_pass(const PassJob& job, Completion& completion);

  const DeviceConfig config_;
  KvPools target_;
  std::optional<KvPools> draft_;  // of a draft model, if its pool lies beside the target's
  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;

  std::unordered_map<OperationId, FlightPtr> flights_;  // event loop
  std::vector<std::uint64_t> last_use_, last_write_;    // event loop; by device slot: ordinal of the last pass
  std::vector<bool> lacks_draft_;                       // event loop; by device slot: came back without the draft's KV
  std::vector<bool> landed_since_;                      // event loop; by device slot: after the last pass that reads it
  std::uint64_t passes_ = 0;                            // event loop: submitted passes
  std::atomic<std::uint64_t> passes_ended_{0};          // passes end in the order of submission
  std::mutex announced_mutex_;
  std::unordered_map<OperationId, FlightPtr> announced_;  // gets into L1 that have not landed
  std::atomic<std::uint64_t> left_out_{0};                // pages that the draft model's passes did not read

  // Last members: their threads end first, and the compute thread before the threads for which it waits.
  Worker<Job> d2h_, h2d_, compute_;
};

// ---- start and stop ------------------------------------------------------------------------------------------

// Ends the wait for layers of an operation: all have landed, or will never land.
void PagedDevice::land(Flight& flight, bool done) const {
  flight.land(done ? config_.shape.layers : Flight::kLost);
  if (flight.draft) flight.draft->land(done ? draft_->config().shape.layers : Flight::kLost);
}

void PagedDevice::answer(Flight& flight) {
  if (flight.draft) flight.draft->answer();
  flight.answer();
}

// Allowed in the middle of a run: jobs that have not begun never begin, and the passes that wait for them are woken.
PagedDevice::~PagedDevice() {
  target_.engine().stop();
  if (draft_) draft_->engine().stop();
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
  Verification all = target_.finish();
  if (!draft_) return all;
  Verification draft = draft_->finish();
  all.draft_pages_read = draft.pages_read;
  all.draft_bytes_read = draft.bytes_read;
  all.draft_bytes_checked = draft.bytes_checked;
  all.draft_pages_audited = draft.pages_audited;
  all.draft_bytes_audited = draft.bytes_audited;
  all.draft_pages_left_out = left_out_.load(std::memory_order_relaxed);
  all.pages_read += draft.pages_read;
  all.bytes_read += draft.bytes_read;
  all.bytes_checked += draft.bytes_checked;
  all.pages_audited += draft.pages_audited;
  all.bytes_audited += draft.bytes_audited;
  all.wrong_reads += draft.wrong_reads;
  all.flipped |= draft.flipped;
  for (WrongPage& wrong : draft.wrong) {
    wrong.key = draft_->own_key(wrong.key);
    wrong.found = "KV of the draft model, " + wrong.found;
    all.wrong.push_back(std::move(wrong));
  }
  return all;
}

std::vector<std::string> PagedDevice::notes() const {
  std::vector<std::string> notes = target_.engine().notes();
  if (draft_) std::ranges::copy(draft_->engine().notes(), std::back_inserter(notes));
  return notes;
}

Verification KvPools::finish() {
  audit_device();
  ledger_.audit_host(reads_);
  ledger_.conclude(reads_);
  reads_.flipped = flipped_device_ || flipped_host_;
  return std::move(reads_);
}

void KvPools::audit_device() {
  const PassJob job = ledger_.device_audit();
  if (job.slots.empty()) return;
  engine_->begin_pass(job, {});
  for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) engine_->read_layer(job, 0, layer);
  const PageEngine::StepEnd end = engine_->end_step();
  ledger_.record_audit(job, end);
  reads_.pages_audited += job.slots.size();
  reads_.bytes_audited += end.checked;
}

// ---- the event loop's calls ----------------------------------------------------------------------------------

FlightPtr PagedDevice::new_flight(OperationId id) {
  auto flight = std::make_shared<Flight>();
  if (draft_ && !draft_->config().stays) flight->draft = std::make_shared<Flight>();
  flights_[id] = flight;
  return flight;
}

TransferJob PagedDevice::transfer_job(const TransferOperation& operation) {
  KV_CHECK(operation.lane == Lane::h2d || operation.lane == Lane::d2h, "the device has no such lane");
  const std::size_t further = draft_memory() != nullptr ? 1 : 0;
  KV_CHECK(operation.beside.size() == further, "the draft's KV moves if it has a pool to move to");
  TransferJob job;
  job.lane = operation.lane;
  job.plan = operation.plan;
  job.runs.assign(operation.plan.runs.begin(), operation.plan.runs.end());
  job.plan.runs = {};  // borrowed for the call only
  job.pages.assign(operation.pages.begin(), operation.pages.end());
  for (const PageMove& page : job.pages) {
    job.after_pass = std::max(job.after_pass, job.to_device() ? last_use_[page.target] : last_write_[page.source]);
    if (job.to_device()) arrives(page.target);
  }
  if (operation.beside.empty()) return job;
  job.draft = std::make_shared<TransferJob>(job);
  job.draft->plan = operation.beside.front();
  job.draft->plan.runs = {};
  for (PageMove& page : job.draft->pages) page.key = draft_->own_key(page.key);
  return job;
}

PassJob PagedDevice::pass_job(const ForwardOperation& pass) {
  const Tokens page_tokens = config_.shape.page_tokens;
  PassJob job;
  job.shape = pass.shape;
  job.steps = pass.steps;
  ++passes_;
  for (const SequenceWork& work : pass.sequences) {
    job.sequences.push_back({work.request, work.context_tokens, work.new_tokens, job.slots.size(), work.slots.size()});
    job.slots.insert(job.slots.end(), work.slots.begin(), work.slots.end());
    job.keys.insert(job.keys.end(), work.keys.begin(), work.keys.end());
    for (const SlotId slot : work.slots) {
      job.landed.push_back(landed_since_[slot] ? 1 : 0);
      // A device may finish a load within the pass that waits for it, so backups of the slot wait for the pass.
      if (landed_since_[slot] && !pass.gates.empty()) last_write_[slot] = passes_;
      landed_since_[slot] = false;
      last_use_[slot] = passes_;
    }
    for (const SlotId slot : work.slots.subspan(work.context_tokens / page_tokens)) last_write_[slot] = passes_;
    if (!draft_) continue;
    const std::size_t first_new = (work.context_tokens + page_tokens - 1) / page_tokens;
    for (const SlotId slot : work.slots.subspan(first_new)) lacks_draft_[slot] = false;
  }
  job.gated = !pass.gates.empty();
  for (const OperationId gate : pass.gates) {
    const auto found = flights_.find(gate);
    if (found != flights_.end()) job.gates.push_back(found->second);  // otherwise the gate has landed
  }
  if (draft_) job.draft = std::make_shared<PassJob>(draft_job(job, page_tokens));
  return job;
}

// The draft model computes the same tokens. It leaves out pages of the context that lack its KV: a sequence with such
// pages becomes one sequence for each run of the other pages.
PassJob PagedDevice::draft_job(const PassJob& target, Tokens page_tokens) {
  PassJob job = target;
  job.shape.draft_tokens = 0;  // a draft model verifies no tokens
  for (PageKey& key : job.keys) key = draft_->own_key(key);
  job.gates.clear();
  for (const FlightPtr& gate : target.gates) {
    if (gate->draft) job.gates.push_back(gate->draft);
  }
  job.sequences.clear();
  for (const PassJob::Sequence& whole : target.sequences) {
    const auto lacks = [&](std::size_t page) { return lacks_draft_[job.slots[whole.first_page + page]]; };
    for (std::size_t page = 0; page < whole.pages;) {
      std::size_t end = page;
      while (end < whole.pages && !lacks(end)) ++end;
      if (end > page) {
        const Tokens context = std::min(whole.context, end * page_tokens);
        job.sequences.push_back({whole.request, context - std::min(context, page * page_tokens),
                                 end == whole.pages ? whole.fresh : 0, whole.first_page + page, end - page});
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
    if (job.draft) {
      job.draft->id = id;
      job.draft->flight = job.flight->draft;
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
  if (found->second->draft) found->second->draft->cancelled.store(true, std::memory_order_relaxed);
}

void PagedDevice::announce_get(OperationId get, const StorageOperation& operation) {
  const FlightPtr flight = new_flight(get);
  for (const StoragePage& page : operation.pages) arrives(page.slot);
  const std::lock_guard lock(announced_mutex_);
  announced_[get] = flight;
}

void PagedDevice::expect_pages(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) {
    target_.ledger().expect_page(slot);
    arrives(slot);
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
    if (ended >= job.after_pass) return !target_.engine().stopping();
    passes_ended_.wait(ended, std::memory_order_acquire);
  }
}

Pages KvPools::move(const TransferJob& job) {
  if (job.to_device()) {
    ledger_.begin_load(job);
    if (config_.flip == DeviceConfig::Flip::host && !flipped_host_) flip_host(job);
    if (!engine_->load(job)) return 0;
    ledger_.end_load(job);
    return job.plan.pages;
  }
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.begin_backup(job);
  const Pages moved = engine_->back_up(job);
  ledger_.end_backup(job, moved);
  return moved;
}

// A page counts if it has moved in both pools.
Pages PagedDevice::move(const TransferJob& job) {
  const Pages moved = target_.move(job);
  if (!job.draft || moved != job.plan.pages) return job.draft ? 0 : moved;
  return draft_->move(*job.draft);
}

void PagedDevice::execute(TransferJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  std::string failure;
  try {
    const Pages moved = wait_for_passes(job) ? move(job) : 0;
    if (moved != job.plan.pages) completion.status = Status::cancelled;
    completion.bytes = moved * (config_.shape.page_bytes() + (job.draft ? job.draft->plan.shape.page_bytes() : 0));
  } catch (const std::exception& error) {
    completion.status = Status::failed;
    failure = error.what();
  }
  // Pushes the completion first: a pass that waits for this operation is answered after it.
  end(completion, {.lane = job.lane, .begin = begin, .flowing = begin, .bytes = completion.bytes}, failure);
  if (completion.status != Status::done) land(*job.flight, false);
  answer(*job.flight);
}

// ---- pages of storage tiers ----------------------------------------------------------------------------------

bool KvPools::pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) {
  if (memory != Tier::host) return false;
  const Bytes block = form().bytes() / pool_blocks(form());
  for (Bytes at = first / block; at * block < first + bytes; ++at) {
    pieces.emplace_back(engine_->host_pool() + pool_block_offset(form(), config_.host_pages, slot, at), block);
  }
  return true;
}

void KvPools::begin_write(Tier memory, SlotId slot) {
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.begin_fetch(memory, slot);
}

void KvPools::written(Tier memory, SlotId slot, const PageKey& key) {
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.fetched(memory, slot, own_key(key));
}

// Converts one page between layer_first and the host pool's layout.
void KvPools::convert_layout(std::byte* layer_first, std::byte* page, bool to_device) const {
  const PageRun run{0, 0, 1};
  TransferParams params;
  params.shape = config_.shape;
  params.device = layer_first;
  params.device_pages = 1;
  params.host = page;
  params.host_pages = 1;
  params.host_layout = config_.host_layout;
  params.to_device = to_device;
  params.runs = &run;
  params.run_count = 1;
  params.layer_end = config_.shape.layers;
  copy_pieces(params);
}

void KvPools::read_page(Tier memory, SlotId slot, std::span<std::byte> page) {
  if (Pieces list; pieces(memory, slot, 0, page.size(), list)) return gather(list, page);
  std::vector<std::byte> bytes(page.size());
  engine_->read_device_page(slot, bytes.data());
  convert_layout(bytes.data(), page.data(), false);
}

void KvPools::write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) {
  if (Pieces list; pieces(memory, slot, 0, page.size(), list)) {
    begin_write(memory, slot);
    scatter(page, list);
  } else {
    std::vector<std::byte> bytes(page.size());
    convert_layout(bytes.data(), const_cast<std::byte*>(page.data()), true);  // read only in this direction
    engine_->write_device_page(slot, bytes.data());
  }
  written(memory, slot, key);
}

// ---- passes --------------------------------------------------------------------------------------------------

void PagedDevice::execute(PassJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  std::string failure;
  try {
    target_.ledger().begin_pass(job);
    if (job.draft) draft_->ledger().begin_pass(*job.draft);
    if (config_.ranks != nullptr && config_.ranks->size() > 1) {
      run_joint_pass(job, completion);
    } else {
      run_pass(job, completion);
    }
    target_.end_pass(job, completion.steps);
    if (job.draft) draft_->end_pass(*job.draft, completion.steps);
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
    ++completion.steps;
    if (agreed[1] == 0 && completion.steps < job.steps) {
      completion.status = Status::cancelled;
      return;
    }
  }
}

// Returns false if a load of a gate is lost, or if the device stops.
bool PagedDevice::step(const PassJob& job, std::uint64_t number, TimeNs& stalled) {
  const std::uint32_t draft_tokens = job.shape.draft_tokens;
  if (draft_tokens == 0 && !job.draft) return run_step(job, number, number == 0, stalled);
  // Steps write several tokens, and not all the same number.
  PassJob one = job.at_step(number, draft_tokens);
  if (job.draft) one.draft = std::make_shared<PassJob>(job.draft->at_step(number, draft_tokens));
  return run_step(one, 0, number == 0, stalled);
}

// The draft model proposes one token after another, then the target verifies them. The order does not matter for the
// bytes, and the target's loads arrive first, so the target's layers run first.
bool PagedDevice::run_step(const PassJob& job, std::uint64_t number, bool first, TimeNs& stalled) {
  std::vector<Ledger::HostCheck> checks;
  const auto run = [&](KvPools& pools, const PassJob& part, bool awaits) {
    checks.clear();
    const bool done = pools.run_layers(part, number, awaits, stalled, checks);
    for (const Ledger::HostCheck& check : checks) d2h_.submit(HostCheckJob{&pools, check});
    return done;
  };
  if (!run(target_, job, first)) return false;
  if (job.draft) {
    const std::uint32_t proposals = job.prefill() ? 1 : std::max(1U, job.shape.draft_tokens);
    for (std::uint32_t i = 0; i < proposals; ++i) {
      if (!run(*draft_, *job.draft, first && i == 0)) return false;
    }
    draft_->record_step(*job.draft, number);
  }
  target_.record_step(job, number);
  return true;
}

void KvPools::begin_pass(const PassJob& job) {
  page_reads_.resize(job.slots.size());
  for (std::size_t page = 0; page < job.slots.size(); ++page) {
    if (job.landed[page] != 0) steps_read_[job.slots[page]] = 0;
  }
  for (std::size_t page = 0; page < job.slots.size(); ++page) {
    page_reads_[page] = steps_read_[job.slots[page]] + static_cast<std::uint32_t>(job.steps_before);
  }
  engine_->begin_pass(job, page_reads_);
}

// A pass may name a slot several times: sequences share pages. A draft model leaves out some pages.
void KvPools::end_pass(const PassJob& job, std::uint64_t steps) {
  ++passes_;
  for (const PassJob::Sequence& sequence : job.sequences) {
    for (const SlotId slot : std::span(job.slots).subspan(sequence.first_page, sequence.pages)) {
      if (std::exchange(counted_in_[slot], passes_) != passes_) steps_read_[slot] += static_cast<std::uint32_t>(steps);
    }
  }
}

bool KvPools::run_layers(const PassJob& job, std::uint64_t number, bool awaits, TimeNs& stalled,
                         std::vector<Ledger::HostCheck>& checks) {
  if (number == 0) begin_pass(job);
  const bool waits = awaits && !job.gates.empty();
  bool done = !engine_->stopping();
  if (waits || !done || !engine_->whole_step(job, number)) {
    for (std::uint32_t layer = 0; done && layer < config_.shape.layers; ++layer) {
      done = !engine_->stopping() && (!waits || engine_->await_layer(job, layer));
      if (done) engine_->layer(job, number, layer);
    }
  }
  const PageEngine::StepEnd end = engine_->end_step();
  stalled += end.stalled;
  checked_ = end.checked;
  checks = ledger_.record_wrong_reads(job, end);
  return done;
}

void KvPools::record_step(const PassJob& job, std::uint64_t number) {
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens context = job.context(sequence, number);
    reads_.bytes_read += context * config_.shape.token_bytes();
    reads_.pages_read += (context + config_.shape.page_tokens - 1) / config_.shape.page_tokens;
  }
  reads_.bytes_checked += checked_;
  const SlotId whole = ledger_.end_step(job, number);
  if (config_.flip == DeviceConfig::Flip::device && !flipped_device_ && whole != kNoSlot) flip_device(whole);
}

// ---- test hooks ----------------------------------------------------------------------------------------------

// Draws a byte of a page from the seed.
KvIndex draw_place(const KvShape& shape, std::uint64_t seed, SlotId slot, std::uint32_t& byte) {
  const std::uint64_t draw = pattern_mix(seed ^ 0x666C6970);
  byte = static_cast<std::uint32_t>((draw >> 48) % shape.head_bytes);
  return {.page = slot,
          .plane = static_cast<std::uint32_t>(draw % shape.planes),
          .layer = static_cast<std::uint32_t>((draw >> 8) % shape.layers),
          .token = static_cast<std::uint32_t>((draw >> 20) % shape.page_tokens),
          .head = static_cast<std::uint32_t>((draw >> 40) % shape.heads)};
}

void KvPools::flip_device(SlotId slot) {
  flipped_device_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = draw_place(config_.shape, config_.seed, slot, byte);
  engine_->flip_device(byte_offset(Layout::layer_first, config_.shape, config_.device_pages, place) + byte);
}

void KvPools::flip_host(const TransferJob& job) {
  flipped_host_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = draw_place(config_.shape, config_.seed, job.pages.front().source, byte);
  engine_->host_pool()[byte_offset(config_.host_layout, config_.shape, config_.host_pages, place) + byte] ^=
      std::byte{1};
}

}  // namespace

std::unique_ptr<Device> make_paged_device(const DeviceConfig& config, std::unique_ptr<PageEngine> engine,
                                          const DeviceConfig* draft_config, std::unique_ptr<PageEngine> draft_engine) {
  return std::make_unique<PagedDevice>(config, std::move(engine), draft_config, std::move(draft_engine));
}

}  // namespace kvtwin
