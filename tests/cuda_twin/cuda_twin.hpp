// The CUDA twin: a CUDA runtime without a GPU, for tests. A program that links kvtwin_cuda_twin instead of cudart and
// the compiled kernels uses host memory as GPU memory, and host threads run the work of the streams. The C interface
// and the errors are the same. The kernel launchers (kernels/*_kernels.hpp) check the same conditions as the real
// launchers, and move bytes with the code that the kernels share with the CPU.
//
// There are two ways to run streams:
//   seeded   No threads. When a thread of the program submits, queries or waits, the twin runs the first work of some
//            streams. The seed determines the order, and how early or late the work runs. The copies of a batch run in
//            any order, with work of other streams between them. The same calls by one thread give the same order.
//   threads  One thread per stream. ThreadSanitizer does not see the twin's own locks, only the orders that CUDA
//            guarantees: a call comes before the work that it submits; the work of a stream runs in sequence; a
//            recorded event comes before the work that waits for the event; work comes before the synchronization or
//            query that reports its end. So a missing wait is a data race, however the threads happened to run.
//
// If a call would fail on a GPU or would be undefined, the call returns CUDA's error and violations() has an entry. If
// a call is legal but stops the pipeline, hidden_syncs() has an entry. The twin does not see direct reads and writes of
// GPU memory by the CPU, because the memory is mapped. Direct access to freed memory crashes.
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
  std::uint64_t seed = 1;  // for seeded streams only
  bool driver = true;      // false: every call returns cudaErrorInsufficientDriver
  int devices = 1;         // 0: every call returns cudaErrorNoDevice
  int compute_major = 9, compute_minor = 0;
  std::vector<int> compute_majors = {};                  // of each GPU; empty: compute_major
  bool graphs = true;                                    // false: streams capture nothing
  int shared_bytes = 232448;                             // shared memory per block, with opt-in
  std::uint64_t device_bytes = std::uint64_t{80} << 30;  // memory of each GPU
  std::uint64_t pinned_bytes = std::uint64_t{1} << 40;   // limit of allocated and registered host memory together
};

// Returns Machine{}, changed by the environment variable KVTWIN_CUDA_TWIN. The variable has the words driver=0,
// devices=N, seed=N (selects seeded streams), compute=N, shared_bytes=N, device_bytes=N, pinned_bytes=N.
Machine machine_of_environment();

struct Live {
  std::uint64_t allocations = 0, pinned = 0, registrations = 0, streams = 0, events = 0, graphs = 0;
  friend bool operator==(const Live&, const Live&) = default;
};

enum class Way : std::uint8_t { to_device, to_host, on_device, on_host };

struct Copies {
  std::uint64_t calls = 0;   // a batch counts as one call
  std::uint64_t copies = 0;  // copy descriptors
  std::uint64_t bytes = 0;
  std::uint64_t bytes_under_way = 0, max_under_way = 0;  // bytes that are submitted and not complete; their maximum
};

// The machine that CUDA calls of this process see while the object exists; at most one object at a time. Without an
// object, calls see machine_of_environment(). All counts begin at 0. The destructor completes all submitted work and
// frees all resources.
class CudaTwin {
 public:
  explicit CudaTwin(const Machine& machine = {});
  ~CudaTwin();
  CudaTwin(const CudaTwin&) = delete;
  CudaTwin& operator=(const CudaTwin&) = delete;

  // ---- faults ----
  // The nth call from now on returns `error` and has no effect (1: the next call). Calls that free memory still free
  // it. If `function` is not empty, only calls of this function count; the name of a kernel launch is cudaLaunchKernel.
  // sticky: all later calls return `error` too, and no more submitted work runs.
  void fail_call(std::uint64_t nth, cudaError_t error, std::string_view function = {}, bool sticky = false);
  // The nth work item that a stream runs from now on fails with a sticky error. Events do not count.
  void fail_work(std::uint64_t nth, cudaError_t error);

  // ---- observations ----
  std::uint64_t calls(std::string_view function = {}) const;       // empty: all functions
  std::uint64_t launches(std::string_view launcher) const;         // "gather_scatter" for launch_gather_scatter
  std::uint64_t urgent_launches(std::string_view launcher) const;  // of these, on streams with a high priority
  std::map<std::string, std::uint64_t> calls_by_name() const;
  Live live() const;
  Copies copies(Way way) const;                             // of copy engines, all functions
  Copies copies(Way way, std::string_view function) const;  // bytes_under_way is 0
  std::vector<std::string> violations() const;              // the first 100
  std::vector<std::string> hidden_syncs() const;            // the first 100
};

}  // namespace kvtwin::twin
