// The launchers of kernels/context_kernels.hpp for the CUDA twin. They call the CPU twins of kernels/context.hpp.
#include "kernels/context_kernels.hpp"
#include "tests/cuda_twin/runtime.hpp"

namespace kvtwin {
namespace {

using twin::Reach;

// Returns true if the GPU can access the step, its page list and all pages. Called when the work runs. Ignores pages
// outside the pool.
bool holds_pages(const Reach& reach, const ContextPages& p) {
  if (!reach.holds(p.step, sizeof *p.step)) return false;
  const ContextStep& step = *p.step;
  if (step.count > 0 && !reach.holds(step.pages, step.count * sizeof *step.pages)) return false;
  const std::uint64_t bytes = p.shape.row_bytes() * p.shape.page_tokens;
  for (ContextBlocks at(0, 1, p.shape.planes); at.page < step.count; at.next()) {
    const ContextPage& page = step.pages[at.page];
    if (in_pool(p, page) && !reach.holds(context_block(p, page, at.plane), bytes)) return false;
  }
  return true;
}

}  // namespace

cudaError_t launch_context_step(const ContextStep& step, ContextStep* place, cudaStream_t stream) {
  if (place == nullptr || (step.count > 0 && (step.pages == nullptr || step.folds == nullptr))) {
    return cudaErrorInvalidValue;
  }
  return twin::launch("context_step", stream, [step, place](const Reach& reach) {
    if (!reach.holds(place, sizeof *place)) return false;
    *place = step;
    return true;
  });
}

cudaError_t launch_read_context(const ContextPages& p, ContextFaults* faults, const LaunchLimits& limits,
                                cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0 || faults == nullptr) return cudaErrorInvalidValue;
  return twin::launch("read_context", stream, [p, faults](const Reach& reach) {
    if (!holds_pages(reach, p) || !reach.holds(faults, sizeof *faults)) return false;
    const std::uint64_t folds = std::uint64_t{p.step->count} * p.shape.planes * kContextFolds;
    if (folds > 0 && !reach.holds(p.step->folds, folds * sizeof *p.step->folds)) return false;
    read_context(p, *faults);
    return true;
  });
}

cudaError_t launch_write_context(const ContextPages& p, const LaunchLimits& limits, cudaStream_t stream) {
  if (!valid(p) || limits.ctas == 0) return cudaErrorInvalidValue;
  return twin::launch("write_context", stream, [p](const Reach& reach) {
    if (!holds_pages(reach, p)) return false;
    write_context(p);
    return true;
  });
}

}  // namespace kvtwin
