// Staged loads that fit into an area of GPU memory. The copy engine brings the pages into the area, in the host's
// layout, layer group by layer group. A kernel then lays out each group into the device pool.
//
// The pass that waits for a load queues this kernel on its own stream, before the layer that needs the group. So the
// kernel has the GPU, and does not wait for a matrix product of the pass that holds all SMs until its end. If no pass
// that waits for the load has begun when its bytes have landed, the load queues the kernels on a stream of its own.
//
//   load (host-to-device thread)    begin, then for each group: copies, add_group; finish or close
//   pass (compute thread)           begin_wait, then for each layer: lay_out; end_wait
//
// A load has finished when all its kernels are queued. Later work of the compute stream comes after them; other streams
// wait with wait_for_slot. The area is a ring: a load waits on the GPU for the kernels of the loads whose part it
// takes.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "impl/device/cuda/handles.hpp"
#include "impl/device/jobs.hpp"
#include "kernels/row_kernels.hpp"

namespace kvtwin {

struct CudaPools {
  KvShape shape;
  Layout host_layout = Layout::page_first;
  Pages device_pages = 0, host_pages = 0;
  std::byte* device = nullptr;
  std::byte* host = nullptr;         // address for the CPU and the copy engines
  std::byte* mapped_host = nullptr;  // address for kernels
};

class StagedLoads {
 public:
  // One load. Its members belong to StagedLoads.
  struct Load {
    struct Group {
      RowTransfer rows;
      CudaEvent copied, laid_out;
    };
    Pages first = 0, pages = 0;  // its part of the area
    std::vector<SlotId> slots;
    std::vector<std::unique_ptr<Group>> groups;
    std::size_t queued = 0;  // groups whose kernel is queued
    bool closed = false;     // no further kernel is queued
  };
  using LoadPtr = std::shared_ptr<Load>;

  StagedLoads(const CudaPools& pools, Pages area_pages);

  Pages area_pages() const { return area_pages_; }
  std::byte* area() const { return area_.data(); }

  // ---- the host-to-device thread
  // Takes a part of the area for a load into these slots. Returns null if they are more than the area has; then no
  // kernel uses the area any more when the stream's later work runs.
  LoadPtr begin(std::span<const SlotId> slots, const CudaStream& copying);
  // The copies of the next layers, up to `layer_end`, are queued on `copying`.
  void add_group(Load& load, std::uint32_t layer_begin, std::uint32_t layer_end, const CudaStream& copying);
  // Requires: the copies have landed. Waits until a pass that waits for `flight` has queued the kernels or has ended,
  // then queues the others on `own` and waits for them.
  void finish(const LoadPtr& load, const Flight& flight, const CudaStream& own, const LaunchLimits& limits);
  // Ends a load that was cancelled.
  void close(Load& load);

  // ---- the compute thread
  void begin_wait(const std::vector<FlightPtr>& gates);
  void end_wait();
  // Work that is queued on `compute` from now on finds the group in the device pool. Returns false if the load is
  // closed. Requires: the group was added.
  bool lay_out(Load& load, std::size_t group, const CudaStream& compute);

  // ---- any thread
  // Work that is queued on `stream` from now on finds finished loads in the slot.
  void wait_for_slot(SlotId slot, const CudaStream& stream);
  // Wakes finish(); the device stops.
  void stop();

  static Bytes gpu_bytes(const KvShape& shape, Pages area_pages);

 private:
  void queue_kernel(Load& load, const CudaStream& stream, const LaunchLimits& limits);
  void wait_for(const Load& load, const CudaStream& stream) const;

  const CudaPools pools_;
  const Pages area_pages_;
  GpuMemory area_;         // a pool of area_pages_ pages in the host's layout
  PinnedMemory indices_;   // [2][area_pages_] of std::int32_t: 0, 1, 2 ...; the slot of each page of the area
  GpuMemory gpu_indices_;  // the same

  std::mutex mutex_;  // for everything below, and for the members of loads
  std::condition_variable changed_;
  std::vector<LoadPtr> loads_;  // whose part of the area may be in use
  Pages next_ = 0;              // first page of the area behind the last load
  std::vector<FlightPtr> awaited_;
  bool stopped_ = false;
};

}  // namespace kvtwin
