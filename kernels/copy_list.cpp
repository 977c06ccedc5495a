#include "kernels/copy_list.hpp"

namespace kvtwin {
namespace {

// CUDA 12.8 has one argument more than CUDA 13: the index of the failed copy.
using BatchPlain = cudaError_t (*)(void* const*, const void* const*, const std::size_t*, std::size_t,
                                   cudaMemcpyAttributes*, std::size_t*, std::size_t, cudaStream_t);
using BatchIndexed = cudaError_t (*)(void**, void**, std::size_t*, std::size_t, cudaMemcpyAttributes*, std::size_t*,
                                     std::size_t, std::size_t*, cudaStream_t);
using BoxesPlain = cudaError_t (*)(std::size_t, cudaMemcpy3DBatchOp*, unsigned long long, cudaStream_t);
using BoxesIndexed = cudaError_t (*)(std::size_t, cudaMemcpy3DBatchOp*, std::size_t*, unsigned long long, cudaStream_t);

struct Batch {
  void** targets;
  const void** sources;
  std::size_t* sizes;
  std::size_t count;
  cudaMemcpyAttributes* attributes;
};

[[maybe_unused]] cudaError_t call(BatchPlain function, const Batch& b, cudaStream_t stream) {
  std::size_t first = 0;
  return function(b.targets, b.sources, b.sizes, b.count, b.attributes, &first, 1, stream);
}
[[maybe_unused]] cudaError_t call(BatchIndexed function, const Batch& b, cudaStream_t stream) {
  std::size_t first = 0, failed = 0;
  return function(b.targets, const_cast<void**>(b.sources), b.sizes, b.count, b.attributes, &first, 1, &failed, stream);
}
[[maybe_unused]] cudaError_t call(BoxesPlain function, cudaMemcpy3DBatchOp* boxes, std::size_t count,
                                  cudaStream_t stream) {
  return function(count, boxes, 0, stream);
}
[[maybe_unused]] cudaError_t call(BoxesIndexed function, cudaMemcpy3DBatchOp* boxes, std::size_t count,
                                  cudaStream_t stream) {
  std::size_t failed = 0;
  return function(count, boxes, &failed, 0, stream);
}

// The copy engine may read host pages before the stream's earlier work ends, but not GPU memory, which kernels write.
cudaMemcpySrcAccessOrder order_of(bool to_device) {
  return to_device ? cudaMemcpySrcAccessOrderAny : cudaMemcpySrcAccessOrderStream;
}

cudaMemcpy3DOperand operand(std::byte* at, std::uint64_t pitch, std::uint64_t slice) {
  cudaMemcpy3DOperand o{};
  o.type = cudaMemcpyOperandTypePointer;
  o.op.ptr.ptr = at;
  o.op.ptr.rowLength = pitch;
  o.op.ptr.layerHeight = slice / pitch;
  return o;
}

}  // namespace

void CopyList::clear(bool to_device) {
  to_device_ = to_device;
  bytes_.clear();
  targets_.clear();
  sources_.clear();
  sizes_.clear();
  operations_.clear();
}

void CopyList::add_piece(std::byte* device, std::byte* host, std::uint64_t bytes) {
  targets_.push_back(to_device_ ? device : host);
  sources_.push_back(to_device_ ? host : device);
  sizes_.push_back(bytes);
  bytes_.push_back(bytes);
}

void CopyList::add_box(const Box& box, std::byte* device_pool, std::byte* host_pool) {
  const cudaMemcpy3DOperand device = operand(device_pool + box.device_at, box.device_pitch, box.device_slice);
  const cudaMemcpy3DOperand host = operand(host_pool + box.host_at, box.host_pitch, box.host_slice);
  cudaMemcpy3DBatchOp operation{};
  operation.src = to_device_ ? host : device;
  operation.dst = to_device_ ? device : host;
  operation.extent = {box.width, box.height, box.depth};
  operation.srcAccessOrder = order_of(to_device_);
  operations_.push_back(operation);
  bytes_.push_back(box.width * box.height * box.depth);
}

void CopyList::assign_pieces(const TransferParams& params) {
  clear(params.to_device);
  std::vector<PieceCopy> pieces;
  expand_pieces(params, pieces);
  for (const PieceCopy& piece : pieces) {
    add_piece(params.device + piece.device_at, params.host + piece.host_at, piece.bytes);
  }
}

void CopyList::assign_boxes(const TransferParams& params) {
  clear(params.to_device);
  std::vector<Box> boxes;
  expand_boxes(params, boxes);
  for (const Box& box : boxes) add_box(box, params.device, params.host);
}

void CopyList::assign_staged(const TransferParams& params, std::byte* staging, std::span<const StagedPages> runs) {
  clear(params.to_device);
  std::vector<Box> boxes;
  for (const StagedPages& run : runs) expand_staged(params, run, boxes);
  const bool whole = params.layer_begin == 0 && params.layer_end == params.shape.layers;
  for (const Box& box : boxes) {
    if (whole) {
      add_piece(staging + box.device_at, params.host + box.host_at, box.width);
    } else {
      add_box(box, staging, params.host);
    }
  }
}

cudaError_t CopyList::submit(std::size_t begin, std::size_t end, cudaStream_t stream) {
  if (stream == nullptr || begin > end || end > size()) return cudaErrorInvalidValue;
  if (begin == end) return cudaSuccess;
  if (!operations_.empty()) return call(&cudaMemcpy3DBatchAsync, operations_.data() + begin, end - begin, stream);
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = order_of(to_device_);
  const Batch batch{targets_.data() + begin, sources_.data() + begin, sizes_.data() + begin, end - begin, &attributes};
  return call(&cudaMemcpyBatchAsync, batch, stream);
}

cudaError_t CopyList::submit_one_by_one(std::size_t begin, std::size_t end, cudaStream_t stream) const {
  if (begin > end || end > targets_.size()) return cudaErrorInvalidValue;
  const cudaMemcpyKind kind = to_device_ ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  for (std::size_t i = begin; i < end; ++i) {
    const cudaError_t error = cudaMemcpyAsync(targets_[i], sources_[i], sizes_[i], kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace kvtwin
