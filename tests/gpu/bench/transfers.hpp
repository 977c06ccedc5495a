// Transfers of KV pages between pools with known bytes, over each of the compared paths.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/copy_list.hpp"
#include "kernels/row_kernels.hpp"
#include "tests/gpu/bench/rig.hpp"

namespace kvtwin::test {

enum class Way : std::uint8_t {
  copy_loop,     // one cudaMemcpyAsync per piece
  batch,         // one batch of all pieces
  boxes,         // one batch of 3-D copies, one copy per page
  kernel,        // a kernel that copies through registers
  ring,          // a kernel with bulk copies through shared memory
  staged,        // copy engines move whole pages; a kernel changes the layout in GPU memory
  warp_per_row,  // a kernel with one warp per row, as in other systems
};
inline constexpr Way kWays[] = {Way::copy_loop, Way::batch,  Way::boxes,       Way::kernel,
                                Way::ring,      Way::staged, Way::warp_per_row};
const char* name_of(Way way);

// The sizes of a hardware file, which real runs use too. main() sets the values.
struct CopySizes {
  LaunchLimits kernel, ring;
  std::uint64_t portion_bytes = std::uint64_t{8} << 20;  // of a staged transfer
};
CopySizes& copy_sizes();
LaunchLimits limits_of(Way way);  // ctas = 0: no kernel

const char* direction_name(bool to_device);

// Returns a shape with `chunks` pieces of chunk_bytes. A piece is one layer and plane of a page. The shape has 32
// layers of two planes, or fewer layers if there are too few chunks; one plane for an MLA latent (1,152 bytes per
// token). A row has at most 2 KiB. Requires: `chunks` is a power of two, >= 2.
KvShape shape_of(std::uint64_t chunk_bytes, std::uint64_t chunks);

// A layer_first device pool and a page_first_direct host pool with the same number of pages, in random order. Does not
// own the memory.
struct Pools {
  KvShape shape;
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::uint64_t pages = 0;
  std::vector<std::int64_t> device_pages, host_pages;  // device_pages[i] and host_pages[i] are the same page

  Pools(const KvShape& shape, std::byte* device, std::byte* host, std::uint64_t pages, std::uint64_t seed);
  std::uint64_t bytes() const { return pages * shape.page_bytes(); }
};

// A staging buffer with two halves, and the streams that fill and empty the halves. The portions of a transfer use the
// halves in turn. Transfers from different streams share the buffer and wait for each other here.
class Staging {
 public:
  explicit Staging(std::uint64_t half_bytes) : memory_(Place::gpu, 2 * half_bytes), half_bytes_(half_bytes) {}
  std::byte* half(std::size_t which) { return memory_.data() + which * half_bytes_; }
  std::uint64_t half_bytes() const { return half_bytes_; }
  std::size_t next_half() { return halves_++ % 2; }

  Stream first, second;  // `first` fills a half, `second` empties it
  Event filled[2], emptied[2], begin;

 private:
  Memory memory_;
  std::uint64_t half_bytes_;
  std::size_t halves_ = 0;
};

// Moves pages [begin, end) of the pools' lists to the device or to the host. Only Way::staged needs `staging`.
// Errors: std::runtime_error if a CUDA call fails.
class PageTransfer {
 public:
  PageTransfer(Way way, const Pools& pools, bool to_device, std::uint64_t begin, std::uint64_t end, Staging* staging);

  // Returns false if this way cannot move the pages. `ring` needs a GPU with bulk copies, and pieces that are multiples
  // of 16 bytes. `staged` needs a staging half that is at least as large as a page.
  bool possible() const { return possible_; }
  void set_limits(const LaunchLimits& limits) { limits_ = limits; }  // replaces limits_of(way)
  void set_ctas(std::uint32_t ctas) { limits_.ctas = ctas; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t pieces() const { return pieces_; }

  // Queues the transfer on `stream`. If parts run on other streams, `stream` waits for them.
  void submit(Stream& stream);

  // Queues only the kernels of the transfer, to measure how much of the multiprocessors they take. Queues nothing if
  // there are no kernels.
  void submit_kernels(Stream& stream);

 private:
  struct Portion {  // part of a `staged` transfer that fits into one half
    std::size_t half;
    RowTransfer relayout;
    CopyList copies;
  };
  TransferParams params(const Pools& pools, std::uint64_t begin, std::uint64_t end);
  RowTransfer rows(const Pools& pools, std::uint64_t begin, std::uint64_t end) const;
  void cut_up(const Pools& pools, std::uint64_t begin, std::uint64_t end);
  void submit_staged(Stream& stream);

  Way way_;
  LaunchLimits limits_;
  bool to_device_, possible_ = true;
  std::uint64_t bytes_ = 0, pieces_ = 0;
  std::vector<PageRun> runs_;
  Memory indices_;  // int64: the source pages, the target pages, then the numbers from 0
  std::uint64_t index_begin_ = 0, index_count_ = 0;
  CopyList copies_;
  RowTransfer rows_;
  Staging* staging_;
  std::vector<Portion> portions_;
};

// Page keys, and the known bytes of their pages.
class KnownBytes {
 public:
  KnownBytes(const Pools& pools, std::uint64_t seed);
  // Writes the known bytes into the source pages and different bytes into the target pages. Returns when both are
  // ready.
  void prepare(const Pools& pools, bool to_device, Stream& stream);
  // Returns the number of target bytes that differ from the source.
  std::uint64_t wrong(const Pools& pools, bool to_device, Stream& stream);

 private:
  Memory keys_, others_, device_pages_, host_pages_, faults_;
};

}  // namespace kvtwin::test
