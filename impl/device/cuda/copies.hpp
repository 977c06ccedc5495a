// Copies in one direction between the device pool and the host pool, for all paths of a Plan. Thread: one.
//
//   copy_engine, boxes   descriptors in portions, so that at most the plan's window is in flight
//   kernel, ring         a kernel over the page index arrays, which are copied first in the same stream. If this GPU or
//                        these addresses do not fit a ring, the register kernel is used
//   staged               loads: the copy engine fills an area of GPU memory in the host's layout, and kernels lay the
//                        pages out (staged_loads.hpp). Backups, and loads that are larger than the area: the copy
//                        engine works on one of two buffers, while a kernel on a stream of its own works on the other
//                        one
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "impl/device/cuda/handles.hpp"
#include "impl/device/cuda/staged_loads.hpp"
#include "impl/device/jobs.hpp"
#include "kernels/copy_list.hpp"
#include "kernels/row_kernels.hpp"

namespace kvtwin {

class CudaCopies {
 public:
  struct Sizes {
    Bytes buffer = 0;  // size of each of the two staging buffers; at least one page is allocated
    Bytes area = 0;    // loads: size of the staging area, at most the device pool; at least the two buffers
    LaunchLimits kernel, ring;
  };
  // Requires: use_gpu() was called.
  CudaCopies(const CudaPools& pools, bool to_device, const Sizes& sizes);

  // Requires: called before the first queue() of a job.
  void begin(const TransferJob& job);
  // Queues the job's pages [first_page, first_page + pages), which are the pages of `runs`, in layers [layer_begin,
  // layer_end). Returns when the bytes in flight leave room for the next portions.
  void queue(const TransferJob& job, std::span<const PageRun> runs, std::size_t first_page, Pages pages,
             std::uint32_t layer_begin, std::uint32_t layer_end);
  // Returns the current job if it is a load into the area, else null. Its copies land in the area.
  const StagedLoads::LoadPtr& staged_load() const { return staged_load_; }
  // Returns null for backups and without staging.
  StagedLoads* staged_loads() { return staged_loads_ ? &*staged_loads_ : nullptr; }
  // Ends a load into the area. Requires: wait() was called.
  void lay_out_rest(const Flight& flight) { staged_loads_->finish(staged_load_, flight, relaying_, limits_); }

  // The event occurs when all queued copies have landed.
  void record(const CudaEvent& event) const { landing().record(event); }
  void until(const CudaEvent& event) const { landing().until(event); }
  // Waits until all queued copies have landed.
  void wait();
  // Waits until nothing is in flight. For the end after a failure.
  void drain() const {
    copying_.drain();
    relaying_.drain();
  }

  // Returns the number of jobs that were planned for a ring and used the register kernel.
  std::uint64_t rings_refused() const { return rings_refused_; }
  void forget_refusals() { rings_refused_ = 0; }

  static Bytes gpu_bytes(const CudaPools& pools, bool to_device, const Sizes& sizes);

 private:
  struct Portion {
    CudaEvent moved;
    Bytes bytes = 0;
  };

  const CudaStream& landing() const { return staged_ && to_device_ && !staged_load_ ? relaying_ : copying_; }
  void submit(CopyList& list, Bytes window);
  void make_room(Bytes bytes, Bytes window);
  void queue_descriptors(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin,
                         std::uint32_t layer_end);
  void queue_kernel(const TransferJob& job, std::size_t first_page, Pages pages, std::uint32_t layer_begin,
                    std::uint32_t layer_end);
  void queue_staged(const TransferJob& job, std::size_t first_page, Pages pages, std::uint32_t layer_begin,
                    std::uint32_t layer_end);
  // A part of memory that is a pool of pages in the host's layout.
  struct Buffer {
    std::byte* data = nullptr;
    Pages pages = 0, first = 0;  // of the pool; the first one to use
  };
  void copy_pages(const TransferJob& job, std::size_t first_page, Pages pages, const Buffer& buffer,
                  std::uint32_t layer_begin, std::uint32_t layer_end);
  RowTransfer rows(std::size_t first_page, Pages pages) const;

  const CudaPools pools_;
  const bool to_device_;
  const LaunchLimits limits_, ring_limits_;
  const Pages staging_pages_;

  PinnedMemory indices_;   // [2][device_pages] of std::int32_t: sources, targets
  GpuMemory gpu_indices_;  // the same for kernels, then the numbers 0, 1, 2 ... up to staging_pages_ - 1
  std::optional<StagedLoads> staged_loads_;
  GpuMemory buffers_;                    // memory of the two buffers, if there is no area, which then has them
  std::array<std::byte*, 2> staging_{};  // [staging_pages_] pages in the host's layout
  CudaStream copying_, relaying_;
  std::array<CudaEvent, 2> filled_, drained_;  // of each staging buffer
  CudaEvent end_;
  std::size_t next_buffer_ = 0;
  bool staged_ = false;  // whether the current job is staged
  StagedLoads::LoadPtr staged_load_;
  bool ring_refused_ = false;

  CopyList list_;
  std::vector<PageRun> runs_;
  std::vector<SlotId> staged_host_;  // host slots of the job, in the order of its runs
  std::deque<Portion> in_flight_;
  std::vector<CudaEvent> spare_;
  Bytes bytes_in_flight_ = 0;
  std::uint64_t rings_refused_ = 0;
};

}  // namespace kvtwin
