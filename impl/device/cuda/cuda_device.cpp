#include "impl/device/cuda/cuda_device.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "impl/device/cuda/copies.hpp"
#include "impl/device/cuda/direct_pages.hpp"
#include "impl/device/cuda/handles.hpp"
#include "impl/device/cuda/profiler_range.hpp"
#include "impl/device/cuda/step_graphs.hpp"
#include "impl/device/cuda/transformer.hpp"
#include "impl/device/ledger.hpp"
#include "impl/device/paged_device.hpp"
#include "impl/runtime/arena.hpp"
#include "kernels/context_kernels.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr Bytes kBackupBytes = Bytes{8} << 20;  // between portions of this size, a backup checks for a cancel
constexpr std::uint32_t kMaxPassCtas = 1024;    // several per SM on any GPU
constexpr int kMinComputeCapability = 8;        // major compute capability; the kernels are not compiled for older GPUs

// The layer groups of a load, with the event that occurs when a group has landed.
struct GroupMarks final : Flight::Marks {
  std::vector<std::uint32_t> ends;  // first layer after each group
  std::vector<CudaEvent> landed;
  StagedLoads::LoadPtr staged;  // not null: the groups land in the staging area, and passes lay them out
};

// The page tables of a pass, in host and GPU memory. They only grow.
struct PassTables {
  PinnedMemory pages;   // [capacity] of ContextPage
  GpuMemory gpu_pages;  // the same
  GpuMemory folds;      // [capacity][planes][kContextFolds] of std::uint32_t
  std::uint64_t capacity = 0;
};

CudaCopies::Sizes sizes_of(const CudaDeviceConfig& config) {
  return {config.staging_bytes,
          config.staging_area,
          {std::max(1U, config.copy_ctas)},
          {std::max(1U, config.ring_ctas), config.ring_stages}};
}

CudaPools pools_of(const CudaDeviceConfig& config, std::byte* device, const HostPool& host) {
  return {config.shape, config.host_layout, config.device_pages, config.host_pages,
          device,       host.data(),        host.gpu_data()};
}

class CudaEngine final : public PageEngine {
 public:
  explicit CudaEngine(const CudaDeviceConfig& config);
  ~CudaEngine() override;

  std::byte* host_pool() const override { return host_.data(); }
  bool load(const TransferJob& job) override;
  Pages back_up(const TransferJob& job) override;
  void begin_pass(const PassJob& job, std::span<const std::uint32_t> reads) override;
  bool await_layer(const PassJob& job, std::uint32_t layer) override;
  void layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) override;
  bool whole_step(const PassJob& job, std::uint64_t step) override;
  void read_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) override;
  StepEnd end_step() override;
  void read_device_page(SlotId slot, std::byte* page) override { copy_device_page(slot, page, nullptr); }
  void write_device_page(SlotId slot, const std::byte* page) override { copy_device_page(slot, nullptr, page); }
  void copy_device_page(SlotId from, SlotId to) override;
  DirectPages* direct() override { return direct_ ? &*direct_ : nullptr; }
  void flip_device(std::uint64_t offset) override;
  void stop() override;
  std::vector<std::string> notes() const override;

 private:
  struct Stall {
    CudaEvent began{true}, ended{true};
  };

  CudaPools pools() const { return pools_of(config_, device_.data(), host_); }
  ContextPages context(std::uint32_t layer) const;
  // The same for each step, because a graph serves for several.
  LaunchLimits pass_ctas() const {
    const Pages blocks = std::max<Pages>(1, config_.device_pages * config_.shape.planes);
    return {static_cast<std::uint32_t>(std::min<Pages>(kMaxPassCtas, blocks))};
  }
  void begin_step(const char* name, std::uint64_t step);
  void queue_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer);
  void queue_reads(std::uint32_t layer);
  void warm_up();
  void warm_up_passes();
  void warm_up_copies();
  void make_tables(std::uint64_t pages);
  void reset_faults();
  void copy_device_page(SlotId slot, std::byte* to, const std::byte* from);
  void until_idle(const CudaStream& stream, const CudaEvent& event) const {
    stream.record(event);
    stream.until(event);
  }

  const CudaDeviceConfig config_;
  std::string numa_note_;

  GpuMemory device_;
  HostPool host_;
  // Streams are declared after the memory that they use, so they are destroyed first.
  GpuMemory gpu_faults_, gpu_step_;  // ContextFaults; ContextStep
  PinnedMemory faults_;              // ContextFaults, and one byte for flip_device
  PassTables tables_;
  std::vector<PassTables> outgrown_;
  PinnedMemory page_;  // for threads of storage tiers
  std::optional<Transformer> transformer_;
  CudaStream compute_, pages_;
  std::mutex pages_mutex_;  // for threads of storage tiers
  CudaEvent computed_, page_copied_;
  std::optional<CudaCopies> loads_, backups_;
  std::optional<CudaDirectPages> direct_;

  // For the compute thread.
  StepGraphs graphs_;
  std::uint64_t table_pages_ = 0;
  Bytes checked_ = 0;  // ContextFaults::checked of the steps so far
  std::optional<ProfilerRange> step_range_;

  std::vector<Stall> stalls_;
  std::size_t stalls_used_ = 0;
};

// Selects the GPU before the members are constructed.
const CudaDeviceConfig& on_its_gpu(const CudaDeviceConfig& config) {
  use_gpu(config.ordinal);
  return config;
}

CudaDirectConfig direct_config(const CudaDeviceConfig& config, std::byte* device) {
  return {config.shape,          config.host_layout,
          config.device_pages,   device,
          config.direct_buffers, std::min(8U, config.direct_buffers),
          config.ordinal,        LaunchLimits{std::max(1U, config.copy_ctas)}};
}

// ---- start and stop ------------------------------------------------------------------------------------------

CudaEngine::CudaEngine(const CudaDeviceConfig& config)
    : config_(on_its_gpu(config)), compute_("compute stream", false), pages_("storage stream", false) {
  KV_CHECK(config.shape.page_bytes() > 0, "a page has bytes");
  const Bytes page = config.shape.page_bytes();
  config.acquire("device pool");
  device_ = GpuMemory(config.device_pages * page, "the device pool");
  compute_.must(cudaMemsetAsync(device_.data(), Arena::kPoison, device_.bytes(), compute_.get()), "cudaMemsetAsync");
  until_idle(compute_, computed_);
  config.acquire("host pool");
  host_ = HostPool(config.host_pages * page, config.ordinal, numa_note_);
  config.acquire("staging buffers");
  loads_.emplace(pools(), true, sizes_of(config));
  backups_.emplace(pools(), false, sizes_of(config));
  if (config.cufile) {
    config.acquire("direct storage");
    direct_.emplace(direct_config(config, device_.data()), config.cufile);
  }
  gpu_faults_ = GpuMemory(sizeof(ContextFaults), "what passes find");
  gpu_step_ = GpuMemory(sizeof(ContextStep), "the current step");
  faults_ = PinnedMemory(sizeof(ContextFaults) + 1, "what passes find");
  page_ = PinnedMemory(page, "a page of storage tiers");
  make_tables(std::max<Pages>(1, config.device_pages));
  config.acquire("weights");
  if (!config.transformer.products.empty()) {
    transformer_.emplace(config.transformer, config.seed, config.blas_library, config.ordinal, compute_);
  }
  reset_faults();
  until_idle(compute_, computed_);
  if (config.warm_tokens > 0) warm_up();
}

// Makes all streams idle before any memory is freed, because freeing memory waits for all streams.
CudaEngine::~CudaEngine() {
  loads_->drain();
  backups_->drain();
  compute_.drain();
  pages_.drain();
}

void CudaEngine::stop() {
  PageEngine::stop();
  if (StagedLoads* const staged = loads_->staged_loads()) staged->stop();
}

std::vector<std::string> CudaEngine::notes() const {
  std::vector<std::string> notes;
  if (!numa_note_.empty()) notes.push_back(numa_note_);
  if (const std::uint64_t refused = loads_->rings_refused() + backups_->rings_refused(); refused != 0) {
    notes.push_back(std::to_string(refused) +
                    " transfers that were planned for bulk copies went by the register kernel: this GPU has none, or "
                    "pages aren't multiples of 16 bytes.");
  }
  if (!graphs_.refusal().empty()) {
    notes.push_back("Decode steps ran without CUDA graphs: " + graphs_.refusal() + ".");
  }
  return notes;
}

// ---- copies --------------------------------------------------------------------------------------------------

bool CudaEngine::load(const TransferJob& job) {
  use_gpu(config_.ordinal);
  const ProfilerRange range("load", static_cast<std::uint64_t>(job.id));
  loads_->begin(job);
  const auto marks = std::make_shared<GroupMarks>();
  const std::uint32_t groups = job.plan.layer_groups;
  for (std::uint32_t group = 0; group < groups; ++group) {
    marks->ends.push_back(layer_group_end(config_.shape.layers, groups, group));
  }
  marks->landed.resize(marks->ends.size());
  marks->staged = loads_->staged_load();
  job.flight->marks = marks;
  std::uint32_t begin = 0;
  for (std::size_t group = 0; group < marks->ends.size(); ++group) {
    config_.begin_portion(job.id, begin);
    if (should_stop(job)) {
      if (marks->staged) loads_->staged_loads()->close(*marks->staged);
      loads_->wait();
      return false;
    }
    const Steady::time_point began = Steady::now();
    loads_->queue(job, job.runs, 0, job.pages.size(), begin, marks->ends[group]);
    loads_->record(marks->landed[group]);
    if (config_.slow_factor > 1) {
      loads_->wait();
      slow_down(config_.slow_factor, began);
    }
    begin = marks->ends[group];
    job.flight->land(begin);
  }
  loads_->wait();
  if (!marks->staged) return true;
  loads_->lay_out_rest(*job.flight);
  return !stopping();
}

Pages CudaEngine::back_up(const TransferJob& job) {
  use_gpu(config_.ordinal);
  const ProfilerRange range("backup", static_cast<std::uint64_t>(job.id));
  backups_->begin(job);
  Pages queued = 0;
  std::array<CudaEvent, 2> moved;  // of the last two portions
  std::size_t portion = 0;
  for (auto run = job.runs.begin(); run != job.runs.end();) {
    config_.begin_portion(job.id, queued);
    if (should_stop(job)) break;
    const auto first = run;
    Pages pages = 0;
    while (run != job.runs.end() && (pages == 0 || pages * config_.shape.page_bytes() < kBackupBytes)) {
      pages += (run++)->pages;
    }
    const Steady::time_point began = Steady::now();
    // At most two portions are in flight, so that a cancel takes effect soon.
    if (portion >= 2) backups_->until(moved[portion % 2]);
    backups_->queue(job, std::span(first, run), queued, pages, 0, config_.shape.layers);
    backups_->record(moved[portion++ % 2]);
    if (config_.slow_factor > 1) {
      backups_->wait();
      slow_down(config_.slow_factor, began);
    }
    queued += pages;
  }
  backups_->wait();
  return queued;
}

// ---- pages of storage tiers ----------------------------------------------------------------------------------

void CudaEngine::copy_device_page(SlotId slot, std::byte* to, const std::byte* from) {
  const std::lock_guard lock(pages_mutex_);
  use_gpu(config_.ordinal);
  if (from != nullptr) std::memcpy(page_.data(), from, page_.bytes());
  const PageRun run = from != nullptr ? PageRun{0, slot, 1} : PageRun{slot, 0, 1};
  TransferParams params;
  params.shape = config_.shape;
  params.device = device_.data();
  params.device_pages = config_.device_pages;
  params.host = page_.data();
  params.host_pages = 1;
  params.host_layout = Layout::layer_first;
  params.to_device = from != nullptr;
  params.runs = &run;
  params.run_count = 1;
  params.layer_end = config_.shape.layers;
  CopyList list;
  list.assign_pieces(params);
  if (StagedLoads* const staged = loads_->staged_loads()) staged->wait_for_slot(slot, pages_);
  pages_.must(list.submit(0, list.size(), pages_.get()), "cudaMemcpyBatchAsync");
  until_idle(pages_, page_copied_);
  if (to != nullptr) std::memcpy(to, page_.data(), page_.bytes());
}

// Of a pool in layer_first, the blocks of a slot are equally far apart.
void CudaEngine::copy_device_page(SlotId from, SlotId to) {
  use_gpu(config_.ordinal);
  const Bytes block = config_.shape.row_bytes() * config_.shape.page_tokens;
  compute_.must(
      cudaMemcpy2DAsync(device_.data() + to * block, config_.device_pages * block, device_.data() + from * block,
                        config_.device_pages * block, block, std::size_t{config_.shape.planes} * config_.shape.layers,
                        cudaMemcpyDeviceToDevice, compute_.get()),
      "cudaMemcpy2DAsync");
}

// ---- passes --------------------------------------------------------------------------------------------------

// Sequences share pages, so a batch can name more pages than the pool has. The tables then grow by half, so that growth
// is rare. The old tables are kept, because freeing them would wait for all streams.
void CudaEngine::make_tables(std::uint64_t pages) {
  if (pages <= tables_.capacity) return;
  const std::uint64_t capacity = std::max(pages, tables_.capacity + tables_.capacity / 2);
  PassTables tables;
  tables.pages = PinnedMemory(capacity * sizeof(ContextPage), "page tables");
  tables.gpu_pages = GpuMemory(capacity * sizeof(ContextPage), "page tables");
  tables.folds = GpuMemory(capacity * config_.shape.planes * kContextFolds * sizeof(std::uint32_t), "folds");
  tables.capacity = capacity;
  if (tables_.capacity != 0) outgrown_.push_back(std::move(tables_));
  tables_ = std::move(tables);
}

void CudaEngine::begin_pass(const PassJob& job, std::span<const std::uint32_t> reads) {
  use_gpu(config_.ordinal);
  if (StagedLoads* const staged = loads_->staged_loads()) staged->begin_wait(job.gates);
  make_tables(job.slots.size());

  auto* page = reinterpret_cast<ContextPage*>(tables_.pages.data());
  for (const PassJob::Sequence& sequence : job.sequences) {
    for (std::size_t at = 0; at < sequence.pages; ++at, ++page) {
      std::memcpy(page->key, job.keys[sequence.first_page + at].words.data(), sizeof page->key);
      page->slot = job.slots[sequence.first_page + at];
      page->first = static_cast<std::uint32_t>(at * config_.shape.page_tokens);
      page->context = static_cast<std::uint32_t>(sequence.context);
      page->fresh = static_cast<std::uint32_t>(job.fresh(sequence));
      page->reads = reads.empty() ? 0 : reads[sequence.first_page + at];
    }
  }
  table_pages_ = job.slots.size();
  if (table_pages_ == 0) return;
  compute_.must(cudaMemcpyAsync(tables_.gpu_pages.data(), tables_.pages.data(), table_pages_ * sizeof(ContextPage),
                                cudaMemcpyHostToDevice, compute_.get()),
                "cudaMemcpyAsync");
}

// The bytes of the layer may still be in flight; the stream waits for them. Between the records of `began` and `ended`,
// the GPU has no other work: this is the stall.
bool CudaEngine::await_layer(const PassJob& job, std::uint32_t layer) {
  Stall* stall = nullptr;
  for (const FlightPtr& gate : job.gates) {
    const bool known = gate->answered();  // the gate has landed or is lost
    if (!known && stall == nullptr) {
      if (stalls_used_ == stalls_.size()) stalls_.emplace_back();
      stall = &stalls_[stalls_used_];
      compute_.record(stall->began);
    }
    if (!gate->wait_for(layer)) return false;
    const auto* marks = dynamic_cast<const GroupMarks*>(gate->marks.get());
    if (known || marks == nullptr) continue;
    const auto group = static_cast<std::size_t>(std::ranges::upper_bound(marks->ends, layer) - marks->ends.begin());
    if (!marks->staged) {
      compute_.wait_for(marks->landed[group]);
    } else if (!loads_->staged_loads()->lay_out(*marks->staged, group, compute_)) {
      return false;
    }
  }
  if (stall != nullptr) {
    compute_.record(stall->ended);
    ++stalls_used_;
  }
  return true;
}

ContextPages CudaEngine::context(std::uint32_t layer) const {
  ContextPages pages;
  pages.shape = config_.shape;
  pages.pool = device_.data();
  pages.pool_pages = config_.device_pages;
  pages.step = reinterpret_cast<const ContextStep*>(gpu_step_.data());
  pages.layer = layer;
  pages.check_every = config_.check_every;
  return pages;
}

// `name`: for a profiler.
void CudaEngine::begin_step(const char* name, std::uint64_t step) {
  step_range_.emplace(name, table_pages_);
  const ContextStep now{reinterpret_cast<const ContextPage*>(tables_.gpu_pages.data()),
                        reinterpret_cast<std::uint32_t*>(tables_.folds.data()),
                        static_cast<std::uint32_t>(table_pages_), static_cast<std::uint32_t>(step)};
  compute_.must(launch_context_step(now, reinterpret_cast<ContextStep*>(gpu_step_.data()), compute_.get()),
                "the launch of the kernel that begins a step");
}

void CudaEngine::queue_reads(std::uint32_t layer) {
  compute_.must(launch_read_context(context(layer), reinterpret_cast<ContextFaults*>(gpu_faults_.data()), pass_ctas(),
                                    compute_.get()),
                "the context kernel's launch");
}

void CudaEngine::read_layer(const PassJob&, std::uint64_t step, std::uint32_t layer) {
  if (layer == 0) begin_step("audit", step);
  queue_reads(layer);
}

Tokens decode_tokens(const PassJob& job) {
  return Tokens{job.shape.decode_sequences} * (job.shape.draft_tokens + 1);  // verified tokens
}

void CudaEngine::queue_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) {
  if (transformer_) {
    const Tokens tokens = job.shape.prefill_tokens + decode_tokens(job);
    const std::uint64_t pairs = step == 0 ? job.shape.prefill_pairs : 0;
    // Layers with windows or states lie in other pools: those here do their arithmetic too.
    const std::uint32_t here = config_.shape.layers, all = std::max(config_.transformer.layers, here);
    for (std::uint32_t number = layer * all / here; number < (layer + 1) * all / here; ++number) {
      transformer_->layer(number, tokens, pairs, compute_);
    }
  }
  queue_reads(layer);
  compute_.must(launch_write_context(context(layer), pass_ctas(), compute_.get()),
                "the launch of the kernel that writes tokens");
}

void CudaEngine::layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) {
  if (layer == 0) begin_step(job.prefill() ? "prefill step" : "decode step", step);
  queue_layer(job, step, layer);
}

bool CudaEngine::whole_step(const PassJob& job, std::uint64_t step) {
  if (job.prefill()) return false;
  begin_step("decode step", step);
  graphs_.run(decode_tokens(job), compute_, [&] {
    for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) queue_layer(job, step, layer);
  });
  return true;
}

// ---- warm-up -------------------------------------------------------------------------------------------------

// Does what a run would do for the first time in a pass that is measured: kernels are loaded, cuBLAS chooses its own,
// graphs are made. No page has content yet, so no page is read or written in passes, and copies move poison.
void CudaEngine::warm_up() {
  config_.acquire("warm-up");
  const ProfilerRange range("warm-up", 0);
  warm_up_passes();
  if (config_.host_pages > 0 && config_.device_pages > 0) warm_up_copies();
}

void CudaEngine::warm_up_passes() {
  table_pages_ = 0;
  PassJob prefill;
  prefill.shape.prefill_tokens = Transformer::kTokensPerProduct;
  prefill.shape.prefill_pairs = 1;
  for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) this->layer(prefill, 0, layer);
  end_step();
  for (std::uint32_t tokens = 1; tokens <= config_.warm_tokens; ++tokens) {
    PassJob decode;
    decode.shape.decode_sequences = tokens;
    for (int step = 0; step < 2; ++step) {  // the second one makes the graph
      whole_step(decode, 0);
      end_step();
    }
  }
}

void CudaEngine::warm_up_copies() {
  TransferJob job;
  job.flight = std::make_shared<Flight>();
  job.runs = {{0, 0, 1}};
  job.pages.resize(1);
  job.pages[0].source = job.pages[0].target = 0;
  job.plan.pages = 1;
  job.plan.layer_groups = 1;
  for (const TransferPath path : {TransferPath::copy_engine, TransferPath::boxes, TransferPath::kernel,
                                  TransferPath::ring, TransferPath::staged}) {
    if (path == TransferPath::staged && config_.host_layout == Layout::layer_first) continue;
    job.plan.path = path;
    for (CudaCopies* copies : {&*loads_, &*backups_}) {
      job.lane = copies == &*loads_ ? Lane::h2d : Lane::d2h;
      copies->begin(job);
      copies->queue(job, job.runs, 0, 1, 0, config_.shape.layers);
      copies->wait();
      if (copies->staged_load()) copies->lay_out_rest(*job.flight);
    }
  }
  loads_->forget_refusals();
  backups_->forget_refusals();
}

// ---- the end of a step ---------------------------------------------------------------------------------------

void CudaEngine::reset_faults() {
  checked_ = 0;
  compute_.must(cudaMemsetAsync(gpu_faults_.data(), 0, offsetof(ContextFaults, kept), compute_.get()),
                "cudaMemsetAsync");
}

PageEngine::StepEnd CudaEngine::end_step() {
  if (StagedLoads* const staged = loads_->staged_loads()) staged->end_wait();
  compute_.must(cudaMemcpyAsync(faults_.data(), gpu_faults_.data(), sizeof(ContextFaults), cudaMemcpyDeviceToHost,
                                compute_.get()),
                "cudaMemcpyAsync");
  until_idle(compute_, computed_);
  StepEnd end;
  for (std::size_t i = 0; i < stalls_used_; ++i) {
    float milliseconds = 0;
    compute_.must(cudaEventElapsedTime(&milliseconds, stalls_[i].began.get(), stalls_[i].ended.get()),
                  "cudaEventElapsedTime");
    end.stalled += static_cast<TimeNs>(static_cast<double>(milliseconds) * 1e6);
  }
  stalls_used_ = 0;
  step_range_.reset();
  const auto* faults = reinterpret_cast<const ContextFaults*>(faults_.data());
  end.checked = faults->checked - checked_;
  checked_ = faults->checked;
  end.wrong_reads = faults->wrong;
  if (faults->wrong == 0) return end;
  for (std::uint32_t i = 0; i < std::min(faults->wrong, ContextFaults::kMaxKept); ++i) {
    const ContextFault& fault = faults->kept[i];
    end.wrong.push_back({fault.page, fault.layer, fault.plane, fault.offset, static_cast<std::uint8_t>(fault.got)});
  }
  std::ranges::sort(end.wrong, {}, [](const WrongRead& r) {
    return std::array{std::size_t{r.layer}, r.page, std::size_t{r.plane}};
  });
  reset_faults();
  return end;
}

void CudaEngine::flip_device(std::uint64_t offset) {
  std::byte* byte = faults_.data() + sizeof(ContextFaults);
  compute_.must(cudaMemcpyAsync(byte, device_.data() + offset, 1, cudaMemcpyDeviceToHost, compute_.get()),
                "cudaMemcpyAsync");
  until_idle(compute_, computed_);
  *byte ^= std::byte{1};
  compute_.must(cudaMemcpyAsync(device_.data() + offset, byte, 1, cudaMemcpyHostToDevice, compute_.get()),
                "cudaMemcpyAsync");
  until_idle(compute_, computed_);
}

}  // namespace

// ---- presence and sizes --------------------------------------------------------------------------------------

CudaPresence cuda_presence(std::size_t ranks) {
  int driver = 0, gpus = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return {0, "no NVIDIA driver is loaded"};
  }
  const cudaError_t error = cudaGetDeviceCount(&gpus);
  cudaGetLastError();
  const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
  if (error == cudaErrorInsufficientDriver) {
    return {0, "the NVIDIA driver is for CUDA " + version(driver) + ", and this build needs one for " +
                   version(CUDART_VERSION)};
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && gpus == 0)) return {0, "no GPU is visible"};
  if (error != cudaSuccess) return {0, std::string("cudaGetDeviceCount failed: ") + cudaGetErrorString(error)};
  const int used = static_cast<int>(std::min<std::size_t>(ranks, static_cast<std::size_t>(gpus)));
  for (int gpu = 0; gpu < used; ++gpu) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu) == cudaSuccess &&
        major < kMinComputeCapability) {
      return {0, "GPU " + std::to_string(gpu) + " is of compute capability " + std::to_string(major) +
                     ", and the kernels need " + std::to_string(kMinComputeCapability) + " or later"};
    }
  }
  return {gpus, ""};
}

CudaDeviceBytes cuda_device_bytes(const CudaDeviceConfig& config) {
  const Bytes page = config.shape.page_bytes();
  int cache = 0;
  if (cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, config.ordinal) != cudaSuccess) cudaGetLastError();
  const Bytes table = std::max<Pages>(1, config.device_pages) * sizeof(ContextPage);
  const Bytes folds = std::max<Pages>(1, config.device_pages) * config.shape.planes * kContextFolds * 4;
  const CudaPools pools = pools_of(config, nullptr, {});
  const Bytes staging =
      CudaCopies::gpu_bytes(pools, true, sizes_of(config)) + CudaCopies::gpu_bytes(pools, false, sizes_of(config));
  const Bytes weights = Transformer::gpu_bytes(config.transformer, static_cast<Bytes>(std::max(0, cache)));
  const Bytes direct = config.cufile ? CudaDirectPages::gpu_bytes(direct_config(config, nullptr)) : 0;
  CudaDeviceBytes beside;
  for (const CudaDeviceConfig& other : config.beside) {
    const CudaDeviceBytes more = cuda_device_bytes(other);
    beside.gpu += more.gpu;
    beside.host += more.host;
  }
  return {.gpu = config.device_pages * page + staging + direct + table + folds + sizeof(ContextFaults) +
                 sizeof(ContextStep) + weights + beside.gpu,
          .host = (config.host_pages + 1) * page + table + Ledger::bytes(config) + beside.host};
}

Bytes cuda_bytes_free(int ordinal) {
  use_gpu(ordinal);
  std::size_t available = 0, total = 0;
  must(cudaMemGetInfo(&available, &total), "cudaMemGetInfo", "GPU " + std::to_string(ordinal));
  return available;
}

std::unique_ptr<Device> make_cuda_device(const CudaDeviceConfig& config) {
  std::vector<PagedDevicePart> parts;
  parts.push_back({config, std::make_unique<CudaEngine>(config)});
  for (const CudaDeviceConfig& other : config.beside) parts.push_back({other, std::make_unique<CudaEngine>(other)});
  return make_paged_device(std::move(parts));
}

}  // namespace kvtwin
