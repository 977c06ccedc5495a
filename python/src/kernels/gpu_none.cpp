// A build without CUDA. kvtwin_kernels refuses GPU memory before it calls one of these functions.
#include <stdexcept>

#include "python/src/kernels/calls.hpp"

namespace kvtwin::python {
namespace {

[[noreturn]] void refuse() { throw std::invalid_argument("this kvtwin_kernels was built without CUDA"); }

}  // namespace

bool built_with_cuda() { return false; }
Kind kind_of(const void*) { return Kind::pageable; }
void gpu_transfer(const RowTransfer&, const std::vector<PageRun>&, Path, const Launch&) { refuse(); }
void gpu_gather_checksum(const RowTransfer&, std::uint64_t*, const Launch&) { refuse(); }
void gpu_fill_pattern(const Pages&, const Launch&) { refuse(); }
Faults gpu_check_pattern(const Pages&, const Launch&) { refuse(); }
std::uintptr_t gpu_table(const std::vector<std::uintptr_t>&, int) { refuse(); }
void free_gpu_table(std::uintptr_t, int) noexcept {}

}  // namespace kvtwin::python
