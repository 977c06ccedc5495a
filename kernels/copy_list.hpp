// The descriptors of one transfer for a GPU's copy engines: pieces or boxes (transfer.hpp). They are submitted in
// portions, so that the caller can limit the bytes in flight. Only for builds with CUDA; the CPU twins copy_pieces and
// copy_boxes execute the same lists.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/transfer.hpp"

namespace kvtwin {

class CopyList {
 public:
  // Requires: params.device is GPU memory; params.host is page-locked memory. When submit() is called, nothing writes
  // to host sources any more. submit() uses both pools, but not params.runs.
  void assign_pieces(const TransferParams& params);
  void assign_boxes(const TransferParams& params);
  // Copies between the host pool and a staging buffer in GPU memory, which has params.host_layout; see expand_staged.
  // Accepts several runs of pages.
  void assign_staged(const TransferParams& params, std::byte* staging, std::span<const StagedPages> runs);

  std::size_t size() const { return bytes_.size(); }
  std::uint64_t bytes(std::size_t copy) const { return bytes_[copy]; }

  // Submits the copies [begin, end) after earlier work of the stream, and returns at once. Earlier work of the stream
  // may still write to the source of a copy to the host.
  // Returns: cudaErrorInvalidValue for the null stream, which batches do not support, or for copies out of range.
  cudaError_t submit(std::size_t begin, std::size_t end, cudaStream_t stream);

  // The same with one cudaMemcpyAsync per piece, for comparisons. Requires: pieces.
  cudaError_t submit_one_by_one(std::size_t begin, std::size_t end, cudaStream_t stream) const;

 private:
  void clear(bool to_device);
  void add_piece(std::byte* device, std::byte* host, std::uint64_t bytes);
  void add_box(const Box& box, std::byte* device_pool, std::byte* host_pool);

  bool to_device_ = true;
  std::vector<std::uint64_t> bytes_;
  // pieces
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<std::size_t> sizes_;
  // boxes
  std::vector<cudaMemcpy3DBatchOp> operations_;
};

}  // namespace kvtwin
