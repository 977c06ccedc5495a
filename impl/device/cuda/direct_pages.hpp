// Pages from files into a GPU's pool without host memory (impl/disk/direct_pages.hpp). cuFile reads a slot of the disk
// tier into a staging buffer in GPU memory. For all pages that land together, one kernel copies the payloads into the
// pool, and another computes the checksums of the result.
//
//   threads --cuFileRead--> staging [buffers][header block | payload in the host's layout]
//   header blocks --copy--> host                        payload --relayout--> pool --gather + checksum--> staging, sums
//
// Thread: several threads read, because cuFile's calls block; everything else runs in the caller's thread, on a stream
// of its own.
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
  std::uint32_t threads = 8;  // threads that read
  int ordinal = 0;            // number of the GPU
  LaunchLimits limits;
};

class CudaDirectPages final : public DirectPages {
 public:
  // Errors: std::runtime_error if memory or a stream is not available.
  CudaDirectPages(const CudaDirectConfig& config, std::shared_ptr<CuFile> cufile);

  std::uint32_t buffers() const override { return config_.buffers; }
  std::unique_ptr<BlockQueue> queue() override;
  bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) override;
  bool land(std::span<Landing> pages) override;

  // Returns the bytes of the buffers.
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
  GpuMemory gpu_indices_;  // [2 * buffers] of std::int64_t: the numbers of buffers, then slots
  PinnedMemory headers_;   // [buffers] blocks
  PinnedMemory sums_, indices_;
  CudaStream stream_;  // declared after the memory that it uses
  CudaEvent done_;
};

}  // namespace kvtwin
