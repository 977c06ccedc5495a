// What a GPU's copy engines are given for one transfer: descriptors of pieces or boxes (transfer.hpp), submitted in
// portions, so that what is under way can be bounded. Compiled with CUDA only; the CPU twins are copy_pieces and
// copy_boxes, which carry out the same lists.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/transfer.hpp"

namespace kvtwin {

class CopyList {
 public:
  // params.device: GPU memory; params.host: page-locked memory. Both pools, and none of params.runs, are used by
  // submit(). A source on the host must be settled: nothing writes to it any more when submit() is called.
  void assign_pieces(const TransferParams& params);
  void assign_boxes(const TransferParams& params);
  // Between a staging buffer, params.host's layout in GPU memory, and the host pool: see expand_staged. Several runs of
  // pages, if need be.
  void assign_staged(const TransferParams& params, std::byte* staging, std::span<const StagedPages> runs);

  std::size_t size() const { return bytes_.size(); }
  std::uint64_t bytes(std::size_t copy) const { return bytes_[copy]; }

  // Copies [begin, end), after what the stream has had before; the source of a copy to the host may still be written
  // to by that. Returns at once. cudaErrorInvalidValue: the null stream, which batches don't take, or no such copies.
  cudaError_t submit(std::size_t begin, std::size_t end, cudaStream_t stream);

  // The same by a cudaMemcpyAsync a piece, the usual way, to compare with; pieces only.
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
