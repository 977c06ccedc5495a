#include "impl/device/cuda/direct_pages.hpp"

#include <algorithm>
#include <cstring>

#include "impl/device/cuda/cufile_queue.hpp"
#include "impl/device/cuda/profiler_range.hpp"
#include "impl/disk/slot_format.hpp"

namespace kvtwin {
namespace {

// Selects the GPU before the members are constructed.
const CudaDirectConfig& on_its_gpu(const CudaDirectConfig& config) {
  use_gpu(config.ordinal);
  return config;
}

Bytes slot_of(const CudaDirectConfig& config) { return slot_bytes({config.shape, config.host_layout}); }

}  // namespace

CudaDirectPages::CudaDirectPages(const CudaDirectConfig& config, std::shared_ptr<CuFile> cufile)
    : config_(on_its_gpu(config)),
      cufile_(std::move(cufile)),
      buffer_bytes_(slot_of(config)),
      staging_(config.buffers * buffer_bytes_, "pages from the disk"),
      gpu_sums_(config.buffers * sizeof(std::uint64_t), "checksums of pages from the disk"),
      gpu_indices_(2 * config.buffers * sizeof(std::int64_t), "slots of pages from the disk"),
      headers_(config.buffers * kBlockBytes, "headers of pages from the disk"),
      sums_(gpu_sums_.bytes(), "checksums of pages from the disk"),
      indices_(gpu_indices_.bytes(), "slots of pages from the disk"),
      stream_("direct storage stream", false) {}

Bytes CudaDirectPages::gpu_bytes(const CudaDirectConfig& config) {
  return config.buffers * (slot_of(config) + sizeof(std::uint64_t) + 2 * sizeof(std::int64_t));
}

std::unique_ptr<BlockQueue> CudaDirectPages::queue() {
  return make_cufile_queue(cufile_, {staging_.data(), buffer_bytes_, config_.buffers},
                           std::clamp(config_.threads, 1U, config_.buffers), config_.ordinal);
}

void CudaDirectPages::until_done() {
  stream_.record(done_);
  stream_.until(done_);
}

bool CudaDirectPages::read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) {
  try {
    use_gpu(config_.ordinal);
    copy_headers(buffers);
    until_done();
  } catch (const CudaError&) {  // the device's own calls report the fault of the GPU
    stream_.drain();            // queued work must not reach buffers and slots that others use later
    return false;
  }
  std::memcpy(blocks.data(), headers_.data(), buffers.size() * kBlockBytes);
  return true;
}

void CudaDirectPages::copy_headers(std::span<const std::uint32_t> buffers) {
  std::byte* to = headers_.data();
  for (const std::uint32_t buffer : buffers) {
    stream_.must(cudaMemcpyAsync(to, staging_.data() + buffer * buffer_bytes_, kBlockBytes, cudaMemcpyDeviceToHost,
                                 stream_.get()),
                 "cudaMemcpyAsync");
    to += kBlockBytes;
  }
}

bool CudaDirectPages::land(std::span<Landing> pages) {
  const ProfilerRange range("cuFile pages", pages.size());
  try {
    use_gpu(config_.ordinal);
    lay_out(pages);
    until_done();
  } catch (const CudaError&) {
    stream_.drain();
    return false;
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::memcpy(&pages[i].sum, sums_.data() + i * sizeof(std::uint64_t), sizeof(std::uint64_t));
  }
  return true;
}

void CudaDirectPages::lay_out(std::span<const Landing> pages) {
  auto* const indices = reinterpret_cast<std::int64_t*>(indices_.data());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    indices[i] = static_cast<std::int64_t>(pages[i].buffer);
    indices[pages.size() + i] = static_cast<std::int64_t>(pages[i].slot);
  }
  stream_.must(cudaMemcpyAsync(gpu_indices_.data(), indices, 2 * pages.size() * sizeof(std::int64_t),
                               cudaMemcpyHostToDevice, stream_.get()),
               "cudaMemcpyAsync");
  const auto* const in_staging = reinterpret_cast<const std::int64_t*>(gpu_indices_.data());
  const std::int64_t* const in_pool = in_staging + pages.size();
  RowTransfer rows;
  rows.shape = config_.shape;
  rows.device = config_.device;
  rows.device_pages = config_.device_pages;
  rows.host = staging_.data() + kBlockBytes;
  rows.host_pages = config_.buffers;
  rows.host_page_stride = buffer_bytes_;
  rows.host_layout = config_.host_layout;
  rows.count = pages.size();
  rows.layer_end = config_.shape.layers;
  rows.source_pages = in_staging;
  rows.target_pages = in_pool;
  stream_.must(launch_relayout(rows, config_.limits, stream_.get()), "launch_relayout");
  // Gathers the pages back into their staging buffers. Only the checksums are needed.
  rows.to_device = false;
  rows.source_pages = in_pool;
  rows.target_pages = in_staging;
  auto* const sums = reinterpret_cast<std::uint64_t*>(gpu_sums_.data());
  stream_.must(launch_gather_checksum(rows, sums, config_.limits, stream_.get()), "launch_gather_checksum");
  stream_.must(
      cudaMemcpyAsync(sums_.data(), sums, pages.size() * sizeof(std::uint64_t), cudaMemcpyDeviceToHost, stream_.get()),
      "cudaMemcpyAsync");
}

}  // namespace kvtwin
