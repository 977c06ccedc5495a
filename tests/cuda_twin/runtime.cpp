#include "tests/cuda_twin/runtime.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#endif

namespace kvtwin::twin {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMaxNotes = 100;
constexpr std::size_t kMaxFilledBytes = std::size_t{16} << 20;  // larger allocations stay zero, and take no memory

std::size_t rounded_up(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Under AddressSanitizer, mmap() and munmap() write the shadow of the whole mapping, which is too much for large sparse
// mappings. So these functions call the kernel directly.
void* map(std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
#else
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
#endif
}

void unmap(void* at, std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  syscall(SYS_munmap, at, bytes);
#else
  munmap(at, bytes);
#endif
}

// Poisons (or unpoisons) the bytes between the end of a block and the end of its last page.
void guard_end([[maybe_unused]] void* at, [[maybe_unused]] std::size_t bytes, [[maybe_unused]] bool guarded) {
#if defined(__SANITIZE_ADDRESS__)
  const std::byte* end = static_cast<std::byte*>(at) + bytes;
  if (guarded) {
    ASAN_POISON_MEMORY_REGION(end, rounded_up(bytes) - bytes);
  } else {
    ASAN_UNPOISON_MEMORY_REGION(end, rounded_up(bytes) - bytes);
  }
#endif
}

void note(std::vector<std::string>& notes, std::string text) {
  if (notes.size() < kMaxNotes) notes.push_back(std::move(text));
}

}  // namespace

Machine machine_of_environment() {
  Machine machine;
  const char* text = std::getenv("KVTWIN_CUDA_TWIN");
  std::istringstream words(text == nullptr ? "" : text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    std::uint64_t value = 0;
    const char* end = word.data() + word.size();
    const auto read = std::from_chars(equals == std::string::npos ? end : word.data() + equals + 1, end, value);
    const bool number = read.ec == std::errc() && read.ptr == end;
    if (number && name == "driver") {
      machine.driver = value != 0;
    } else if (number && name == "devices") {
      machine.devices = static_cast<int>(value);
    } else if (number && name == "seed") {
      machine.streams = Streams::seeded;
      machine.seed = value;
    } else if (number && name == "compute") {
      machine.compute_major = static_cast<int>(value);
    } else if (number && name == "shared_bytes") {
      machine.shared_bytes = static_cast<int>(value);
    } else if (number && name == "device_bytes") {
      machine.device_bytes = value;
    } else if (number && name == "pinned_bytes") {
      machine.pinned_bytes = value;
    } else {
      std::fprintf(stderr, "KVTWIN_CUDA_TWIN: `%s` isn't driver=, devices=, seed=, ... with a number\n", word.c_str());
      std::abort();
    }
  }
  return machine;
}

Hidden::Hidden(bool active) : active_(active) {
#if defined(__SANITIZE_THREAD__)
  if (!active_) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
#endif
}

Hidden::~Hidden() {
#if defined(__SANITIZE_THREAD__)
  if (!active_) return;
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#else
  (void)active_;
#endif
}

void acquire([[maybe_unused]] const void* at) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(const_cast<void*>(at));
#endif
}

void release([[maybe_unused]] const void* at) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(const_cast<void*>(at));
#endif
}

const Block* block_of(const Blocks& blocks, const void* at, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  const auto& [start, block] = *--after;
  const std::uintptr_t skip = address - start;
  return skip <= block.bytes && bytes <= block.bytes - skip ? &block : nullptr;
}

Reach::Reach(Runtime& runtime, std::string kernel, int device)
    : runtime_(runtime), kernel_(std::move(kernel)), device_(device) {
  const Runtime::Locked locked(runtime_);
  blocks_ = runtime_.blocks;
}

Reach::Range Reach::range(const void* at, std::size_t bytes) const {
  const Block* block = block_of(blocks_, at, bytes);
  if (block == nullptr || block->kind == Block::Kind::freed ||
      (block->kind == Block::Kind::device && block->device != device_)) {
    return {};
  }
  const std::uintptr_t begin = std::prev(blocks_.upper_bound(reinterpret_cast<std::uintptr_t>(at)))->first;
  return {begin, begin + block->bytes};
}

bool Reach::holds(const void* at, std::size_t bytes) const {
  if (range(at, bytes).end != 0) return true;
  Runtime::Locked locked(runtime_);
  runtime_.violation(locked, kernel_ + ": " + std::to_string(bytes) + " bytes that the GPU doesn't reach");
  return false;
}

// ---- the machine --------------------------------------------------------------------------------------------

Runtime& Runtime::get() {
  static Runtime runtime;
  return runtime;
}

Runtime::Runtime() { begin(machine_of_environment()); }

Runtime::~Runtime() { end(); }

void Runtime::begin(const Machine& machine) {
  end();
  machine_ = machine;
  rng_ = test::Splitmix(test::mix(machine.seed));
  constexpr std::uint64_t kEagerness[] = {0, 5, 30, 90};
  eagerness_ = kEagerness[rng_.below(4)];
  time_ = 0;
  call_faults.clear();
  work_fault = 0;
  sticky = cudaSuccess;
  calls.clear();
  launches.clear();
  urgent_launches.clear();
  copies.clear();
  std::fill(std::begin(totals), std::end(totals), Copies{});
  violations.clear();
  hidden_syncs.clear();
  ++generation;
  for (int device = 0; device < machine.devices; ++device) {
    cudaStream_t stream = nullptr;
    make_stream(device, 0, &stream);
    streams.erase(stream);  // a program cannot destroy a default stream
    defaults_.push_back(stream);
  }
}

void Runtime::end() {
  wait_for_all();
  {
    const Locked locked(*this);
    for (CUstream_st* stream : all_) stream->closing = true;
    changed_.notify_all();
  }
  for (CUstream_st* stream : all_) {
    if (stream->thread.joinable()) stream->thread.join();
  }
  const Locked locked(*this);
  for (CUstream_st* stream : all_) delete stream;
  for (CUevent_st* event : events) delete event;
  for (CUgraph_st* graph : graphs) delete graph;
  for (CUgraphExec_st* graph : graph_launches) delete graph;
  graphs.clear();
  graph_launches.clear();
  all_.clear();
  streams.clear();
  events.clear();
  defaults_.clear();
  for (const auto& [start, block] : blocks) {
    if (block.mapping == nullptr) continue;
    if (block.kind != Block::Kind::freed) guard_end(reinterpret_cast<void*>(start), block.bytes, false);
    unmap(block.mapping, block.mapping_bytes);
  }
  blocks.clear();
}

cudaError_t Runtime::enter(const char* function) {
  Locked locked(*this);
  ++calls[function];
  if (!machine_.driver) return cudaErrorInsufficientDriver;
  if (machine_.devices == 0) return cudaErrorNoDevice;
  if (sticky != cudaSuccess) return sticky;
  cudaError_t error = cudaSuccess;
  for (Fault& fault : call_faults) {
    if (fault.left == 0 || (!fault.function.empty() && fault.function != function)) continue;
    if (--fault.left > 0) continue;
    error = fault.error;
    if (fault.sticky) sticky = error;
  }
  return error;
}

void Runtime::violation(Locked&, std::string text) { note(violations, std::move(text)); }
void Runtime::hidden_sync(Locked&, std::string text) { note(hidden_syncs, std::move(text)); }

// ---- memory -------------------------------------------------------------------------------------------------

cudaError_t Runtime::allocate(Locked&, Block::Kind kind, std::size_t bytes, int device, void** at) {
  std::uint64_t used = 0;
  for (const auto& [start, block] : blocks) {
    if (block.kind == Block::Kind::freed) continue;
    const bool same =
        kind == Block::Kind::device ? block.kind == kind && block.device == device : block.kind != Block::Kind::device;
    used += same ? block.bytes : 0;
  }
  const std::uint64_t most = kind == Block::Kind::device ? machine_.device_bytes : machine_.pinned_bytes;
  if (used > most || bytes > most - used) return cudaErrorMemoryAllocation;
  if (kind == Block::Kind::registered) {
    blocks[reinterpret_cast<std::uintptr_t>(*at)] = {kind, bytes, device, nullptr, 0};
    return cudaSuccess;
  }
  const std::size_t inside = rounded_up(bytes), all = inside + 2 * kPage;
  void* mapping = map(all);
  if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::byte* start = static_cast<std::byte*>(mapping) + kPage;
  mprotect(mapping, kPage, PROT_NONE);
  mprotect(start + inside, kPage, PROT_NONE);
  if (bytes <= kMaxFilledBytes) std::memset(start, 0xA5, inside);
  guard_end(start, bytes, true);
  blocks[reinterpret_cast<std::uintptr_t>(start)] = {kind, bytes, device, mapping, all};
  *at = start;
  return cudaSuccess;
}

cudaError_t Runtime::release(Locked&, Block::Kind kind, void* at) {
  const auto found = blocks.find(reinterpret_cast<std::uintptr_t>(at));
  if (found == blocks.end() || found->second.kind != kind) {
    note(violations, "what is freed or unregistered isn't the start of memory of that kind");
    return kind == Block::Kind::registered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
  }
  if (kind == Block::Kind::registered) {
    blocks.erase(found);
    return cudaSuccess;
  }
  // The addresses stay reserved, so that a later allocation cannot get them.
  Block& block = found->second;
  block.kind = Block::Kind::freed;
  guard_end(at, block.bytes, false);
  madvise(at, rounded_up(block.bytes), MADV_DONTNEED);
  mprotect(at, rounded_up(block.bytes), PROT_NONE);
  return cudaSuccess;
}

// ---- streams ------------------------------------------------------------------------------------------------

cudaError_t Runtime::make_stream(int device, int priority, cudaStream_t* stream) {
  auto* made = new CUstream_st;
  made->device = device;
  made->priority = priority;
  if (threads()) made->thread = std::thread([this, made] { loop(made); });
  const Locked locked(*this);
  all_.push_back(made);
  streams.insert(made);
  *stream = made;
  return cudaSuccess;
}

CUstream_st* Runtime::stream_of(Locked& locked, cudaStream_t stream, const char* function) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    hidden_sync(locked, std::string(function) + " on a default stream");
    return default_stream(locked, current_device());
  }
  if (streams.count(stream) > 0) return stream;
  violation(locked, std::string(function) + ": no such stream, or destroyed");
  return nullptr;
}

CUstream_st* Runtime::default_stream(Locked&, int device) { return defaults_[static_cast<std::size_t>(device)]; }

CUevent_st* Runtime::event_of(Locked& locked, cudaEvent_t event, const char* function) {
  if (event != nullptr && events.count(event) > 0) return event;
  violation(locked, std::string(function) + ": no such event, or destroyed");
  return nullptr;
}

cudaError_t Runtime::submit(CUstream_st* stream, std::unique_ptr<Work> work) {
  twin::release(work.get());
  Locked locked(*this);
  if (stream->capture != nullptr) {
    if (work->kernel.empty()) {
      stream->capture_spoiled = true;
      violation(locked, "a stream that captures got work that the twin's graphs do not have: only kernels");
      return cudaErrorStreamCaptureUnsupported;
    }
    stream->capture->nodes.push_back(std::make_shared<const Node>(Node{work->kernel, std::move(work->step)}));
    return cudaSuccess;
  }
  if (!work->kernel.empty()) {
    ++launches[work->kernel];
    if (stream->priority < 0) ++urgent_launches[work->kernel];
  }
  for (const auto& [way, bytes] : work->under_way) {
    Copies& total = totals[static_cast<int>(way)];
    total.bytes_under_way += bytes;
    total.max_under_way = std::max(total.max_under_way, total.bytes_under_way);
  }
  stream->queue.push_back(std::move(work));
  ++stream->submitted;
  changed_.notify_all();
  if (!threads() && rng_.chance(eagerness_)) run_some(locked, 4);
  return cudaSuccess;
}

// Returns true if the work item that is about to start must fail.
bool Runtime::fails(Locked&) {
  if (sticky == cudaSuccess && work_fault > 0 && --work_fault == 0) sticky = work_error;
  return sticky != cudaSuccess;
}

void Runtime::finish(Locked&, CUstream_st* stream) {
  const std::unique_ptr<Work> work = std::move(stream->queue.front());
  stream->queue.pop_front();
  for (const auto& [way, bytes] : work->under_way) totals[static_cast<int>(way)].bytes_under_way -= bytes;
  if (work->kind == Work::Kind::run) ++time_;
  if (work->kind == Work::Kind::record) {
    work->recording->done = true;
    work->recording->time = time_;
  }
  ++stream->finished;
  changed_.notify_all();
}

void Runtime::loop(CUstream_st* stream) {
  for (;;) {
    Work* work = nullptr;
    bool skipped = false;
    {
      Locked locked(*this);
      changed_.wait(locked.lock, [&] { return stream->closing || !stream->queue.empty(); });
      if (stream->queue.empty()) return;
      work = stream->queue.front().get();
      if (work->kind == Work::Kind::wait) changed_.wait(locked.lock, [&] { return work->recording->done; });
      skipped = work->kind == Work::Kind::run && fails(locked);
    }
    acquire(work);
    switch (work->kind) {
      case Work::Kind::run:
        if (!skipped) work->step(0);
        break;
      case Work::Kind::wait: acquire(work->recording.get()); break;
      case Work::Kind::record: twin::release(work->recording.get()); break;
    }
    twin::release(stream);
    Locked locked(*this);
    finish(locked, stream);
  }
}

// For seeded streams: runs the first work item of a random stream, or a part of it. Returns false if none can run.
bool Runtime::run_one(Locked& locked) {
  if (rng_.chance(5)) {
    for (CUstream_st* stream : all_) stream->weight = rng_.chance(50) ? 1 : 50;
  }
  std::vector<CUstream_st*> ready;
  std::uint64_t weights = 0;
  for (CUstream_st* stream : all_) {
    if (stream->busy || stream->queue.empty()) continue;
    const Work& head = *stream->queue.front();
    if (head.kind == Work::Kind::wait && !head.recording->done) continue;
    ready.push_back(stream);
    weights += stream->weight;
  }
  if (ready.empty()) return false;
  std::uint64_t drawn = rng_.below(weights);
  std::size_t i = 0;
  for (; drawn >= ready[i]->weight; ++i) drawn -= ready[i]->weight;
  CUstream_st* stream = ready[i];
  Work& work = *stream->queue.front();
  if (work.kind == Work::Kind::run && (work.started || !fails(locked))) {
    work.started = stream->busy = true;
    const std::uint64_t draw = rng_.next() | 1;
    locked.lock.unlock();
    const bool done = work.step(draw);
    locked.lock.lock();
    stream->busy = false;
    changed_.notify_all();
    if (!done) return true;
  }
  finish(locked, stream);
  return true;
}

void Runtime::run_some(Locked& locked, std::uint64_t most) {
  for (std::uint64_t left = rng_.below(most + 1); left > 0 && run_one(locked); --left) {
  }
}

template <typename Done>
void Runtime::run_until(Locked& locked, const Done& done) {
  if (threads()) return changed_.wait(locked.lock, done);
  while (!done()) {
    if (run_one(locked)) continue;
    if (std::none_of(all_.begin(), all_.end(), [](const CUstream_st* stream) { return stream->busy; })) {
      std::fprintf(stderr, "the CUDA twin: nothing can run, and a call waits\n");
      std::abort();
    }
    changed_.wait(locked.lock);  // another thread is running a work item
  }
  if (rng_.chance(eagerness_)) run_some(locked, 4);
}

void Runtime::wait_for(CUstream_st* stream) {
  {
    Locked locked(*this);
    run_until(locked, [stream, target = stream->submitted] { return stream->finished >= target; });
  }
  acquire(stream);
}

void Runtime::wait_for(const std::shared_ptr<Recording>& recording) {
  {
    Locked locked(*this);
    run_until(locked, [&] { return recording->done; });
  }
  acquire(recording.get());
}

void Runtime::wait_for_all() {
  Locked locked(*this);
  run_until(locked, [&] {
    return std::all_of(all_.begin(), all_.end(), [](const CUstream_st* s) { return s->finished == s->submitted; });
  });
}

void Runtime::synchronize() {
  std::vector<CUstream_st*> before;
  {
    const Locked locked(*this);
    before = all_;
  }
  for (CUstream_st* stream : before) wait_for(stream);
}

void Runtime::close(Locked&, CUstream_st* stream) {
  stream->closing = true;
  changed_.notify_all();
}

cudaError_t Runtime::sticky_error() {
  const Locked locked(*this);
  return sticky;
}

bool Runtime::is_done(CUstream_st* stream) {
  bool done = false;
  {
    Locked locked(*this);
    if (!threads()) run_some(locked, 3);
    done = stream->finished == stream->submitted;
  }
  if (done) acquire(stream);
  return done;
}

bool Runtime::is_done(const std::shared_ptr<Recording>& recording) {
  bool done = false;
  {
    Locked locked(*this);
    if (!threads()) run_some(locked, 3);
    done = recording->done;
  }
  if (done) acquire(recording.get());
  return done;
}

std::uint64_t Runtime::draw(std::uint64_t bound) {
  const Locked locked(*this);
  return threads() ? 0 : rng_.below(bound);
}

bool Runtime::under_way(Locked&) const {
  return std::any_of(all_.begin(), all_.end(), [](const CUstream_st* s) { return s->finished != s->submitted; });
}

// ---- state of each thread ----------------------------------------------------------------------------------

namespace {

struct OfThread {
  std::uint64_t generation = 0;
  int device = 0;
  cudaError_t error = cudaSuccess;
};

OfThread& of_thread() {
  thread_local OfThread mine;
  const std::uint64_t generation = Runtime::get().generation;
  if (mine.generation != generation) mine = {generation, 0, cudaSuccess};
  return mine;
}

}  // namespace

int& current_device() { return of_thread().device; }
cudaError_t& last_error() { return of_thread().error; }

// ---- submitted work -----------------------------------------------------------------------------------------

cudaError_t launch(const char* launcher, cudaStream_t stream, std::function<bool(const Reach&)> body) {
  return call("cudaLaunchKernel", [&](Runtime& runtime) {
    CUstream_st* on = nullptr;
    {
      Runtime::Locked locked(runtime);
      on = runtime.stream_of(locked, stream, launcher);
      if (on == nullptr) return cudaErrorInvalidResourceHandle;
      if (on->device != current_device()) {
        runtime.violation(locked, std::string(launcher) + " on a stream of another device");
        return cudaErrorInvalidResourceHandle;
      }
    }
    auto work = std::make_unique<Work>();
    work->kernel = launcher;
    work->step = [&runtime, name = std::string(launcher), device = on->device, body = std::move(body)](std::uint64_t) {
      if (!body(Reach(runtime, name, device))) {
        const Runtime::Locked locked(runtime);
        if (runtime.sticky == cudaSuccess) runtime.sticky = cudaErrorIllegalAddress;
      }
      return true;
    };
    return runtime.submit(on, std::move(work));
  });
}

// ---- the interface for tests --------------------------------------------------------------------------------

CudaTwin::CudaTwin(const Machine& machine) { Runtime::get().begin(machine); }
CudaTwin::~CudaTwin() { Runtime::get().begin(machine_of_environment()); }

void CudaTwin::fail_call(std::uint64_t nth, cudaError_t error, std::string_view function, bool sticky) {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  runtime.call_faults.push_back({nth, error, std::string(function), sticky});
}

void CudaTwin::fail_work(std::uint64_t nth, cudaError_t error) {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  runtime.work_fault = nth;
  runtime.work_error = error;
}

std::uint64_t CudaTwin::calls(std::string_view function) const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  std::uint64_t sum = 0;
  for (const auto& [name, count] : runtime.calls) sum += function.empty() || function == name ? count : 0;
  return sum;
}

std::uint64_t CudaTwin::launches(std::string_view launcher) const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  const auto found = runtime.launches.find(std::string(launcher));
  return found == runtime.launches.end() ? 0 : found->second;
}

std::uint64_t CudaTwin::urgent_launches(std::string_view launcher) const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  const auto found = runtime.urgent_launches.find(std::string(launcher));
  return found == runtime.urgent_launches.end() ? 0 : found->second;
}

std::map<std::string, std::uint64_t> CudaTwin::calls_by_name() const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  return runtime.calls;
}

Live CudaTwin::live() const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  Live live;
  for (const auto& [start, block] : runtime.blocks) {
    live.allocations += block.kind == Block::Kind::device;
    live.pinned += block.kind == Block::Kind::pinned;
    live.registrations += block.kind == Block::Kind::registered;
  }
  live.streams = runtime.streams.size();
  live.events = runtime.events.size();
  live.graphs = runtime.graphs.size() + runtime.graph_launches.size();
  return live;
}

Copies CudaTwin::copies(Way way) const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  return runtime.totals[static_cast<int>(way)];
}

Copies CudaTwin::copies(Way way, std::string_view function) const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  const auto found = runtime.copies.find({way, std::string(function)});
  return found == runtime.copies.end() ? Copies{} : found->second;
}

std::vector<std::string> CudaTwin::violations() const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  return runtime.violations;
}

std::vector<std::string> CudaTwin::hidden_syncs() const {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  return runtime.hidden_syncs;
}

}  // namespace kvtwin::twin
