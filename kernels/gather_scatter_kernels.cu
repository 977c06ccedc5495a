// Copies between the pools, in both directions, and between two places in GPU memory.
#include "kernels/gather_scatter.cuh"

namespace kvtwin {

cudaError_t launch_gather_scatter(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (gather::refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  return t.to_device ? gather::launch<true, gather::Extra::none>(t, nullptr, limits, stream)
                     : gather::launch<false, gather::Extra::none>(t, nullptr, limits, stream);
}

cudaError_t launch_relayout(const RowTransfer& t, const LaunchLimits& limits, cudaStream_t stream) {
  if (gather::refused(t, limits)) return cudaErrorInvalidValue;
  if (empty(t)) return cudaSuccess;
  return gather::launch<false, gather::Extra::none>(t, nullptr, limits, stream);
}

}  // namespace kvtwin
