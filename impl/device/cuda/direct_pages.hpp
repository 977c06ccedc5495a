// Pages from files into a GPU's pool without host memory (impl/disk/direct_pages.hpp): cuFile reads a slot of the disk
// tier into a staging buffer in GPU memory, a kernel lays its payload out in the pool, another sums what lies there.
//
//   threads --cuFileRead--> staging [buffers][header block | payload in the host's layout]
//   header blocks --copy--> host                        payload --relayout--> pool --gather + checksum--> staging, sums
//
// Reading is several threads', for cuFile's calls wait; all else the caller's, on a stream of its own.
#pragma once

#include <memory>
#include <vector>

#include "impl/device/cuda/cufile.hpp"
#include "impl/device/cuda/handles.hpp"
#include "impl/disk/direct_pages.hpp"
#include "kernels/row_kernels.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

struct CudaDirectConfig {
  KvShape shape;
  Layout host_layout = Layout::page_first;
  Pages device_pages = 0;
  std::byte* device = nullptr;  // the pool, layer_first
  std::uint32_t buffers = 12;
  std::uint32_t threads = 8;  // that read
  int ordinal = 0;            // which GPU
  LaunchLimits limits;
};

class CudaDirectPages final : public DirectPages {
 public:
  // std::runtime_error if memory or a stream can't be had.
  CudaDirectPages(const CudaDirectConfig& config, std::shared_ptr<CuFile> cufile);

  std::uint32_t buffers() const override { return config_.buffers; }
  std::unique_ptr<BlockQueue> queue() override;
  bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) override;
  bool land(std::span<Landing> pages) override;

  // What its buffers take.
  static Bytes gpu_bytes(const CudaDirectConfig& config);

 private:
  void copy_headers(std::span<const std::uint32_t> buffers);
  void lay_out(std::span<const Landing> pages);
  void until_done();

  const CudaDirectConfig config_;
  const std::shared_ptr<CuFile> cufile_;
  const Bytes buffer_bytes_;
  GpuMemory staging_;      // [buffers] slots
  GpuMemory gpu_sums_;     // [buffers] of std::uint64_t
  GpuMemory gpu_indices_;  // [1 + buffers] of std::int64_t: 0, for a staging buffer is a pool of one page; then slots
  PinnedMemory headers_;   // [buffers] blocks
  PinnedMemory sums_, indices_;
  CudaStream stream_;  // goes before the memory that it works on
  CudaEvent done_;
};

}  // namespace kvtwin
