// KV pages on their way between pools of known bytes, by each of the paths that are compared.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/copy_list.hpp"
#include "kernels/row_kernels.hpp"
#include "tests/gpu/bench/rig.hpp"

namespace kvtwin::test {

enum class Way : std::uint8_t {
  copy_loop,     // a cudaMemcpyAsync a piece
  batch,         // one batch of pieces
  boxes,         // one batch of 3-D copies, one a page
  kernel,        // registers
  ring,          // bulk copies through shared memory
  staged,        // whole pages by copy engine, laid out anew in GPU memory
  warp_per_row,  // what others do
};
inline constexpr Way kWays[] = {Way::copy_loop, Way::batch,  Way::boxes,       Way::kernel,
                                Way::ring,      Way::staged, Way::warp_per_row};
const char* name_of(Way way);
std::uint32_t ctas_of(Way way);  // CTAs that its kernel gets; 0: it has none

const char* direction_name(bool to_device);

// `chunks` pieces of chunk_bytes each: a page of one layer and plane. 32 layers of two planes unless there are too few
// chunks; one plane for a latent's chunk (1,152 bytes a token). Rows of 2 KiB at most. chunks: a power of two, >= 2.
KvShape shape_of(std::uint64_t chunk_bytes, std::uint64_t chunks);

// A layer_first device pool and a page_first_direct host pool of equally many pages, in any order. Nothing is owned.
struct Pools {
  KvShape shape;
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::uint64_t pages = 0;
  std::vector<std::int64_t> device_pages, host_pages;  // the i-th of one belongs to the i-th of the other

  Pools(const KvShape& shape, std::byte* device, std::byte* host, std::uint64_t pages, std::uint64_t seed);
  std::uint64_t bytes() const { return pages * shape.page_bytes(); }
};

// Two halves of a staging buffer, which portions take in turn, and the streams that fill and empty them. Transfers that
// are submitted on streams that don't wait for each other go through it as one.
class Staging {
 public:
  explicit Staging(std::uint64_t half_bytes) : memory_(Place::gpu, 2 * half_bytes), half_bytes_(half_bytes) {}
  std::byte* half(std::size_t which) { return memory_.data() + which * half_bytes_; }
  std::uint64_t half_bytes() const { return half_bytes_; }
  std::size_t next_half() { return halves_++ % 2; }

  Stream first, second;  // what fills a half, what empties it
  Event filled[2], emptied[2], begin;

 private:
  Memory memory_;
  std::uint64_t half_bytes_;
  std::size_t halves_ = 0;
};

// Pages [begin, end) of the pools' lists, to the device or to the host. `staging` is what `staged` needs.
// std::runtime_error where CUDA says no.
class PageTransfer {
 public:
  PageTransfer(Way way, const Pools& pools, bool to_device, std::uint64_t begin, std::uint64_t end, Staging* staging);

  // Can this way move it at all? The ring needs a GPU that has bulk copies, and pieces that are multiples of 16 bytes;
  // `staged` a half that a page fits into.
  bool possible() const { return possible_; }
  void set_ctas(std::uint32_t ctas) { ctas_ = ctas; }  // instead of ctas_of(way)
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t pieces() const { return pieces_; }

  // Queues all of it on `stream`; what it does elsewhere, `stream` waits for.
  void submit(Stream& stream);

  // Queues its kernels alone: what of the GPU's multiprocessors it takes. Nothing where it has none.
  void submit_kernels(Stream& stream);

 private:
  struct Portion {  // of `staged`
    std::size_t half;
    RowTransfer relayout;
    CopyList copies;
  };
  TransferParams params(const Pools& pools, std::uint64_t begin, std::uint64_t end);
  RowTransfer rows(const Pools& pools, std::uint64_t begin, std::uint64_t end) const;
  void cut_up(const Pools& pools, std::uint64_t begin, std::uint64_t end);
  void submit_staged(Stream& stream);

  Way way_;
  std::uint32_t ctas_;
  bool to_device_, possible_ = true;
  std::uint64_t bytes_ = 0, pieces_ = 0;
  std::vector<PageRun> runs_;
  Memory indices_;  // [2][pages] of int64: source pages, target pages; then page numbers from 0
  std::uint64_t index_begin_ = 0, index_count_ = 0;
  CopyList copies_;
  RowTransfer rows_;
  Staging* staging_;
  std::vector<Portion> portions_;
};

// Keys of pages, and the bytes that they make.
class KnownBytes {
 public:
  KnownBytes(const Pools& pools, std::uint64_t seed);
  // Writes them into the pages of one pool, and other bytes into the other's; ready to be transferred when it returns.
  void prepare(const Pools& pools, bool to_device, Stream& stream);
  // Bytes of the target that aren't the source's.
  std::uint64_t wrong(const Pools& pools, bool to_device, Stream& stream);

 private:
  Memory keys_, others_, device_pages_, host_pages_, faults_;
};

}  // namespace kvtwin::test
