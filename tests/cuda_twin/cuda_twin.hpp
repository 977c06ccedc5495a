// A CUDA runtime without a GPU, for tests: programs that link kvtwin_cuda_twin in place of cudart and the compiled
// kernels get host memory for GPU memory, and host work for what streams carry out. Same C interface, same errors; the
// kernels' launchers (kernels/*_kernels.hpp) check what the real ones check and move bytes by the bodies that the
// kernels share with the CPU.
//
// Two ways to run streams:
//   seeded   no threads. Whenever a thread of the program submits, queries or waits, heads of the streams that could
//            run are run, in an order and as early or late as the seed says; the copies of a batch in any order, and
//            with others' work between them. The same calls by one thread give the same order.
//   threads  a thread a stream. Under ThreadSanitizer the twin's own locks are hidden, and exactly what CUDA promises
//            makes an order: a call before the work it submits, a stream's work one after another, a recorded event
//            before what waits for it, work before the synchronisation or query that says it is done. A missing wait
//            is a data race then, whichever way the threads happened to run.
//
// What a GPU would fail on, or would leave undefined, is refused with CUDA's error and noted in violations(); what is
// lawful but stops the pipeline is noted in hidden_syncs(). Not seen: the CPU's own reads and writes of GPU memory
// (that is mapped here) - but in memory that is freed, they crash.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin::twin {

enum class Streams : std::uint8_t { seeded, threads };

struct Machine {
  Streams streams = Streams::threads;
  std::uint64_t seed = 1;  // seeded only
  bool driver = true;      // false: every call is cudaErrorInsufficientDriver
  int devices = 1;         // 0: every call is cudaErrorNoDevice
  int compute_major = 9, compute_minor = 0;
  int shared_bytes = 232448;                             // of a block, opted in
  std::uint64_t device_bytes = std::uint64_t{80} << 30;  // of each GPU's memory
  std::uint64_t pinned_bytes = std::uint64_t{1} << 40;   // allocated or registered, in all
};

// Machine{}, or what the environment variable KVTWIN_CUDA_TWIN says: words of driver=0, devices=N, seed=N (seeded
// streams), compute=N, device_bytes=N, pinned_bytes=N.
Machine machine_of_environment();

struct Live {
  std::uint64_t allocations = 0, pinned = 0, registrations = 0, streams = 0, events = 0;
  friend bool operator==(const Live&, const Live&) = default;
};

enum class Way : std::uint8_t { to_device, to_host, on_device, on_host };

struct Copies {
  std::uint64_t calls = 0;   // a batch is one
  std::uint64_t copies = 0;  // descriptors
  std::uint64_t bytes = 0;
  std::uint64_t bytes_under_way = 0, most_under_way = 0;  // submitted and not carried out
};

// The machine that the process has from now on; one at a time. Without one, calls see machine_of_environment().
// Counts begin at 0. When it goes, all that was submitted is carried out, and what wasn't freed is.
class CudaTwin {
 public:
  explicit CudaTwin(const Machine& machine = {});
  ~CudaTwin();
  CudaTwin(const CudaTwin&) = delete;
  CudaTwin& operator=(const CudaTwin&) = delete;

  // ---- faults ----
  // The nth call from now on (1: the next one; of `function` only, if not empty; a kernel's launch is
  // cudaLaunchKernel) returns `error` and does nothing, but for calls that free, which free all the same.
  // sticky: so does every call after it, and nothing that was submitted is carried out any more.
  void fail_call(std::uint64_t nth, cudaError_t error, std::string_view function = {}, bool sticky = false);
  // The nth piece of work that a stream carries out from now on, not counting events, fails: a sticky error.
  void fail_work(std::uint64_t nth, cudaError_t error);

  // ---- what was seen ----
  std::uint64_t calls(std::string_view function = {}) const;  // of all functions, if empty
  std::uint64_t launches(std::string_view launcher) const;    // "gather_scatter" for launch_gather_scatter
  std::map<std::string, std::uint64_t> calls_by_name() const;
  Live live() const;
  Copies copies(Way way) const;                             // by copy engines, all functions
  Copies copies(Way way, std::string_view function) const;  // bytes under way: 0
  std::vector<std::string> violations() const;              // the first 100
  std::vector<std::string> hidden_syncs() const;            // the first 100
};

}  // namespace kvtwin::twin
