#include "impl/device/paged_device.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "impl/device/ledger.hpp"
#include "impl/disk/direct_pages.hpp"
#include "impl/runtime/worker.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/transfer.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {

// Sleeps on purpose: real.slow_factor represents a rank with slow copies. There is nothing to wait for, because the
// lost time itself is the effect that the other ranks must see.
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

using Job = std::variant<TransferJob, PassJob, Ledger::HostCheck>;

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

class PagedDevice final : public Device, private PageMemory {
 public:
  PagedDevice(const DeviceConfig& config, std::unique_ptr<PageEngine> engine)
      : config_(config),
        engine_(std::move(engine)),
        ledger_(config, engine_->host_pool()),
        last_use_(config.device_pages),
        last_write_(config.device_pages) {
    if (engine_->direct() != nullptr) direct_.emplace(*engine_->direct(), ledger_);
  }
  ~PagedDevice() override;

  void start(CompletionQueue& queue, const RunClock& clock) override;
  void submit(OperationId id, const Operation& operation) override;
  void cancel(OperationId id) override;
  void retire(OperationId id) override { flights_.erase(id); }
  void announce_get(OperationId get) override;
  void landed(OperationId get, bool done) override;
  PageMemory& memory() override { return *this; }
  Verification finish() override;
  std::vector<std::string> notes() const override { return engine_->notes(); }

 private:
  // For the threads of storage tiers.
  PageForm form() const override { return {config_.shape, config_.host_layout}; }
  void read_page(Tier memory, SlotId slot, std::span<std::byte> page) override;
  void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) override;
  bool pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) override;
  void begin_write(Tier memory, SlotId slot) override;
  void written(Tier memory, SlotId slot, const PageKey& key) override;
  DirectPages* direct() override { return direct_ ? &*direct_ : nullptr; }
  void convert_layout(std::byte* layer_first, std::byte* page, bool to_device) const;

  TransferJob transfer_job(const TransferOperation& operation) const;
  PassJob pass_job(const ForwardOperation& pass);
  void end(const Completion& completion, LaneSpan span, const std::string& failure = {});

  // Copy threads.
  void execute(TransferJob& job);
  Pages move(const TransferJob& job);
  bool wait_for_passes(const TransferJob& job) const;
  void flip_host(const TransferJob& job);

  // The compute thread.
  void execute(PassJob& job);
  bool step(const PassJob& job, std::uint64_t number, TimeNs& stalled);
  bool run_layers(const PassJob& job, std::uint64_t number);
  void record_step(const PassJob& job, std::uint64_t number);
  void run_pass(const PassJob& job, Completion& completion);
  void run_joint_pass(const PassJob& job, Completion& completion);
  void flip_device(SlotId slot);

  void audit_device(Verification& verification);

  const DeviceConfig config_;
  const std::unique_ptr<PageEngine> engine_;
  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;
  Ledger ledger_;
  std::optional<LedgerDirectPages> direct_;
  bool flipped_device_ = false, flipped_host_ = false;  // compute thread; h2d thread

  std::unordered_map<OperationId, FlightPtr> flights_;  // event loop
  std::vector<std::uint64_t> last_use_, last_write_;    // event loop; by device slot: ordinal of the last pass
  std::uint64_t passes_ = 0;                            // event loop: submitted passes
  std::atomic<std::uint64_t> passes_ended_{0};          // passes end in the order of submission
  std::mutex announced_mutex_;
  std::unordered_map<OperationId, FlightPtr> announced_;  // gets into L1 that have not landed
  Verification reads_;                                    // compute thread

  // Last members: their threads end first, and the compute thread before the threads for which it waits.
  Worker<Job> d2h_, h2d_, compute_;
};

// ---- start and stop ------------------------------------------------------------------------------------------

void mark_lost(Flight& flight) {
  flight.land(Flight::kLost);
  flight.answer();
}

// Allowed in the middle of a run: jobs that have not begun never begin, and the passes that wait for them are woken.
PagedDevice::~PagedDevice() {
  engine_->stop();
  compute_.drop();
  d2h_.drop();
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
    if (const auto* check = std::get_if<Ledger::HostCheck>(&job)) return ledger_.run_host_check(*check);
    execute(std::get<TransferJob>(job));
  });
}

Verification PagedDevice::finish() {
  compute_.finish();
  h2d_.finish();
  d2h_.finish();  // after compute_, which submits to this thread
  Verification verification = reads_;
  audit_device(verification);
  ledger_.audit_host(verification);
  ledger_.conclude(verification);
  verification.flipped = flipped_device_ || flipped_host_;
  return verification;
}

void PagedDevice::audit_device(Verification& verification) {
  const PassJob job = ledger_.device_audit();
  if (job.slots.empty()) return;
  engine_->begin_pass(job);
  for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) engine_->read_layer(job, 0, layer);
  ledger_.record_audit(job, engine_->end_step());
  verification.pages_audited += job.slots.size();
  for (const PassJob::Sequence& page : job.sequences) {
    verification.bytes_audited += page.context * config_.shape.token_bytes();
  }
}

// ---- the event loop's calls ----------------------------------------------------------------------------------

TransferJob PagedDevice::transfer_job(const TransferOperation& operation) const {
  KV_CHECK(operation.lane == Lane::h2d || operation.lane == Lane::d2h, "the device has no such lane");
  KV_CHECK(!operation.has_side(), "the device has no pool of a draft model");
  TransferJob job;
  job.lane = operation.lane;
  job.plan = operation.plan;
  job.runs.assign(operation.plan.runs.begin(), operation.plan.runs.end());
  job.plan.runs = {};  // borrowed for the call only
  job.pages.assign(operation.pages.begin(), operation.pages.end());
  for (const PageMove& page : job.pages) {
    job.after_pass = std::max(job.after_pass, job.to_device() ? last_use_[page.target] : last_write_[page.source]);
  }
  return job;
}

PassJob PagedDevice::pass_job(const ForwardOperation& pass) {
  KV_CHECK(pass.shape.draft_tokens == 0, "the device decodes without a draft model");
  PassJob job;
  job.shape = pass.shape;
  job.steps = pass.steps;
  ++passes_;
  for (const SequenceWork& work : pass.sequences) {
    job.sequences.push_back({work.request, work.context_tokens, work.new_tokens, job.slots.size(), work.slots.size()});
    job.slots.insert(job.slots.end(), work.slots.begin(), work.slots.end());
    job.keys.insert(job.keys.end(), work.keys.begin(), work.keys.end());
    for (const SlotId slot : work.slots) last_use_[slot] = passes_;
    for (const SlotId slot : work.slots.subspan(work.context_tokens / config_.shape.page_tokens)) {
      last_write_[slot] = passes_;
    }
  }
  job.gated = !pass.gates.empty();
  for (const OperationId gate : pass.gates) {
    const auto found = flights_.find(gate);
    if (found != flights_.end()) job.gates.push_back(found->second);  // otherwise the gate has landed
  }
  return job;
}

void PagedDevice::submit(OperationId id, const Operation& operation) {
  auto flight = std::make_shared<Flight>();
  flights_[id] = flight;
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
    TransferJob job = transfer_job(*transfer);
    job.id = id;
    job.flight = std::move(flight);
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
  if (found != flights_.end()) found->second->cancelled.store(true, std::memory_order_relaxed);
}

void PagedDevice::announce_get(OperationId get) {
  const auto flight = std::make_shared<Flight>();
  flights_[get] = flight;
  const std::lock_guard lock(announced_mutex_);
  announced_[get] = flight;
}

void PagedDevice::landed(OperationId get, bool done) {
  FlightPtr flight;
  {
    const std::lock_guard lock(announced_mutex_);
    const auto found = announced_.find(get);
    flight = std::move(found->second);
    announced_.erase(found);
  }
  flight->land(done ? config_.shape.layers : Flight::kLost);
  flight->answer();
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
    if (ended >= job.after_pass) return !engine_->stopping();
    passes_ended_.wait(ended, std::memory_order_acquire);
  }
}

// Returns the number of moved pages, in order. A load moves all pages or none.
Pages PagedDevice::move(const TransferJob& job) {
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

void PagedDevice::execute(TransferJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  std::string failure;
  try {
    const Pages moved = wait_for_passes(job) ? move(job) : 0;
    if (moved != job.plan.pages) completion.status = Status::cancelled;
    completion.bytes = moved * config_.shape.page_bytes();
  } catch (const std::exception& error) {
    completion.status = Status::failed;
    failure = error.what();
  }
  // Pushes the completion first: a pass that waits for this operation is answered after it.
  end(completion, {.lane = job.lane, .begin = begin, .flowing = begin, .bytes = completion.bytes}, failure);
  if (completion.status != Status::done) job.flight->land(Flight::kLost);
  job.flight->answer();
}

// ---- pages of storage tiers ----------------------------------------------------------------------------------

// The host pool has the bytes of a page in equal blocks: the layers of a plane in layer_first, else the planes.
bool PagedDevice::pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) {
  if (memory != Tier::host) return false;
  const KvShape& shape = config_.shape;
  const std::uint32_t layers = config_.host_layout == Layout::layer_first ? shape.layers : 1;
  const Bytes block = shape.page_bytes() / shape.planes / layers;
  for (Bytes at = first / block; at * block < first + bytes; ++at) {
    const KvIndex place{.page = slot,
                        .plane = static_cast<std::uint32_t>(at / layers),
                        .layer = static_cast<std::uint32_t>(at % layers)};
    std::byte* const data = engine_->host_pool() + byte_offset(config_.host_layout, shape, config_.host_pages, place);
    pieces.emplace_back(data, block);
  }
  return true;
}

void PagedDevice::begin_write(Tier memory, SlotId slot) {
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.begin_fetch(memory, slot);
}

void PagedDevice::written(Tier memory, SlotId slot, const PageKey& key) {
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.fetched(memory, slot, key);
}

// Converts one page between layer_first and the host pool's layout.
void PagedDevice::convert_layout(std::byte* layer_first, std::byte* page, bool to_device) const {
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

void PagedDevice::read_page(Tier memory, SlotId slot, std::span<std::byte> page) {
  if (Pieces list; pieces(memory, slot, 0, page.size(), list)) return gather(list, page);
  std::vector<std::byte> bytes(page.size());
  engine_->read_device_page(slot, bytes.data());
  convert_layout(bytes.data(), page.data(), false);
}

void PagedDevice::write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) {
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
    ledger_.begin_pass(job);
    if (config_.ranks != nullptr && config_.ranks->size() > 1) {
      run_joint_pass(job, completion);
    } else {
      run_pass(job, completion);
    }
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
  if (number == 0) engine_->begin_pass(job);
  const bool done = run_layers(job, number);
  const PageEngine::StepEnd end = engine_->end_step();
  stalled += end.stalled;
  for (const Ledger::HostCheck& check : ledger_.record_wrong_reads(job, end)) d2h_.submit(check);
  if (done) record_step(job, number);
  return done;
}

bool PagedDevice::run_layers(const PassJob& job, std::uint64_t number) {
  for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) {
    if (engine_->stopping()) return false;
    if (number == 0 && !job.gates.empty() && !engine_->await_layer(job, layer)) return false;
    engine_->layer(job, number, layer);
  }
  return true;
}

void PagedDevice::record_step(const PassJob& job, std::uint64_t number) {
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens context = job.context(sequence, number);
    reads_.bytes_read += context * config_.shape.token_bytes();
    reads_.pages_read += (context + config_.shape.page_tokens - 1) / config_.shape.page_tokens;
  }
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

void PagedDevice::flip_device(SlotId slot) {
  flipped_device_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = draw_place(config_.shape, config_.seed, slot, byte);
  engine_->flip_device(byte_offset(Layout::layer_first, config_.shape, config_.device_pages, place) + byte);
}

void PagedDevice::flip_host(const TransferJob& job) {
  flipped_host_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = draw_place(config_.shape, config_.seed, job.pages.front().source, byte);
  engine_->host_pool()[byte_offset(config_.host_layout, config_.shape, config_.host_pages, place) + byte] ^=
      std::byte{1};
}

}  // namespace

std::unique_ptr<Device> make_paged_device(const DeviceConfig& config, std::unique_ptr<PageEngine> engine) {
  return std::make_unique<PagedDevice>(config, std::move(engine));
}

}  // namespace kvtwin
