// The launchers of kernels/context_kernels.hpp, by the CPU twins. The page list is read when the work runs.
#include "kernels/context_kernels.hpp"

#include "tests/cuda_twin/runtime.hpp"

namespace kvtwin {
namespace {

bool holds_pages(const twin::Reach& reach, const ContextPages& p) {
  if (!reach.holds(p.pages, p.count * sizeof *p.pages)) return false;
  const std::uint64_t block_bytes = p.shape.row_bytes() * p.shape.page_tokens;
  for (std::uint64_t number = 0; number < p.count * p.shape.planes; ++number) {
    const std::byte* block = context_block(p, number);
    if (block != nullptr && !reach.holds(block, block_bytes)) return false;
  }
  return true;
}

}  // namespace

cudaError_t launch_read_context(const ContextPages& p, const std::byte* query, float* scores, ContextFaults* faults,
                                const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0 || faults == nullptr || (query == nullptr) != (scores == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.count == 0) return cudaSuccess;
  return twin::launch("read_context", stream, [=](const twin::Reach& reach) {
    const bool scored = query == nullptr || (reach.holds(query, p.shape.row_bytes()) &&
                                             reach.holds(scores, p.count * p.shape.planes * sizeof *scores));
    if (!scored || !reach.holds(faults, sizeof *faults) || !holds_pages(reach, p)) return false;
    read_context(p, query, scores, *faults);
    return true;
  });
}

cudaError_t launch_write_context(const ContextPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0) return cudaErrorInvalidValue;
  if (p.count == 0) return cudaSuccess;
  return twin::launch("write_context", stream, [p](const twin::Reach& reach) {
    if (!holds_pages(reach, p)) return false;
    write_context(p);
    return true;
  });
}

}  // namespace kvtwin
