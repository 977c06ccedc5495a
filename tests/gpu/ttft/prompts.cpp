#include "tests/gpu/ttft/prompts.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <variant>

#include "impl/disk/segment_store.hpp"

namespace kvtwin::test {
namespace {

constexpr Layout kHostLayout = Layout::page_first_direct;
constexpr Pages kBatchPages = 32;                   // pages per storage operation
constexpr Bytes kMaxDirectBytes = Bytes{64} << 20;  // GPU memory for buffers between the disk and the device pool
constexpr PageKey kSpace{{{1, 2, 3, 4}}};

CudaDeviceConfig device_config(const PromptConfig& config, const KvShape& shape, Pages pages) {
  CudaDeviceConfig device;
  device.shape = shape;
  device.host_layout = kHostLayout;
  device.device_pages = device.host_pages = pages;
  device.staging_bytes = std::max<Bytes>(device.staging_bytes, shape.page_bytes());
  device.check_every = 64;
  device.warm_tokens = 1;
  device.blas_library = config.blas;
  device.cufile = config.cufile;
  device.direct_buffers = static_cast<std::uint32_t>(std::clamp<Bytes>(kMaxDirectBytes / shape.page_bytes(), 4, 16));
  if (config.arithmetic) device.transformer = transformer_sizes(config.model, 1);
  return device;
}

// Returns slots like those of a pool in use: runs of eight consecutive slots, and the runs in a different order.
std::vector<SlotId> slots_of(Pages pages, std::uint32_t step) {
  std::vector<SlotId> slots(pages);
  const Pages runs = (pages + 7) / 8;
  Pages at = 0;
  std::vector<bool> taken(runs);
  for (Pages i = 0, run = 0; i < runs; ++i) {
    while (taken[run]) run = (run + 1) % runs;
    taken[run] = true;
    for (Pages page = 8 * run; page < std::min(pages, 8 * run + 8); ++page) slots[at++] = static_cast<SlotId>(page);
    run = (run + step) % runs;
  }
  return slots;
}

}  // namespace

Prompts::Prompts(const PromptConfig& config)
    : config_(config),
      shape_(config.model.shape(1, config.page_tokens)),
      pages_(config.max_tokens / config.page_tokens) {
  for (std::uint64_t i = 0; i < pages_; ++i) keys_.push_back({{{i + 1, 0x5DEECE66Du * (i + 1), 7, 11}}});
  device_slots_ = slots_of(pages_, 3);
  host_slots_ = slots_of(pages_, 5);
  device_ = make_cuda_device(device_config(config_, shape_, pages_));
  if (!config_.disk.empty()) {
    SegmentStoreConfig store;
    store.folder = config_.disk;
    store.capacity_pages = pages_;
    store.form = device_->memory().form();
    store.direct = device_->memory().direct();
    auto segments = std::make_unique<SegmentStore>(store);
    segments_ = segments.get();
    disk_mode_ = segments->description();
    disk_ = std::make_unique<TierQueues>(Tier::disk, std::move(segments), device_->memory());
  }
  clock_.start();
  device_->start(queue_, clock_);
  if (disk_) disk_->start(queue_, clock_, [this](OperationId id, bool done) { device_->landed(id, done); });
  fill_tiers();
}

Prompts::~Prompts() = default;

void Prompts::fill_tiers() {
  wait_for(pass(0, pages_ * config_.page_tokens, {}));
  wait_for(transfer(Lane::d2h, 0, pages_, std::nullopt));
}

void Prompts::store(Pages pages) {
  if (pages <= stored_) return;
  wait_for(storage(StorageVerb::set, Tier::host, stored_, pages));
  stored_ = pages;
}

OperationId Prompts::submit(const Operation& operation) {
  const auto id = static_cast<OperationId>(++submitted_);
  if (const auto* stored = std::get_if<StorageOperation>(&operation)) {
    if (stored->work.verb == StorageVerb::get && stored->work.memory == Tier::device)
      device_->announce_get(id, *stored);
    disk_->submit(id, *stored);
  } else {
    device_->submit(id, operation);
  }
  return id;
}

void Prompts::wait_for(OperationId id) {
  std::vector<Finished> items;
  while (!done_.contains(id)) {
    queue_.wait(std::nullopt);
    items.clear();
    queue_.take(items);
    for (const Finished& finished : items) {
      if (finished.failure) throw std::runtime_error(*finished.failure);
      device_->retire(finished.completion.id);
      done_[finished.completion.id] = finished.completion;
    }
  }
  if (done_[id].status != Status::done) throw std::runtime_error("an operation wasn't done in full");
  done_.erase(id);
}

OperationId Prompts::pass(Tokens context, Tokens fresh, const std::vector<OperationId>& gates) {
  const Pages pages = (context + fresh) / config_.page_tokens;
  const SequenceWork sequence{.request = 0,
                              .context_tokens = context,
                              .new_tokens = fresh,
                              .slots = std::span(device_slots_).first(pages),
                              .keys = std::span(keys_).first(pages)};
  ForwardOperation forward;
  forward.shape.prefill_tokens = fresh;
  forward.shape.prefill_pairs = fresh * context + fresh * (fresh + 1) / 2;
  forward.shape.prefill_context_tokens = context;
  forward.shape.prefill_sequences = 1;
  forward.sequences = std::span(&sequence, 1);
  forward.gates = gates;
  return submit(forward);
}

OperationId Prompts::transfer(Lane lane, Pages begin, Pages end, std::optional<TransferPath> path) {
  const auto direction = lane == Lane::h2d ? Direction::host_to_device : Direction::device_to_host;
  const auto& from = lane == Lane::h2d ? host_slots_ : device_slots_;
  const auto& to = lane == Lane::h2d ? device_slots_ : host_slots_;
  std::vector<PageMove> moves;
  for (Pages i = begin; i < end; ++i) moves.push_back({keys_[i], from[i], to[i]});
  std::vector<PageRun> runs;
  join_runs(std::span(from).subspan(begin, end - begin), std::span(to).subspan(begin, end - begin), runs);
  PlannerLimits limits;
  limits.bulk_copies = true;
  TransferOperation operation;
  operation.lane = lane;
  operation.plan = plan_transfer(runs, direction, {shape_, kHostLayout, pages_, pages_}, IoBackend::automatic, limits);
  if (path) operation.plan.path = *path;
  operation.pages = moves;
  return submit(operation);
}

OperationId Prompts::storage(StorageVerb verb, Tier memory, Pages begin, Pages end) {
  const auto& slots = memory == Tier::host ? host_slots_ : device_slots_;
  std::vector<StoragePage> pages;
  for (Pages i = begin; i < end; ++i) pages.push_back({keys_[i], slots[i]});
  StorageOperation operation;
  operation.work = {
      .verb = verb, .tier = Tier::disk, .memory = memory, .pages = end - begin, .page_bytes = shape_.page_bytes()};
  operation.space = kSpace;
  operation.pages = pages;
  return submit(operation);
}

// Assigns every page a new slot. So if a pass finds the correct bytes, they have arrived after this call.
void Prompts::move_slots() { std::rotate(device_slots_.begin(), device_slots_.begin() + 1, device_slots_.end()); }

TimeNs Prompts::computed(Tokens tokens) {
  move_slots();
  const TimeNs begin = clock_.now();
  wait_for(pass(0, tokens, {}));
  return clock_.now() - begin;
}

TimeNs Prompts::on_device(Tokens tokens) {
  const TimeNs begin = clock_.now();
  wait_for(pass(tokens - config_.page_tokens, config_.page_tokens, {}));
  return clock_.now() - begin;
}

TimeNs Prompts::from_host(Tokens tokens, std::optional<TransferPath> path, bool overlap) {
  move_slots();
  const TimeNs begin = clock_.now();
  const OperationId load = transfer(Lane::h2d, 0, cached_pages(tokens), path);
  if (!overlap) wait_for(load);
  wait_for(pass(tokens - config_.page_tokens, config_.page_tokens,
                overlap ? std::vector{load} : std::vector<OperationId>{}));
  const TimeNs end = clock_.now();
  if (overlap) wait_for(load);
  return end - begin;
}

TimeNs Prompts::from_disk(Tokens tokens, bool direct, bool overlap) {
  const Pages pages = cached_pages(tokens);
  store(pages);
  move_slots();
  const TimeNs begin = clock_.now();
  std::vector<OperationId> gets, loads;
  for (Pages at = 0; at < pages; at += kBatchPages) {
    gets.push_back(
        storage(StorageVerb::get, direct ? Tier::device : Tier::host, at, std::min(pages, at + kBatchPages)));
  }
  if (!direct) {
    for (std::size_t i = 0; i < gets.size(); ++i) {
      wait_for(gets[i]);
      loads.push_back(transfer(Lane::h2d, i * kBatchPages, std::min(pages, (i + 1) * kBatchPages), std::nullopt));
    }
  }
  const std::vector<OperationId>& gates = direct ? gets : loads;
  if (!overlap) {
    for (const OperationId gate : gates) wait_for(gate);
  }
  wait_for(pass(tokens - config_.page_tokens, config_.page_tokens, overlap ? gates : std::vector<OperationId>{}));
  const TimeNs end = clock_.now();
  if (overlap) {
    for (const OperationId gate : gates) wait_for(gate);
  }
  return end - begin;
}

std::uint64_t Prompts::direct_pages() const {
  if (segments_ == nullptr) return 0;
  for (const auto& [name, count] : segments_->counters()) {
    if (name == "direct_pages") return count;
  }
  throw std::logic_error("a segment store doesn't count its direct pages");
}

std::uint64_t Prompts::finish() {
  if (disk_) disk_->finish();
  return device_->finish().wrong_reads;
}

}  // namespace kvtwin::test
