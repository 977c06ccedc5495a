#include "impl/device/cuda/copies.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

Pages staging_pages(const KvShape& shape, Bytes staging_bytes) {
  return std::max<Bytes>(1, staging_bytes / shape.page_bytes());
}

Pages buffer_pages(const CudaPools& pools, const CudaCopies::Sizes& sizes) {
  return pools.host_pages == 0 ? 0 : staging_pages(pools.shape, sizes.buffer);
}

// Returns 0 if there is no area. In layer_first no page is staged.
Pages area_pages(const CudaPools& pools, bool to_device, const CudaCopies::Sizes& sizes) {
  if (!to_device || pools.host_pages == 0 || pools.host_layout == Layout::layer_first) return 0;
  const Pages pages = std::min(sizes.area / pools.shape.page_bytes(), pools.device_pages);
  return std::max(pages, 2 * buffer_pages(pools, sizes));
}

// Appends parts of the runs; each part has at most `max_pages` pages.
void split(std::span<const PageRun> runs, Pages max_pages, std::vector<PageRun>& parts) {
  for (PageRun run : runs) {
    while (run.pages > max_pages) {
      const auto part = static_cast<std::uint32_t>(max_pages);
      parts.push_back({run.source_first, run.target_first, part});
      run = {run.source_first + part, run.target_first + part, run.pages - part};
    }
    parts.push_back(run);
  }
}

}  // namespace

CudaCopies::CudaCopies(const CudaPools& pools, bool to_device, const Sizes& sizes)
    : pools_(pools),
      to_device_(to_device),
      limits_(sizes.kernel),
      ring_limits_(sizes.ring),
      staging_pages_(buffer_pages(pools, sizes)),
      indices_(std::max(2 * pools.device_pages, staging_pages_) * sizeof(std::int32_t), "page indices"),
      gpu_indices_((2 * pools.device_pages + staging_pages_) * sizeof(std::int32_t), "page indices"),
      copying_(to_device ? "host-to-device stream" : "device-to-host stream", true),
      relaying_(to_device ? "relayout stream of loads" : "relayout stream of backups", true) {
  if (staging_pages_ == 0) return;
  const Bytes buffer = staging_pages_ * pools.shape.page_bytes();
  if (const Pages area = area_pages(pools, to_device, sizes); area > 0) {
    staged_loads_.emplace(pools, area);
    staging_ = {staged_loads_->area(), staged_loads_->area() + buffer};
  } else {
    buffers_ = GpuMemory(2 * buffer, "staging buffers");
    staging_ = {buffers_.data(), buffers_.data() + buffer};
  }
  auto* numbers = reinterpret_cast<std::int32_t*>(indices_.data());
  std::iota(numbers, numbers + staging_pages_, 0);
  copying_.must(cudaMemcpyAsync(gpu_indices_.data() + 2 * pools.device_pages * sizeof(std::int32_t), numbers,
                                staging_pages_ * sizeof(std::int32_t), cudaMemcpyHostToDevice, copying_.get()),
                "cudaMemcpyAsync");
  wait();
}

Bytes CudaCopies::gpu_bytes(const CudaPools& pools, bool to_device, const Sizes& sizes) {
  const Pages pages = buffer_pages(pools, sizes), area = area_pages(pools, to_device, sizes);
  return (area > 0 ? StagedLoads::gpu_bytes(pools.shape, area) : 2 * pages * pools.shape.page_bytes()) +
         (2 * pools.device_pages + pages) * sizeof(std::int32_t);
}

void CudaCopies::begin(const TransferJob& job) {
  const TransferPath path = job.plan.path;
  staged_ = path == TransferPath::staged;
  staged_load_.reset();
  ring_refused_ = false;
  if (path == TransferPath::copy_engine || path == TransferPath::boxes || job.pages.empty()) return;
  KV_CHECK(job.pages.size() <= pools_.device_pages, "a transfer has no page of the device twice");
  const std::size_t count = job.pages.size();
  auto* source = reinterpret_cast<std::int32_t*>(indices_.data());
  auto* target = source + count;
  staged_host_.clear();
  for (const PageRun& run : job.runs) {  // ascending, as the copies of a run: descending pages stay together
    for (std::uint32_t i = 0; i < run.pages; ++i) {
      *source++ = static_cast<std::int32_t>(run.source_first + i);
      *target++ = static_cast<std::int32_t>(run.target_first + i);
      if (staged_) staged_host_.push_back((to_device_ ? run.source_first : run.target_first) + i);
    }
  }
  if (staged_ && staged_loads_) {
    const auto* const slots = reinterpret_cast<const std::int32_t*>(indices_.data()) + count;
    staged_load_ = staged_loads_->begin(std::vector<SlotId>(slots, slots + count), copying_);
    if (staged_load_) return;
    copying_.record(end_);  // the buffers are in the area
    relaying_.wait_for(end_);
  }
  // The stream whose kernels read the indices.
  const CudaStream& stream = staged_ ? relaying_ : copying_;
  for (std::size_t side = 0; side < 2; ++side) {
    const Bytes bytes = count * sizeof(std::int32_t);
    stream.must(cudaMemcpyAsync(gpu_indices_.data() + side * pools_.device_pages * sizeof(std::int32_t),
                                indices_.data() + side * bytes, bytes, cudaMemcpyHostToDevice, stream.get()),
                "cudaMemcpyAsync");
  }
}

void CudaCopies::queue(const TransferJob& job, std::span<const PageRun> runs, std::size_t first_page, Pages pages,
                       std::uint32_t layer_begin, std::uint32_t layer_end) {
  switch (job.plan.path) {
    case TransferPath::copy_engine:
    case TransferPath::boxes: return queue_descriptors(job, runs, layer_begin, layer_end);
    case TransferPath::kernel:
    case TransferPath::ring: return queue_kernel(job, first_page, pages, layer_begin, layer_end);
    case TransferPath::staged: return queue_staged(job, first_page, pages, layer_begin, layer_end);
  }
}

void CudaCopies::wait() {
  // If a backup was cancelled before its first page, the copies of the indices may still be in flight.
  if (staged_ && !to_device_) {
    relaying_.record(end_);
    copying_.wait_for(end_);
  }
  landing().record(end_);
  landing().until(end_);
  for (Portion& portion : in_flight_) spare_.push_back(std::move(portion.moved));
  in_flight_.clear();
  bytes_in_flight_ = 0;
}

// ---- descriptors ---------------------------------------------------------------------------------------------

// Waits until the copy engine can take `bytes` more bytes. A portion larger than the window is submitted alone.
void CudaCopies::make_room(Bytes bytes, Bytes window) {
  while (!in_flight_.empty() && bytes_in_flight_ + bytes > window) {
    copying_.until(in_flight_.front().moved);
    bytes_in_flight_ -= in_flight_.front().bytes;
    spare_.push_back(std::move(in_flight_.front().moved));
    in_flight_.pop_front();
  }
}

void CudaCopies::submit(CopyList& list, Bytes window) {
  for (std::size_t begin = 0; begin < list.size();) {
    std::size_t end = begin;
    Bytes bytes = 0;
    while (end < list.size() && (end == begin || window == 0 || bytes + list.bytes(end) <= window / kWindowPortions)) {
      bytes += list.bytes(end++);
    }
    if (window != 0) make_room(bytes, window);
    copying_.must(list.submit(begin, end, copying_.get()), "cudaMemcpyBatchAsync");
    if (window != 0) {
      if (spare_.empty()) spare_.emplace_back();
      in_flight_.push_back({std::move(spare_.back()), bytes});
      spare_.pop_back();
      bytes_in_flight_ += bytes;
      copying_.record(in_flight_.back().moved);
    }
    begin = end;
  }
}

void CudaCopies::queue_descriptors(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin,
                                   std::uint32_t layer_end) {
  TransferParams params;
  params.shape = pools_.shape;
  params.device = pools_.device;
  params.device_pages = pools_.device_pages;
  params.host = pools_.host;
  params.host_pages = pools_.host_pages;
  params.host_layout = pools_.host_layout;
  params.to_device = to_device_;
  params.layer_begin = layer_begin;
  params.layer_end = layer_end;
  const bool boxes = job.plan.path == TransferPath::boxes;
  runs_.clear();
  if (job.plan.window == 0) {
    split(runs, UINT32_MAX, runs_);
  } else {
    // A descriptor can cover a whole run, so runs are split to the size of a portion.
    const PieceGrid grid = piece_grid(pools_.host_layout, pools_.shape, pools_.device_pages, pools_.host_pages);
    const Bytes page =
        boxes ? pools_.shape.page_bytes() / pools_.shape.layers * (layer_end - layer_begin) : grid.piece_bytes;
    split(runs, std::max<Bytes>(1, job.plan.window / kWindowPortions / page), runs_);
  }
  params.runs = runs_.data();
  params.run_count = runs_.size();
  boxes ? list_.assign_boxes(params) : list_.assign_pieces(params);
  submit(list_, job.plan.window);
}

// ---- kernels -------------------------------------------------------------------------------------------------

RowTransfer CudaCopies::rows(std::size_t first_page, Pages pages) const {
  RowTransfer rows;
  rows.shape = pools_.shape;
  rows.device = pools_.device;
  rows.device_pages = pools_.device_pages;
  rows.host = pools_.mapped_host;
  rows.host_pages = pools_.host_pages;
  rows.host_layout = pools_.host_layout;
  rows.to_device = to_device_;
  const auto* indices = reinterpret_cast<const std::int32_t*>(gpu_indices_.data());
  rows.source_pages = indices + first_page;
  rows.target_pages = indices + pools_.device_pages + first_page;
  rows.index_type = IndexType::int32;
  rows.count = pages;
  rows.layer_end = pools_.shape.layers;
  return rows;
}

void CudaCopies::queue_kernel(const TransferJob& job, std::size_t first_page, Pages pages, std::uint32_t layer_begin,
                              std::uint32_t layer_end) {
  RowTransfer transfer = rows(first_page, pages);
  transfer.layer_begin = layer_begin;
  transfer.layer_end = layer_end;
  if (job.plan.path == TransferPath::ring && !ring_refused_) {
    const cudaError_t error = ring_fits(transfer) ? launch_ring(transfer, ring_limits_, copying_.get())  //
                                                  : cudaErrorNotSupported;
    if (error != cudaErrorNotSupported) return copying_.must(error, "the ring kernel's launch");
    ring_refused_ = true;
    ++rings_refused_;
  }
  copying_.must(launch_gather_scatter(transfer, limits_, copying_.get()), "the copy kernel's launch");
}

// ---- staging -------------------------------------------------------------------------------------------------

// Copies between `buffer`, where the pages are contiguous, and the host pool.
void CudaCopies::copy_pages(const TransferJob& job, std::size_t first_page, Pages pages, const Buffer& buffer,
                            std::uint32_t layer_begin, std::uint32_t layer_end) {
  std::vector<SlotId> staged(pages);
  std::iota(staged.begin(), staged.end(), static_cast<SlotId>(buffer.first));
  join_runs(std::span(staged_host_).subspan(first_page, pages), staged, runs_);
  std::vector<StagedPages> together;
  for (const PageRun& run : runs_) {
    together.push_back({.pages = run.pages,
                        .staging_first = run.target_first,
                        .staging_pages = buffer.pages,
                        .host_first = run.source_first,
                        .host_pages = pools_.host_pages});
  }
  TransferParams params;
  params.shape = pools_.shape;
  params.host = pools_.host;
  params.host_layout = pools_.host_layout;
  params.to_device = to_device_;
  params.layer_begin = layer_begin;
  params.layer_end = layer_end;
  list_.assign_staged(params, buffer.data, together);
  submit(list_, job.plan.window);
}

void CudaCopies::queue_staged(const TransferJob& job, std::size_t first_page, Pages pages, std::uint32_t layer_begin,
                              std::uint32_t layer_end) {
  KV_CHECK(pools_.host_layout != Layout::layer_first, "a staged page lies together on the host");
  if (staged_load_) {
    const Buffer part{staged_loads_->area(), staged_loads_->area_pages(), staged_load_->first};
    copy_pages(job, first_page, pages, part, layer_begin, layer_end);
    return staged_loads_->add_group(*staged_load_, layer_begin, layer_end, copying_);
  }
  const auto* numbers = reinterpret_cast<const std::int32_t*>(gpu_indices_.data()) + 2 * pools_.device_pages;
  for (Pages done = 0; done < pages; done += staging_pages_) {
    const std::size_t buffer = next_buffer_;
    next_buffer_ = 1 - next_buffer_;
    RowTransfer transfer = rows(first_page + done, std::min(staging_pages_, pages - done));
    transfer.host = staging_[buffer];
    transfer.host_pages = staging_pages_;
    transfer.layer_begin = layer_begin;
    transfer.layer_end = layer_end;
    (to_device_ ? transfer.source_pages : transfer.target_pages) = numbers;
    // A wait for an event that was never recorded returns at once, so each buffer is free at first.
    if (to_device_) {
      copying_.wait_for(drained_[buffer]);
      copy_pages(job, first_page + done, transfer.count, {staging_[buffer], staging_pages_}, layer_begin, layer_end);
      copying_.record(filled_[buffer]);
      relaying_.wait_for(filled_[buffer]);
      relaying_.must(launch_relayout(transfer, limits_, relaying_.get()), "the relayout kernel's launch");
      relaying_.record(drained_[buffer]);
    } else {
      relaying_.wait_for(drained_[buffer]);
      relaying_.must(launch_relayout(transfer, limits_, relaying_.get()), "the relayout kernel's launch");
      relaying_.record(filled_[buffer]);
      copying_.wait_for(filled_[buffer]);
      copy_pages(job, first_page + done, transfer.count, {staging_[buffer], staging_pages_}, layer_begin, layer_end);
      copying_.record(drained_[buffer]);
    }
  }
}

}  // namespace kvtwin
