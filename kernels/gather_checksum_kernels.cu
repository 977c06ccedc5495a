// Copies from the device pool that compute the checksums of the pages in the same pass.
#include "kernels/gather_scatter.cuh"

namespace kvtwin {

cudaError_t launch_gather_checksum(const RowTransfer& t, std::uint64_t* checksums, const LaunchLimits& limits,
                                   cudaStream_t stream) {
  if (gather::refused(t, limits) || t.to_device || (t.count > 0 && checksums == nullptr)) return cudaErrorInvalidValue;
  if (t.count == 0) return cudaSuccess;
  const cudaError_t zeroed = cudaMemsetAsync(checksums, 0, t.count * sizeof *checksums, stream);
  if (zeroed != cudaSuccess || empty(t)) return zeroed;
  return gather::launch<false, gather::Extra::checksum>(t, checksums, limits, stream);
}

}  // namespace kvtwin
