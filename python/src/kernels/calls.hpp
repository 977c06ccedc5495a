// The functions behind kvtwin_kernels, without Python: the kernels on a GPU, or their CPU twins on host memory.
// python/kvtwin_kernels/__init__.py checks shapes and indices; these functions check what only CUDA or an address
// shows. Errors: std::invalid_argument (bad input) or std::runtime_error (CUDA failed), each with one sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/page_pattern.hpp"
#include "kernels/row_transfer.hpp"

namespace kvtwin::python {

enum class Path : std::uint8_t { registers, ring, warp_per_row, copies, boxes, relayout };

inline constexpr int kCpu = -1;  // in place of the number of a GPU

struct Launch {
  int gpu = kCpu;             // the GPU whose memory the device pool is
  std::uintptr_t stream = 0;  // cudaStream_t of this GPU; 0 is the default stream
  std::uint32_t ctas = 4;
};

// The pages of fill_pattern and check_pattern, as PatternPages of kernels/pattern_kernels.hpp, whose header needs CUDA.
struct Pages {
  KvShape shape;
  std::byte* pool = nullptr;
  std::byte* const* blocks = nullptr;  // in place of `pool`; layer_first only
  std::uint32_t block_alignment = 1;
  std::uint64_t pool_pages = 0;
  Layout layout = Layout::layer_first;
  const void* pages = nullptr;          // [count] of index_type
  const std::uint64_t* keys = nullptr;  // [count][4]
  IndexType index_type = IndexType::int64;
  std::uint64_t count = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;
};

// The wrong bytes that check_pattern has found.
struct Faults {
  std::uint64_t wrong = 0;  // number of bytes
  // The first of them, by index, plane, layer and offset in the block [page_tokens][heads][head_bytes]; unset if wrong
  // is 0.
  std::uint64_t index = 0, offset = 0;
  std::uint32_t plane = 0, layer = 0;
};

// An entry of an index array that is not a page: neither -1 nor in [0, pool_pages), or a page that occurs twice.
struct BadIndex {
  std::uint64_t at = 0;
  std::int64_t value = 0;
  bool twice = false;
};

// Returns the first bad entry. `distinct`: a page may occur once only. Requires: the CPU can read the array.
std::optional<BadIndex> bad_index(const void* pages, IndexType type, std::uint64_t count, std::uint64_t pool_pages,
                                  bool distinct);

// Moves pages. On a GPU the call returns when the work is submitted; on the CPU when it is done.
// Requires: for the paths `copies` and `boxes`, the CPU can read the index arrays.
void transfer(const RowTransfer& rows, Path path, const Launch& launch);

// Moves pages from the device pool, and writes checksums[count]; 0 for skipped pairs.
void gather_checksum(const RowTransfer& rows, std::uint64_t* checksums, const Launch& launch);

void fill_pattern(const Pages& pages, const Launch& launch);

// Waits for the stream.
Faults check_pattern(const Pages& pages, const Launch& launch);

// ---- the GPU: gpu_cuda.cpp, or gpu_none.cpp in a build without CUDA -------------------------------------------

bool built_with_cuda();

// The kind of memory at an address: pageable, pinned, or gpu. CUDA's managed memory is `gpu`.
enum class Kind : std::uint8_t { pageable, pinned, gpu };
Kind kind_of(const void* address);

// A copy of an array of pointers that kernels of a GPU can read (on the CPU: that the CPU can read).
class PointerTable {
 public:
  PointerTable(const std::vector<std::uintptr_t>& pointers, int gpu);
  PointerTable(const PointerTable&) = delete;
  PointerTable& operator=(const PointerTable&) = delete;
  ~PointerTable();
  std::uintptr_t address() const { return address_; }

 private:
  std::vector<std::uintptr_t> on_cpu_;
  int gpu_;
  std::uintptr_t address_ = 0;
};

// As the functions above, for launch.gpu != kCpu. `runs`: for `copies` and `boxes`.
void gpu_transfer(const RowTransfer& rows, const std::vector<PageRun>& runs, Path path, const Launch& launch);
void gpu_gather_checksum(const RowTransfer& rows, std::uint64_t* checksums, const Launch& launch);
void gpu_fill_pattern(const Pages& pages, const Launch& launch);
Faults gpu_check_pattern(const Pages& pages, const Launch& launch);
std::uintptr_t gpu_table(const std::vector<std::uintptr_t>& pointers, int gpu);
void free_gpu_table(std::uintptr_t table, int gpu) noexcept;

}  // namespace kvtwin::python
