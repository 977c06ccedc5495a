// The launchers of kernels/context_kernels.hpp for the CUDA twin. They call the CPU twins of kernels/context.hpp.
#include "kernels/context_kernels.hpp"
#include "tests/cuda_twin/runtime.hpp"

namespace kvtwin {
namespace {

using twin::Reach;

// Returns true if the GPU can access the page list and all pages. Called when the work runs. Ignores pages outside the
// pool.
bool holds_pages(const Reach& reach, const ContextPages& p) {
  if (!reach.holds(p.pages, p.count * sizeof *p.pages)) return false;
  const std::uint64_t bytes = p.shape.row_bytes() * p.shape.page_tokens;
  for (std::uint64_t block = 0; block < p.count * p.shape.planes; ++block) {
    const std::byte* at = context_block(p, block);
    if (at != nullptr && !reach.holds(at, bytes)) return false;
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
  return twin::launch("read_context", stream, [p, query, scores, faults](const Reach& reach) {
    if (!holds_pages(reach, p) || !reach.holds(faults, sizeof *faults)) return false;
    if (query != nullptr &&
        (!reach.holds(query, p.shape.row_bytes()) || !reach.holds(scores, p.count * p.shape.planes * sizeof *scores))) {
      return false;
    }
    read_context(p, query, scores, *faults);
    return true;
  });
}

cudaError_t launch_write_context(const ContextPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0) return cudaErrorInvalidValue;
  if (p.count == 0) return cudaSuccess;
  return twin::launch("write_context", stream, [p](const Reach& reach) {
    if (!holds_pages(reach, p)) return false;
    write_context(p);
    return true;
  });
}

}  // namespace kvtwin
