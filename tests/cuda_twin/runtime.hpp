// The internals of the CUDA twin: objects, streams, and the threads that run streams. One lock protects everything.
// With streams as threads, ThreadSanitizer does not see the work under this lock (Hidden). Calls of acquire() and
// release() declare the orders that CUDA guarantees.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::twin {

// One cudaEventRecord(). A wait for an event waits for the latest recording at the time of the call.
struct Recording {
  bool done = false;
  std::uint64_t time = 0;  // number of work items that were complete at the recording
};

struct Piece {  // one copy: `depth` slices of `height` rows of `width` bytes
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t width = 0, height = 1, depth = 1;
  std::size_t to_pitch = 0, to_slice = 0, from_pitch = 0, from_slice = 0;  // bytes
  Way way = Way::on_host;
  bool early = false;  // the source may be read as soon as the call is made

  std::size_t bytes() const { return width * height * depth; }
  std::size_t to_span() const { return (depth - 1) * to_slice + (height - 1) * to_pitch + width; }
  std::size_t from_span() const { return (depth - 1) * from_slice + (height - 1) * from_pitch + width; }
};

struct Work {
  enum class Kind : std::uint8_t { run, record, wait } kind = Kind::run;
  // For `run`: executes a part of the work; the number selects the part (0: the whole rest). Returns true at the end.
  std::function<bool(std::uint64_t)> step;
  bool started = false;
  std::vector<std::pair<Way, std::uint64_t>> under_way;
  std::shared_ptr<Recording> recording;
  std::string kernel;  // the launcher's name; empty for other work
};

// What a stream has captured: the parts of kernel launches, in order. A part can run several times.
struct Node {
  std::string kernel;
  std::function<bool(std::uint64_t)> step;
};

// A range of addresses that the twin knows.
struct Block {
  enum class Kind : std::uint8_t { device, pinned, registered, freed } kind = Kind::device;
  std::size_t bytes = 0;
  int device = 0;
  void* mapping = nullptr;  // the mapping with its guard pages; null for registered memory
  std::size_t mapping_bytes = 0;
};
using Blocks = std::map<std::uintptr_t, Block>;

// Returns the block that contains all of [at, at + bytes), or null.
const Block* block_of(const Blocks& blocks, const void* at, std::size_t bytes);

class Runtime;

// The memory that a kernel may access, as of the kernel's start.
class Reach {
 public:
  Reach(Runtime& runtime, std::string kernel, int device);
  // Returns false, and adds a violation, if a kernel on this device could not access all of the range.
  bool holds(const void* at, std::size_t bytes) const;

  // The range of addresses, around these bytes, that a kernel on this device may access; empty if there is none.
  struct Range {
    std::uintptr_t begin = 0, end = 0;
  };
  Range range(const void* at, std::size_t bytes) const;

 private:
  Runtime& runtime_;
  std::string kernel_;
  int device_;
  Blocks blocks_;
};

}  // namespace kvtwin::twin

struct CUgraph_st {
  std::vector<std::shared_ptr<const kvtwin::twin::Node>> nodes;
};
struct CUgraphExec_st : CUgraph_st {};

struct CUstream_st {
  int device = 0;
  bool is_default = false;
  int priority = 0;
  std::deque<std::unique_ptr<kvtwin::twin::Work>> queue;
  bool busy = false, closing = false;
  std::uint64_t submitted = 0, finished = 0;
  std::uint64_t weight = 1;  // of the random choice between streams
  std::thread thread;
  std::unique_ptr<CUgraph_st> capture;  // not null: the stream captures, and runs nothing
  bool capture_spoiled = false;
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<kvtwin::twin::Recording> recording;
};

namespace kvtwin::twin {

// Hides the thread's memory accesses from ThreadSanitizer while the object exists.
class Hidden {
 public:
  explicit Hidden(bool active);
  ~Hidden();
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  bool active_;
};

class Runtime {
 public:
  static Runtime& get();

  void begin(const Machine& machine);  // discards everything of the previous machine
  bool threads() const { return machine_.streams == Streams::threads; }
  const Machine& machine() const { return machine_; }

  // Holds the lock, hidden from ThreadSanitizer.
  class Locked {
   public:
    explicit Locked(Runtime& runtime) : hidden_(runtime.threads()), lock(runtime.mutex_) {}

   private:
    Hidden hidden_;

   public:
    std::unique_lock<std::mutex> lock;
  };

  // ---- every call ----
  cudaError_t enter(const char* function);
  void violation(Locked&, std::string text);
  void hidden_sync(Locked&, std::string text);

  // ---- objects; under the lock ----
  cudaError_t allocate(Locked&, Block::Kind kind, std::size_t bytes, int device, void** at);
  cudaError_t release(Locked&, Block::Kind kind, void* at);
  cudaError_t make_stream(int device, int priority, cudaStream_t* stream);
  // Returns null, and adds a violation, if there is no such stream.
  CUstream_st* stream_of(Locked&, cudaStream_t stream, const char* function);
  CUstream_st* default_stream(Locked&, int device);
  CUevent_st* event_of(Locked&, cudaEvent_t event, const char* function);

  // ---- streams; without the lock ----
  cudaError_t submit(CUstream_st* stream, std::unique_ptr<Work> work);
  void wait_for(CUstream_st* stream);
  void wait_for(const std::shared_ptr<Recording>& recording);
  void wait_for_all();
  // Like cudaDeviceSynchronize(), including the order that it guarantees.
  void synchronize();
  // The stream's submitted work still runs.
  void close(Locked&, CUstream_st* stream);
  cudaError_t sticky_error();
  bool is_done(CUstream_st* stream);
  bool is_done(const std::shared_ptr<Recording>& recording);
  std::uint64_t draw(std::uint64_t bound);  // always 0 with streams as threads

  // Returns true if some submitted work is not complete.
  bool under_way(Locked&) const;

  // ---- data that tests set or read; under the lock ----
  struct Fault {
    std::uint64_t left;
    cudaError_t error;
    std::string function;
    bool sticky;
  };
  std::vector<Fault> call_faults;
  std::uint64_t work_fault = 0;  // 0 = none
  cudaError_t work_error = cudaSuccess;
  cudaError_t sticky = cudaSuccess;
  std::map<std::string, std::uint64_t> calls, launches, urgent_launches;
  std::map<std::pair<Way, std::string>, Copies> copies;
  Copies totals[4];
  std::vector<std::string> violations, hidden_syncs;
  Blocks blocks;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::set<CUgraph_st*> graphs;
  std::set<CUgraphExec_st*> graph_launches;   // what cudaGraphInstantiate makes
  std::atomic<std::uint64_t> generation = 0;  // number of the current machine

 private:
  Runtime();
  ~Runtime();
  void end();
  void loop(CUstream_st* stream);
  void finish(Locked&, CUstream_st* stream);
  bool fails(Locked&);
  bool run_one(Locked& locked);
  void run_some(Locked& locked, std::uint64_t most);
  template <typename Done>
  void run_until(Locked& locked, const Done& done);

  Machine machine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CUstream_st*> defaults_;  // by device
  std::vector<CUstream_st*> all_;       // in order of creation, including destroyed streams
  std::uint64_t time_ = 0;
  std::uint64_t eagerness_ = 0;  // percent
  test::Splitmix rng_{0};
};

void acquire(const void* at);
void release(const void* at);

// The current device of this thread.
int& current_device();
// The value that cudaGetLastError() returns in this thread.
cudaError_t& last_error();

// Implements a call of the C interface: runs `act`, unless an injected fault makes the call fail.
template <typename Act>
cudaError_t call(const char* function, const Act& act) {
  Runtime& runtime = Runtime::get();
  cudaError_t error = runtime.enter(function);
  if (error == cudaSuccess) error = act(runtime);
  if (error != cudaSuccess) last_error() = error;
  return error;
}

// Like call(), for functions that free a resource: the resource is freed even if the call fails.
template <typename Act>
cudaError_t freeing_call(const char* function, const Act& act) {
  Runtime& runtime = Runtime::get();
  const cudaError_t fault = runtime.enter(function);
  const cudaError_t error = act(runtime);
  if (fault != cudaSuccess || error != cudaSuccess) last_error() = fault != cudaSuccess ? fault : error;
  return fault != cudaSuccess ? fault : error;
}

// Launches a kernel: `body` runs on the stream. If it returns false (it needed memory that it cannot access), the error
// is sticky.
cudaError_t launch(const char* launcher, cudaStream_t stream, std::function<bool(const Reach&)> body);

}  // namespace kvtwin::twin
