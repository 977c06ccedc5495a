// The twin's inside: objects, streams and who runs them. One lock for all of it; under ThreadSanitizer, with streams as
// threads, whatever happens under that lock is out of its sight (Hidden), and the orders that CUDA promises are told to
// it by hand (acquire, release).
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

// One record of an event: what waits for the event waits for the latest one, at the time of the call.
struct Recording {
  bool done = false;
  std::uint64_t time = 0;  // pieces of work carried out until then
};

struct Piece {  // of a copy: depth slices of height rows of width bytes
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t width = 0, height = 1, depth = 1;
  std::size_t to_pitch = 0, to_slice = 0, from_pitch = 0, from_slice = 0;  // bytes
  Way way = Way::on_host;
  bool early = false;  // the source may be read from the call on

  std::size_t bytes() const { return width * height * depth; }
  std::size_t to_span() const { return (depth - 1) * to_slice + (height - 1) * to_pitch + width; }
  std::size_t from_span() const { return (depth - 1) * from_slice + (height - 1) * from_pitch + width; }
};

struct Work {
  enum class Kind : std::uint8_t { run, record, wait } kind = Kind::run;
  // run: carries out a part, drawn by the number (0: all that is left); true when nothing is left.
  std::function<bool(std::uint64_t)> step;
  bool started = false;
  std::vector<std::pair<Way, std::uint64_t>> under_way;
  std::shared_ptr<Recording> recording;
};

// A range of addresses that the twin knows.
struct Block {
  enum class Kind : std::uint8_t { device, pinned, registered, freed } kind = Kind::device;
  std::size_t bytes = 0;
  int device = 0;
  void* mapping = nullptr;  // with its guards; null for registered
  std::size_t mapping_bytes = 0;
};
using Blocks = std::map<std::uintptr_t, Block>;

// The block that holds all of [at, at + bytes); null if none does.
const Block* block_of(const Blocks& blocks, const void* at, std::size_t bytes);

class Runtime;

// What a kernel may touch, as of its start.
class Reach {
 public:
  Reach(Runtime& runtime, std::string kernel, int device);
  // False, and a violation, if a kernel on this device couldn't reach it all.
  bool holds(const void* at, std::size_t bytes) const;

 private:
  Runtime& runtime_;
  std::string kernel_;
  int device_;
  Blocks blocks_;
};

}  // namespace kvtwin::twin

struct CUstream_st {
  int device = 0;
  bool is_default = false;
  int priority = 0;
  std::deque<std::unique_ptr<kvtwin::twin::Work>> queue;
  bool busy = false, closing = false;
  std::uint64_t submitted = 0, finished = 0;
  std::uint64_t weight = 1;  // of being drawn
  std::thread thread;
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<kvtwin::twin::Recording> recording;
};

namespace kvtwin::twin {

// Hides what a thread does from ThreadSanitizer as long as it lives.
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

  void begin(const Machine& machine);  // everything of the machine before is gone
  bool threads() const { return machine_.streams == Streams::threads; }
  const Machine& machine() const { return machine_; }

  // The lock, and what it guards, out of ThreadSanitizer's sight.
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
  // Null: no such stream, a violation.
  CUstream_st* stream_of(Locked&, cudaStream_t stream, const char* function);
  CUstream_st* default_stream(Locked&, int device);
  CUevent_st* event_of(Locked&, cudaEvent_t event, const char* function);

  // ---- streams; without the lock ----
  void submit(CUstream_st* stream, std::unique_ptr<Work> work);
  void wait_for(CUstream_st* stream);
  void wait_for(const std::shared_ptr<Recording>& recording);
  void wait_for_all();
  // As cudaDeviceSynchronize: with the order that it promises.
  void synchronize();
  // What was submitted to it is still carried out.
  void close(Locked&, CUstream_st* stream);
  cudaError_t sticky_error();
  bool is_done(CUstream_st* stream);
  bool is_done(const std::shared_ptr<Recording>& recording);
  std::uint64_t draw(std::uint64_t bound);  // 0 in threads

  // Is anything submitted and not carried out?
  bool under_way(Locked&) const;

  // ---- what tests ask for, and calls fill in; under the lock ----
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
  std::map<std::string, std::uint64_t> calls, launches;
  std::map<std::pair<Way, std::string>, Copies> copies;
  Copies totals[4];
  std::vector<std::string> violations, hidden_syncs;
  Blocks blocks;
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::atomic<std::uint64_t> generation = 0;  // of the machine

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
  std::vector<CUstream_st*> all_;       // destroyed ones too, in the order they were made
  std::uint64_t time_ = 0;
  std::uint64_t eagerness_ = 0;  // percent
  test::Splitmix rng_{0};
};

void acquire(const void* at);
void release(const void* at);

// The current device of this thread.
int& current_device();
// What cudaGetLastError tells this thread.
cudaError_t& last_error();

// A call of the C interface: `act` unless a fault says otherwise.
template <typename Act>
cudaError_t call(const char* function, const Act& act) {
  Runtime& runtime = Runtime::get();
  cudaError_t error = runtime.enter(function);
  if (error == cudaSuccess) error = act(runtime);
  if (error != cudaSuccess) last_error() = error;
  return error;
}

// One that frees: it does so even if it fails.
template <typename Act>
cudaError_t freeing_call(const char* function, const Act& act) {
  Runtime& runtime = Runtime::get();
  const cudaError_t fault = runtime.enter(function);
  const cudaError_t error = act(runtime);
  if (fault != cudaSuccess || error != cudaSuccess) last_error() = fault != cudaSuccess ? fault : error;
  return fault != cudaSuccess ? fault : error;
}

// A kernel: `body` runs on the stream, and returns whether it reached all it touched; if not, the error sticks.
cudaError_t launch(const char* launcher, cudaStream_t stream, std::function<bool(const Reach&)> body);

}  // namespace kvtwin::twin
