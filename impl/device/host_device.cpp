#include "impl/device/host_device.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "impl/device/arena.hpp"
#include "impl/device/dense_layer.hpp"
#include "impl/device/worker.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/transfer.hpp"
#include "policy/check.hpp"

namespace kvtwin {
namespace {

constexpr Bytes kStagingBytes = Bytes{1} << 20;
constexpr std::size_t kWrongKept = 16;
constexpr std::uint32_t kLost = ~std::uint32_t{0};

// An operation under way, shared by the event loop and the thread that does it.
struct Flight {
  std::atomic<bool> cancelled{false};
  // Loads: layers whose bytes have all landed; kLost = they never will.
  std::atomic<std::uint32_t> layers{0};

  void land(std::uint32_t count) {
    layers.store(count, std::memory_order_release);
    layers.notify_all();
  }
  // False: lost.
  bool wait_for(std::uint32_t layer) const {
    for (;;) {
      const std::uint32_t landed = layers.load(std::memory_order_acquire);
      if (landed > layer) return landed != kLost;
      layers.wait(landed, std::memory_order_acquire);
    }
  }
  bool landed(std::uint32_t layer) const { return layers.load(std::memory_order_acquire) > layer; }
};
using FlightPtr = std::shared_ptr<Flight>;

struct TransferJob {
  OperationId id = OperationId::none;
  FlightPtr flight;
  Lane lane = Lane::h2d;
  Plan plan;
  std::vector<PageRun> runs;
  std::vector<PageMove> pages;
};

struct PassJob {
  struct Sequence {
    RequestId request = kNoRequest;
    Tokens context = 0, fresh = 0;
    std::size_t first_page = 0;  // in slots and keys
  };
  OperationId id = OperationId::none;
  FlightPtr flight;
  ForwardShape shape;
  std::uint64_t steps = 1;
  std::vector<Sequence> sequences;
  std::vector<SlotId> slots;
  std::vector<PageKey> keys;
  std::vector<FlightPtr> gates;
  bool gated = false;
};

// Is the host copy of a page that was wrong on the device wrong too? Asked of the d2h thread, which has time.
struct InspectJob {
  std::size_t entry = 0;  // in wrong
  SlotId slot = kNoSlot;
  PageKey key;
};

using Job = std::variant<TransferJob, PassJob, InspectJob>;

// What lies in a slot. Written by whoever writes the slot.
struct SlotNote {
  PageKey key;
  std::uint32_t tokens = 0;      // whose bytes are there, in every layer
  SlotId loaded_from = kNoSlot;  // in the host pool; kNoSlot = computed, or fetched
  bool fetched = false;          // from a storage tier
};

std::uint64_t staging_pages(const KvShape& shape) { return std::max<Bytes>(1, kStagingBytes / shape.page_bytes()); }

class HostDevice final : public Device, private PageMemory {
 public:
  explicit HostDevice(const HostDeviceConfig& config);
  ~HostDevice() override;

  void start(CompletionQueue& queue, const RunClock& clock) override;
  void submit(OperationId id, const Operation& operation) override;
  void cancel(OperationId id) override;
  void retire(OperationId id) override { flights_.erase(id); }
  void expect(OperationId get) override;
  void landed(OperationId get, bool done) override;
  PageMemory& memory() override { return *this; }
  Verification finish() override;

 private:
  // The threads of storage tiers.
  PageForm form() const override { return {config_.shape, config_.host_layout}; }
  void read_page(Tier memory, SlotId slot, std::span<std::byte> page) override;
  void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) override;
  void copy_device_page(SlotId slot, std::byte* page, bool to_device);
  template <typename Copy>
  void for_host_pieces(SlotId slot, const Copy& copy) const;

  void acquire(const char* step) const {
    if (config_.before) config_.before(step);
  }
  void end(const Completion& completion, LaneSpan span);

  // Copy threads.
  void execute(TransferJob& job);
  bool unwanted(const TransferJob& job) const {
    return job.flight->cancelled.load(std::memory_order_relaxed) || stopping_.load(std::memory_order_relaxed);
  }
  bool load(const TransferJob& job);
  Pages back_up(const TransferJob& job);
  void copy(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin, std::uint32_t layer_end);
  void inspect(const InspectJob& job);
  void flip_host(const TransferJob& job);
  void idle(TimeNs time) const;

  // The compute thread.
  void execute(PassJob& job);
  bool step(const PassJob& job, std::uint64_t number, TimeNs& stalled);
  void serve_alone(const PassJob& job, Completion& completion);
  void serve_jointly(const PassJob& job, Completion& completion);
  void begin_writes(const PassJob& job);
  void read_context(const PassJob& job, const PassJob::Sequence& sequence, Tokens context, std::uint32_t layer);
  void write_tokens(const PassJob& job, const PassJob::Sequence& sequence, Tokens begin, Tokens end,
                    std::uint32_t layer);
  void note_writes(const PassJob& job, const PassJob::Sequence& sequence, Tokens begin, Tokens end);
  void flip_device(SlotId slot);
  std::byte* device_block(SlotId slot, std::uint32_t layer, std::uint32_t plane) const;

  void note_wrong(WrongPage wrong, std::uint64_t seed, std::uint64_t offset, std::byte got, SlotId loaded_from);
  // The first wrong byte of a host page; none if all are right. `page`: room for one page.
  std::optional<WrongPage> check_host_page(SlotId slot, const PageKey& key, std::byte* page) const;
  void audit(Verification& verification);

  const HostDeviceConfig config_;
  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;

  Arena device_, host_;
  std::array<Arena, 2> staging_;  // by direction
  Arena inspected_;               // one page
  std::optional<DenseLayer> dense_;
  std::vector<SlotNote> device_notes_, host_notes_;
  bool flipped_device_ = false, flipped_host_ = false;  // compute thread's, h2d thread's
  // Several threads write host slots, each its own; who inspects one that may have another owner by now holds them off.
  std::shared_mutex host_writes_;

  std::atomic<bool> stopping_{false};                   // nobody waits for answers any more
  std::unordered_map<OperationId, FlightPtr> flights_;  // the event loop's
  std::mutex expected_mutex_;
  std::unordered_map<OperationId, FlightPtr> expected_;  // gets into L1 that haven't landed
  Verification seen_;                                    // the compute thread's, but for `wrong` and wrong_reads
  std::mutex wrong_mutex_;
  std::vector<WrongPage> wrong_;
  std::uint64_t wrong_reads_ = 0;

  // Last, so that their threads end first, and compute before those that it asks and waits for.
  Worker<Job> d2h_, h2d_, compute_;
};

// ---- start and stop ------------------------------------------------------------------------------------------

HostDevice::HostDevice(const HostDeviceConfig& config) : config_(config) {
  KV_CHECK(config.shape.page_bytes() > 0, "a page has bytes");
  const Bytes page = config.shape.page_bytes();
  acquire("device pool");
  device_ = Arena(config.device_pages * page);
  acquire("host pool");
  host_ = Arena(config.host_pages * page);
  acquire("staging buffers");
  for (Arena& staging : staging_) staging = Arena(config.host_pages == 0 ? 0 : staging_pages(config.shape) * page);
  inspected_ = Arena(page);
  acquire("weights");
  if (config.hidden != 0) dense_.emplace(config.hidden, config.width, config.pair_work, config.seed);
  device_notes_.resize(config.device_pages);
  host_notes_.resize(config.host_pages);
}

// Also in the middle of a run: what hasn't begun never will, and who waits for it is told.
HostDevice::~HostDevice() {
  stopping_.store(true, std::memory_order_relaxed);
  compute_.drop();
  d2h_.drop();
  for (Job& job : h2d_.drop()) {
    if (auto* transfer = std::get_if<TransferJob>(&job)) transfer->flight->land(kLost);
  }
  for (const auto& [get, flight] : expected_) flight->land(kLost);
}

void HostDevice::start(CompletionQueue& queue, const RunClock& clock) {
  queue_ = &queue;
  clock_ = &clock;
  acquire("compute thread");
  compute_.start("compute thread", [this](Job& job) { execute(std::get<PassJob>(job)); });
  acquire("host-to-device thread");
  h2d_.start("host-to-device thread", [this](Job& job) { execute(std::get<TransferJob>(job)); });
  acquire("device-to-host thread");
  d2h_.start("device-to-host thread", [this](Job& job) {
    if (const auto* question = std::get_if<InspectJob>(&job)) return inspect(*question);
    execute(std::get<TransferJob>(job));
  });
}

Verification HostDevice::finish() {
  compute_.finish();
  h2d_.finish();
  d2h_.finish();  // after compute, which may have asked it
  Verification verification = seen_;
  audit(verification);
  verification.wrong_reads = wrong_reads_;
  verification.flipped = flipped_device_ || flipped_host_;
  verification.wrong = std::move(wrong_);
  return verification;
}

// ---- the event loop's calls ----------------------------------------------------------------------------------

void HostDevice::submit(OperationId id, const Operation& operation) {
  auto flight = std::make_shared<Flight>();
  flights_[id] = flight;
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
    KV_CHECK(transfer->lane == Lane::h2d || transfer->lane == Lane::d2h, "the host device has no such lane");
    KV_CHECK(!transfer->has_side(), "the host device has no pool of a draft model");
    TransferJob job;
    job.id = id;
    job.flight = std::move(flight);
    job.lane = transfer->lane;
    job.plan = transfer->plan;
    job.runs.assign(transfer->plan.runs.begin(), transfer->plan.runs.end());
    job.plan.runs = {};  // borrowed for the call only
    job.pages.assign(transfer->pages.begin(), transfer->pages.end());
    (transfer->lane == Lane::h2d ? h2d_ : d2h_).submit(std::move(job));
    return;
  }
  KV_CHECK(std::holds_alternative<ForwardOperation>(operation), "storage operations are the storage tiers'");
  const auto& pass = std::get<ForwardOperation>(operation);
  KV_CHECK(pass.shape.draft_tokens == 0, "the host device decodes without a draft model");
  PassJob job;
  job.id = id;
  job.flight = std::move(flight);
  job.shape = pass.shape;
  job.steps = pass.steps;
  for (const SequenceWork& work : pass.sequences) {
    job.sequences.push_back({work.request, work.context_tokens, work.new_tokens, job.slots.size()});
    job.slots.insert(job.slots.end(), work.slots.begin(), work.slots.end());
    job.keys.insert(job.keys.end(), work.keys.begin(), work.keys.end());
  }
  job.gated = !pass.gates.empty();
  for (const OperationId gate : pass.gates) {
    const auto found = flights_.find(gate);
    if (found != flights_.end()) job.gates.push_back(found->second);  // else it has landed
  }
  compute_.submit(std::move(job));
}

void HostDevice::cancel(OperationId id) {
  const auto found = flights_.find(id);
  if (found != flights_.end()) found->second->cancelled.store(true, std::memory_order_relaxed);
}

void HostDevice::expect(OperationId get) {
  const auto flight = std::make_shared<Flight>();
  flights_[get] = flight;
  const std::lock_guard lock(expected_mutex_);
  expected_[get] = flight;
}

void HostDevice::landed(OperationId get, bool done) {
  FlightPtr flight;
  {
    const std::lock_guard lock(expected_mutex_);
    const auto found = expected_.find(get);
    flight = std::move(found->second);
    expected_.erase(found);
  }
  flight->land(done ? config_.shape.layers : kLost);
}

void HostDevice::end(const Completion& completion, LaneSpan span) {
  span.id = completion.id;
  span.end = clock_->now();
  span.status = completion.status;
  queue_->push({completion, span});
}

// ---- copies --------------------------------------------------------------------------------------------------

void HostDevice::copy(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin,
                      std::uint32_t layer_end) {
  TransferParams params;
  params.shape = config_.shape;
  params.device = device_.data();
  params.device_pages = config_.device_pages;
  params.host = host_.data();
  params.host_pages = config_.host_pages;
  params.host_layout = job.plan.host_layout;
  params.to_device = job.lane == Lane::h2d;
  params.runs = runs.data();
  params.run_count = runs.size();
  params.layer_begin = layer_begin;
  params.layer_end = layer_end;
  const TimeNs begin = clock_->now();
  switch (job.plan.path) {
    case TransferPath::copy_engine: copy_pieces(params); break;
    case TransferPath::boxes: copy_boxes(params); break;
    case TransferPath::kernel:
    case TransferPath::ring: copy_rows(params); break;
    case TransferPath::staged:
      copy_staged(params, staging_[params.to_device ? 0 : 1].data(), staging_pages(config_.shape));
      break;
  }
  if (config_.slow_factor > 1) {
    idle(static_cast<TimeNs>(static_cast<double>(clock_->now() - begin) * (config_.slow_factor - 1)));
  }
}

// A slow rank's copies; in pieces, so that the device can stop.
void HostDevice::idle(TimeNs time) const {
  constexpr TimeNs kPiece = 10'000'000;
  const TimeNs end = clock_->now() + time;
  for (TimeNs left = time; left > 0 && !stopping_.load(std::memory_order_relaxed); left = end - clock_->now()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left, kPiece)));
  }
}

void HostDevice::execute(TransferJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  const bool to_device = job.lane == Lane::h2d;
  Pages moved = 0;
  if (to_device) {
    moved = load(job) ? job.plan.pages : 0;
  } else {
    moved = back_up(job);
  }
  if (moved != job.plan.pages) completion.status = Status::cancelled;
  completion.bytes = moved * config_.shape.page_bytes();
  // First answered, then landed: a pass that waits for its last bytes is answered after it.
  end(completion, {.lane = job.lane, .begin = begin, .flowing = begin, .bytes = completion.bytes});
  if (to_device) job.flight->land(completion.status == Status::done ? config_.shape.layers : kLost);
}

// False: cancelled. All but the last layer are told as they land.
bool HostDevice::load(const TransferJob& job) {
  for (const PageMove& move : job.pages) {
    device_notes_[move.target] = SlotNote{.key = move.key, .tokens = 0, .loaded_from = move.source};
  }
  if (config_.flip == HostDeviceConfig::Flip::host && !flipped_host_) flip_host(job);
  const std::uint32_t layers = config_.shape.layers;
  if (job.plan.path == TransferPath::staged) {
    if (unwanted(job)) return false;
    copy(job, job.runs, 0, layers);
  } else {
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      if (unwanted(job)) return false;
      copy(job, job.runs, layer, layer + 1);
      if (layer + 1 < layers) job.flight->land(layer + 1);
    }
  }
  for (const PageMove& move : job.pages) device_notes_[move.target].tokens = config_.shape.page_tokens;
  return true;
}

// Whole pages moved, in order.
Pages HostDevice::back_up(const TransferJob& job) {
  Pages moved = 0;
  const std::shared_lock writing(host_writes_);
  for (const PageMove& move : job.pages) host_notes_[move.target] = SlotNote{};
  for (const PageRun& run : job.runs) {
    if (unwanted(job)) break;
    copy(job, std::span(&run, 1), 0, config_.shape.layers);
    moved += run.pages;
  }
  for (Pages i = 0; i < moved; ++i) {
    host_notes_[job.pages[i].target] = SlotNote{.key = job.pages[i].key, .tokens = config_.shape.page_tokens};
  }
  return moved;
}

// ---- pages of storage tiers ----------------------------------------------------------------------------------

// Calls `copy` with each piece of a host page that lies together in the pool: where it lies there and in a pool of
// one page, and its bytes.
template <typename Copy>
void HostDevice::for_host_pieces(SlotId slot, const Copy& copy) const {
  const KvShape& shape = config_.shape;
  // Only layer_first keeps a plane's layers apart.
  const std::uint32_t layers = config_.host_layout == Layout::layer_first ? shape.layers : 1;
  const Bytes bytes = shape.page_bytes() / shape.planes / layers;
  for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const KvIndex pooled{.page = slot, .plane = plane, .layer = layer};
      const KvIndex alone{.page = 0, .plane = plane, .layer = layer};
      copy(host_.data() + byte_offset(config_.host_layout, shape, config_.host_pages, pooled),
           byte_offset(config_.host_layout, shape, 1, alone), bytes);
    }
  }
}

void HostDevice::copy_device_page(SlotId slot, std::byte* page, bool to_device) {
  const PageRun run = to_device ? PageRun{0, slot, 1} : PageRun{slot, 0, 1};
  TransferParams params;
  params.shape = config_.shape;
  params.device = device_.data();
  params.device_pages = config_.device_pages;
  params.host = page;
  params.host_pages = 1;
  params.host_layout = config_.host_layout;
  params.to_device = to_device;
  params.runs = &run;
  params.run_count = 1;
  params.layer_end = config_.shape.layers;
  copy_pieces(params);
}

void HostDevice::read_page(Tier memory, SlotId slot, std::span<std::byte> page) {
  if (memory == Tier::device) return copy_device_page(slot, page.data(), false);
  for_host_pieces(slot, [&](const std::byte* pooled, std::uint64_t alone, Bytes bytes) {
    std::memcpy(page.data() + alone, pooled, bytes);
  });
}

void HostDevice::write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) {
  const SlotNote note{.key = key, .tokens = config_.shape.page_tokens, .fetched = true};
  if (memory == Tier::device) {
    // Only read when it goes to the device.
    copy_device_page(slot, const_cast<std::byte*>(page.data()), true);
    device_notes_[slot] = note;
    return;
  }
  const std::shared_lock writing(host_writes_);
  for_host_pieces(slot, [&](std::byte* pooled, std::uint64_t alone, Bytes bytes) {
    std::memcpy(pooled, page.data() + alone, bytes);
  });
  host_notes_[slot] = note;
}

// ---- passes --------------------------------------------------------------------------------------------------

std::byte* HostDevice::device_block(SlotId slot, std::uint32_t layer, std::uint32_t plane) const {
  return device_.data() + byte_offset(Layout::layer_first, config_.shape, config_.device_pages,
                                      {.page = slot, .plane = plane, .layer = layer});
}

void HostDevice::execute(PassJob& job) {
  const TimeNs begin = clock_->now();
  Completion completion{.id = job.id};
  begin_writes(job);
  if (config_.ranks != nullptr && config_.ranks->size() > 1) {
    serve_jointly(job, completion);
  } else {
    serve_alone(job, completion);
  }
  // Whatever became of the pass: nobody hears of it before its gates.
  for (const FlightPtr& gate : job.gates) gate->wait_for(config_.shape.layers - 1);
  end(completion,
      {.lane = Lane::compute, .begin = begin, .stalled_ns = completion.stalled_ns, .steps = completion.steps});
}

void HostDevice::serve_alone(const PassJob& job, Completion& completion) {
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

// What must be equal on all ranks.
std::int64_t fingerprint(const PassJob& job) {
  std::uint64_t mixed = pattern_mix(job.steps ^ (job.shape.prefill_tokens << 20) ^ (job.slots.size() << 40));
  for (const PassJob::Sequence& sequence : job.sequences) {
    mixed = pattern_mix(mixed ^ sequence.request ^ (sequence.context << 20) ^ (sequence.fresh << 40));
  }
  return static_cast<std::int64_t>(mixed >> 2);
}

// Also the last step's end is agreed on: on other ranks a load may have been lost.
void HostDevice::serve_jointly(const PassJob& job, Completion& completion) {
  const std::int64_t print = fingerprint(job);
  while (completion.steps < job.steps) {
    const bool done = step(job, completion.steps, completion.stalled_ns);
    const bool cancelled = job.flight->cancelled.load(std::memory_order_relaxed);
    std::array<std::int64_t, 4> agreed{done ? 1 : 0, cancelled ? 0 : 1, print, -print};
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

// False: a load that it waited for is lost, or the device stops.
bool HostDevice::step(const PassJob& job, std::uint64_t number, TimeNs& stalled) {
  const bool prefill = job.shape.prefill_tokens > 0;
  const Tokens tokens = job.shape.prefill_tokens + job.shape.decode_sequences;
  for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) {
    if (stopping_.load(std::memory_order_relaxed)) return false;
    if (number == 0) {
      for (const FlightPtr& gate : job.gates) {
        const TimeNs before = gate->landed(layer) ? -1 : clock_->now();
        const bool landed = gate->wait_for(layer);
        if (before >= 0) stalled += clock_->now() - before;
        if (!landed) return false;
      }
    }
    if (dense_) dense_->run(tokens, number == 0 ? job.shape.prefill_pairs : 0);
    for (const PassJob::Sequence& sequence : job.sequences) {
      const Tokens context = sequence.context + (prefill ? 0 : number);
      read_context(job, sequence, context, layer);
      write_tokens(job, sequence, context, context + (prefill ? sequence.fresh : 1), layer);
    }
  }
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens context = sequence.context + (prefill ? 0 : number);
    note_writes(job, sequence, context, context + (prefill ? sequence.fresh : 1));
  }
  return true;
}

// What the pass will overwrite holds nothing any more, whatever becomes of the pass.
void HostDevice::begin_writes(const PassJob& job) {
  const Tokens page_tokens = config_.shape.page_tokens;
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens end = sequence.context + sequence.fresh;
    for (Tokens at = sequence.context / page_tokens; at * page_tokens < end; ++at) {
      SlotNote& note = device_notes_[job.slots[sequence.first_page + at]];
      if (at * page_tokens >= sequence.context) note = SlotNote{};
      note.tokens = std::min(
          note.tokens, static_cast<std::uint32_t>(sequence.context - std::min(sequence.context, at * page_tokens)));
    }
  }
}

void HostDevice::note_writes(const PassJob& job, const PassJob::Sequence& sequence, Tokens begin, Tokens end) {
  const Tokens page_tokens = config_.shape.page_tokens;
  for (Tokens at = begin / page_tokens; at * page_tokens < end; ++at) {
    const SlotId slot = job.slots[sequence.first_page + at];
    SlotNote& note = device_notes_[slot];
    note.key = job.keys[sequence.first_page + at];
    note.tokens = static_cast<std::uint32_t>(std::min(page_tokens, end - at * page_tokens));
    const bool whole = note.tokens == page_tokens;
    if (whole && config_.flip == HostDeviceConfig::Flip::device && !flipped_device_) flip_device(slot);
  }
}

void HostDevice::read_context(const PassJob& job, const PassJob::Sequence& sequence, Tokens context,
                              std::uint32_t layer) {
  const KvShape& shape = config_.shape;
  const std::uint64_t row = shape.row_bytes();
  for (Tokens at = 0; at * shape.page_tokens < context; ++at) {
    const SlotId slot = job.slots[sequence.first_page + at];
    const PageKey& key = job.keys[sequence.first_page + at];
    const std::uint64_t bytes = std::min<Tokens>(shape.page_tokens, context - at * shape.page_tokens) * row;
    for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
      const std::uint64_t seed = pattern_seed(key.words.data(), layer, plane);
      const std::byte* block = device_block(slot, layer, plane);
      const std::uint64_t wrong = check_pattern(block, seed, 0, bytes);
      if (wrong != bytes) {
        WrongPage entry;
        entry.key = key;
        entry.slot = slot;
        entry.layer = layer;
        entry.plane = plane;
        entry.found = "read by a pass of request " + std::to_string(sequence.request);
        if (device_notes_[slot].fetched) entry.found += ", fetched from storage";
        note_wrong(std::move(entry), seed, wrong, block[wrong], device_notes_[slot].loaded_from);
      }
    }
    seen_.bytes_read += bytes * shape.planes;
    if (layer == 0) ++seen_.pages_read;
  }
}

void HostDevice::write_tokens(const PassJob& job, const PassJob::Sequence& sequence, Tokens begin, Tokens end,
                              std::uint32_t layer) {
  const KvShape& shape = config_.shape;
  const std::uint64_t row = shape.row_bytes();
  for (Tokens at = begin / shape.page_tokens; at * shape.page_tokens < end; ++at) {
    const Tokens first = at * shape.page_tokens;
    const PageKey& key = job.keys[sequence.first_page + at];
    for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
      fill_pattern(device_block(job.slots[sequence.first_page + at], layer, plane),
                   pattern_seed(key.words.data(), layer, plane), (std::max(begin, first) - first) * row,
                   (std::min(end, first + shape.page_tokens) - first) * row);
    }
  }
}

// ---- what is wrong -------------------------------------------------------------------------------------------

void HostDevice::note_wrong(WrongPage wrong, std::uint64_t seed, std::uint64_t offset, std::byte got,
                            SlotId loaded_from) {
  const std::uint64_t row = config_.shape.row_bytes();
  wrong.token = static_cast<std::uint32_t>(offset / row);
  wrong.byte = static_cast<std::uint32_t>(offset % row);
  wrong.expected = pattern_byte(seed, offset);
  wrong.got = static_cast<std::uint8_t>(got);
  std::size_t entry = 0;
  const PageKey key = wrong.key;
  {
    const std::lock_guard lock(wrong_mutex_);
    ++wrong_reads_;
    for (const WrongPage& known : wrong_) {
      if (known.key == wrong.key && known.layer == wrong.layer && known.plane == wrong.plane) return;
    }
    if (wrong_.size() == kWrongKept) return;
    entry = wrong_.size();
    wrong_.push_back(std::move(wrong));
  }
  if (loaded_from != kNoSlot) d2h_.submit(InspectJob{entry, loaded_from, key});
}

std::optional<WrongPage> HostDevice::check_host_page(SlotId slot, const PageKey& key, std::byte* page) const {
  const KvShape& shape = config_.shape;
  const PageRun run{slot, 0, 1};
  TransferParams gather;  // into a device pool of one page
  gather.shape = shape;
  gather.device = page;
  gather.device_pages = 1;
  gather.host = host_.data();
  gather.host_pages = config_.host_pages;
  gather.host_layout = config_.host_layout;
  gather.runs = &run;
  gather.run_count = 1;
  gather.layer_end = shape.layers;
  copy_pieces(gather);
  const std::uint64_t bytes = shape.row_bytes() * shape.page_tokens;
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
      const std::byte* block = page + byte_offset(Layout::layer_first, shape, 1, {.plane = plane, .layer = layer});
      const std::uint64_t seed = pattern_seed(key.words.data(), layer, plane);
      const std::uint64_t wrong = check_pattern(block, seed, 0, bytes);
      if (wrong == bytes) continue;
      WrongPage entry;
      entry.tier = Tier::host;
      entry.key = key;
      entry.slot = slot;
      entry.layer = layer;
      entry.plane = plane;
      entry.token = static_cast<std::uint32_t>(wrong / shape.row_bytes());
      entry.byte = static_cast<std::uint32_t>(wrong % shape.row_bytes());
      entry.expected = pattern_byte(seed, wrong);
      entry.got = static_cast<std::uint8_t>(block[wrong]);
      return entry;
    }
  }
  return std::nullopt;
}

// In the device-to-host thread.
void HostDevice::inspect(const InspectJob& job) {
  const std::unique_lock reading(host_writes_);
  const SlotNote& note = host_notes_[job.slot];
  const bool still_there = note.tokens != 0 && note.key == job.key;
  const bool wrong_too = still_there && check_host_page(job.slot, job.key, inspected_.data()).has_value();
  const std::lock_guard lock(wrong_mutex_);
  WrongPage& entry = wrong_[job.entry];
  const std::string device_slot = std::to_string(entry.slot);
  if (wrong_too) {
    entry.tier = Tier::host;
    entry.slot = job.slot;
    entry.found += " in device slot " + device_slot + ", where it had been loaded; it went wrong " +
                   (note.fetched ? "on the host, or in storage" : "on the host, or before it was backed up");
  } else {
    entry.found += std::string(", loaded from host slot ") + std::to_string(job.slot) +
                   (still_there ? ", whose bytes are right" : ", which holds another page now");
  }
}

void HostDevice::audit(Verification& verification) {
  const KvShape& shape = config_.shape;
  for (SlotId slot = 0; slot < device_notes_.size(); ++slot) {
    const SlotNote& note = device_notes_[slot];
    if (note.tokens == 0) continue;
    const std::uint64_t bytes = note.tokens * shape.row_bytes();
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
        const std::byte* block = device_block(slot, layer, plane);
        const std::uint64_t seed = pattern_seed(note.key.words.data(), layer, plane);
        const std::uint64_t wrong = check_pattern(block, seed, 0, bytes);
        if (wrong == bytes) continue;
        WrongPage entry;
        entry.key = note.key;
        entry.slot = slot;
        entry.layer = layer;
        entry.plane = plane;
        entry.found = "found when the run was over";
        note_wrong(std::move(entry), seed, wrong, block[wrong], kNoSlot);
      }
    }
    ++verification.pages_audited;
    verification.bytes_audited += note.tokens * shape.token_bytes();
  }
  for (SlotId slot = 0; slot < host_notes_.size(); ++slot) {
    const SlotNote& note = host_notes_[slot];
    if (note.tokens == 0) continue;
    if (std::optional<WrongPage> wrong = check_host_page(slot, note.key, inspected_.data())) {
      ++wrong_reads_;
      wrong->found = "found when the run was over";
      const auto known = std::ranges::find_if(wrong_, [&](const WrongPage& w) { return w.key == note.key; });
      if (known == wrong_.end() && wrong_.size() < kWrongKept) wrong_.push_back(*std::move(wrong));
    }
    ++verification.pages_audited;
    verification.bytes_audited += shape.page_bytes();
  }
}

// ---- test hooks ----------------------------------------------------------------------------------------------

namespace {

// Some byte of a page, drawn from the seed.
KvIndex drawn_place(const KvShape& shape, std::uint64_t seed, SlotId slot, std::uint32_t& byte) {
  const std::uint64_t draw = pattern_mix(seed ^ 0x666C6970);
  byte = static_cast<std::uint32_t>((draw >> 48) % shape.head_bytes);
  return {.page = slot,
          .plane = static_cast<std::uint32_t>(draw % shape.planes),
          .layer = static_cast<std::uint32_t>((draw >> 8) % shape.layers),
          .token = static_cast<std::uint32_t>((draw >> 20) % shape.page_tokens),
          .head = static_cast<std::uint32_t>((draw >> 40) % shape.heads)};
}

}  // namespace

void HostDevice::flip_device(SlotId slot) {
  flipped_device_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = drawn_place(config_.shape, config_.seed, slot, byte);
  device_.data()[byte_offset(Layout::layer_first, config_.shape, config_.device_pages, place) + byte] ^= std::byte{1};
}

void HostDevice::flip_host(const TransferJob& job) {
  flipped_host_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = drawn_place(config_.shape, config_.seed, job.pages.front().source, byte);
  host_.data()[byte_offset(config_.host_layout, config_.shape, config_.host_pages, place) + byte] ^= std::byte{1};
}

}  // namespace

Bytes host_device_bytes(const HostDeviceConfig& config) {
  const Bytes page = config.shape.page_bytes();
  const Bytes staging = config.host_pages == 0 ? 0 : 2 * staging_pages(config.shape) * page;
  const Bytes dense = config.hidden == 0 ? 0 : DenseLayer::bytes(config.hidden, config.width, config.pair_work);
  return (config.device_pages + config.host_pages + 1) * page + staging + dense +
         (config.device_pages + config.host_pages) * sizeof(SlotNote);
}

std::unique_ptr<Device> make_host_device(const HostDeviceConfig& config) {
  return std::make_unique<HostDevice>(config);
}

}  // namespace kvtwin
