// One direction's copies between the device pool and the host pool, by any of a Plan's paths. One thread.
//
//   copy_engine, boxes   descriptors in portions, so that no more than the plan's window is under way
//   kernel, ring         over the pages' index arrays, which go ahead in the same stream; a ring that this GPU or these
//                        addresses don't take is a kernel
//   staged               pages, or layers of them, by the copy engine into one of two buffers of GPU memory, in the
//                        host's layout, while a kernel on a stream of its own lays out the other's; backups the other
//                        way round
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "impl/device/cuda/handles.hpp"
#include "impl/device/jobs.hpp"
#include "kernels/copy_list.hpp"
#include "kernels/row_kernels.hpp"

namespace kvtwin {

struct CudaPools {
  KvShape shape;
  Layout host_layout = Layout::page_first;
  Pages device_pages = 0, host_pages = 0;
  std::byte* device = nullptr;
  std::byte* host = nullptr;         // as the CPU and copy engines know it
  std::byte* mapped_host = nullptr;  // as kernels know it
};

class CudaCopies {
 public:
  // `staging_bytes`: of each of the two buffers; room for a page at least. Not before use_gpu().
  CudaCopies(const CudaPools& pools, bool to_device, Bytes staging_bytes, LaunchLimits limits);

  // Before the first queue() of a job.
  void begin(const TransferJob& job);
  // Queues pages [first_page, first_page + pages) of the job, which are those of `runs`, in layers [layer_begin,
  // layer_end). Returns when so little is under way that the next portions may follow.
  void queue(const TransferJob& job, std::span<const PageRun> runs, std::size_t first_page, Pages pages,
             std::uint32_t layer_begin, std::uint32_t layer_end);
  // Comes when all that was queued has landed.
  void record(const CudaEvent& event) const { landing().record(event); }
  void until(const CudaEvent& event) const { landing().until(event); }
  // Until all that was queued has landed.
  void wait();
  // Until nothing is under way; for who gives up.
  void drain() const {
    copying_.drain();
    relaying_.drain();
  }

  // Jobs by a kernel that were planned for a ring.
  std::uint64_t rings_refused() const { return rings_refused_; }

  static Bytes gpu_bytes(const KvShape& shape, Pages device_pages, Bytes staging_bytes);

 private:
  struct Portion {
    CudaEvent moved;
    Bytes bytes = 0;
  };

  const CudaStream& landing() const { return staged_ && to_device_ ? relaying_ : copying_; }
  void submit(CopyList& list, Bytes window);
  void make_room(Bytes bytes, Bytes window);
  void queue_descriptors(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin,
                         std::uint32_t layer_end);
  void queue_kernel(const TransferJob& job, std::size_t first_page, Pages pages, std::uint32_t layer_begin,
                    std::uint32_t layer_end);
  void queue_staged(const TransferJob& job, std::size_t first_page, Pages pages, std::uint32_t layer_begin,
                    std::uint32_t layer_end);
  void copy_pages(const TransferJob& job, std::size_t first_page, Pages pages, std::byte* buffer,
                  std::uint32_t layer_begin, std::uint32_t layer_end);
  RowTransfer rows(std::size_t first_page, Pages pages) const;

  const CudaPools pools_;
  const bool to_device_;
  const LaunchLimits limits_;
  const Pages staging_pages_;

  PinnedMemory indices_;   // [2][device_pages] of std::int32_t: sources, targets ...
  GpuMemory gpu_indices_;  // ... and the same for kernels, then the numbers 0, 1, 2 ... of staging_pages_
  GpuMemory staging_[2];   // [staging_pages_] pages in the host's layout
  CudaStream copying_, relaying_;
  std::array<CudaEvent, 2> filled_, drained_;  // of each staging buffer
  CudaEvent end_;
  std::size_t next_buffer_ = 0;
  bool staged_ = false;  // the job under way
  bool ring_refused_ = false;

  CopyList list_;
  std::vector<PageRun> runs_;
  std::vector<SlotId> staged_host_;  // the job's host slots, in the order of its runs
  std::deque<Portion> under_way_;
  std::vector<CudaEvent> spare_;
  Bytes bytes_under_way_ = 0;
  std::uint64_t rings_refused_ = 0;
};

}  // namespace kvtwin
