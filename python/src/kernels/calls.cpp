#include "python/src/kernels/calls.hpp"

#include <stdexcept>

#include "kernels/page_checksum.hpp"
#include "kernels/transfer.hpp"

namespace kvtwin::python {
namespace {

constexpr std::uint64_t kStageBytes = 32 * 1024;  // of the ring kernel

bool by_copies(Path path) { return path == Path::copies || path == Path::boxes; }

void check(const RowTransfer& rows, Path path) {
  if (!valid(rows)) throw std::invalid_argument("the transfer is not valid: a pool or an index array has no memory");
  if (empty(rows)) return;
  if (path == Path::ring && !ring_fits(rows)) {
    throw std::invalid_argument(
        "path='ring' moves multiples of 16 bytes, and the addresses or sizes of this transfer are multiples of " +
        std::to_string(vector_bytes(rows)) + " only: align them, or take path='registers'");
  }
  if (by_copies(path) && rows.device_blocks != nullptr) {
    throw std::invalid_argument(
        "path='copies' and path='boxes' need a device pool that is one array: give it in place of the LayerPool, or "
        "take path='registers'");
  }
}

// Returns the pairs as runs of pages that are neighbours on both sides.
std::vector<PageRun> runs_of(const RowTransfer& rows) {
  std::vector<PageRun> runs;
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    const std::int64_t source = index_at(rows.source_pages, rows.index_type, i);
    const std::int64_t target = index_at(rows.target_pages, rows.index_type, i);
    if (source < 0 || target < 0) continue;
    const auto from = static_cast<std::uint32_t>(source), to = static_cast<std::uint32_t>(target);
    if (!runs.empty() && from == runs.back().source_first + runs.back().pages &&
        to == runs.back().target_first + runs.back().pages) {
      ++runs.back().pages;
    } else {
      runs.push_back({from, to, 1});
    }
  }
  return runs;
}

// Calls act(row, seed, offset in the block, index, plane, layer) for each head's row of each page.
template <typename Act>
void for_rows(const Pages& p, const Act& act) {
  KvShape block = p.shape;
  block.layers = block.planes = 1;
  for (std::uint64_t i = 0; i < p.count; ++i) {
    const std::int64_t page = index_at(p.pages, p.index_type, i);
    if (page < 0 || static_cast<std::uint64_t>(page) >= p.pool_pages) continue;
    KvIndex at{.page = static_cast<std::uint64_t>(page)};
    for (at.plane = 0; at.plane < p.shape.planes; ++at.plane) {
      for (at.layer = p.layer_begin; at.layer < p.layer_end; ++at.layer) {
        const std::uint64_t seed = pattern_seed(p.keys + 4 * i, at.layer, at.plane);
        std::uint64_t offset = 0;
        for (at.token = 0; at.token < p.shape.page_tokens; ++at.token) {
          for (at.head = 0; at.head < p.shape.heads; ++at.head, offset += p.shape.head_bytes) {
            std::byte* const row = p.blocks != nullptr
                                       ? p.blocks[std::uint64_t{at.plane} * p.shape.layers + at.layer] +
                                             byte_offset(p.layout, block, p.pool_pages,
                                                         {.page = at.page, .token = at.token, .head = at.head})
                                       : p.pool + byte_offset(p.layout, p.shape, p.pool_pages, at);
            act(row, seed, offset, i, at.plane, at.layer);
          }
        }
      }
    }
  }
}

}  // namespace

std::optional<BadIndex> bad_index(const void* pages, IndexType type, std::uint64_t count, std::uint64_t pool_pages,
                                  bool distinct) {
  std::vector<bool> seen(distinct ? pool_pages : 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::int64_t value = index_at(pages, type, i);
    if (value == -1) continue;
    const auto page = static_cast<std::uint64_t>(value);
    if (page >= pool_pages) return BadIndex{i, value, false};
    if (!distinct) continue;
    if (seen[page]) return BadIndex{i, value, true};
    seen[page] = true;
  }
  return std::nullopt;
}

void transfer(const RowTransfer& rows, Path path, const Launch& launch) {
  check(rows, path);
  if (empty(rows)) return;
  std::vector<PageRun> runs;
  if (by_copies(path)) runs = runs_of(rows);
  if (launch.gpu != kCpu) return gpu_transfer(rows, runs, path, launch);
  if (!by_copies(path)) return copy_segments(rows, path == Path::ring ? ring_plan(rows, kStageBytes) : row_plan(rows));
  TransferParams params{.shape = rows.shape,
                        .device = rows.device,
                        .device_pages = rows.device_pages,
                        .host = rows.host,
                        .host_pages = rows.host_pages,
                        .host_layout = rows.host_layout,
                        .to_device = rows.to_device,
                        .runs = runs.data(),
                        .run_count = runs.size(),
                        .layer_begin = rows.layer_begin,
                        .layer_end = rows.layer_end};
  path == Path::copies ? copy_pieces(params) : copy_boxes(params);
}

void gather_checksum(const RowTransfer& rows, std::uint64_t* checksums, const Launch& launch) {
  check(rows, Path::registers);
  if (rows.count == 0) return;
  if (launch.gpu != kCpu) return gpu_gather_checksum(rows, checksums, launch);
  if (!empty(rows)) copy_segments(rows, row_plan(rows));
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    const std::int64_t source = index_at(rows.source_pages, rows.index_type, i);
    const std::int64_t target = index_at(rows.target_pages, rows.index_type, i);
    checksums[i] = source < 0 || target < 0
                       ? 0
                       : page_checksum(rows.host_layout, rows.shape, rows.host, rows.host_pages,
                                       static_cast<std::uint64_t>(target), rows.layer_begin, rows.layer_end);
  }
}

void fill_pattern(const Pages& pages, const Launch& launch) {
  if (pages.count == 0) return;
  if (launch.gpu != kCpu) return gpu_fill_pattern(pages, launch);
  for_rows(pages,
           [&](std::byte* row, std::uint64_t seed, std::uint64_t offset, std::uint64_t, std::uint32_t, std::uint32_t) {
             for (std::uint32_t i = 0; i < pages.shape.head_bytes; ++i)
               row[i] = std::byte{pattern_byte(seed, offset + i)};
           });
}

Faults check_pattern(const Pages& pages, const Launch& launch) {
  if (pages.count == 0) return {};
  if (launch.gpu != kCpu) return gpu_check_pattern(pages, launch);
  Faults faults;
  for_rows(pages, [&](const std::byte* row, std::uint64_t seed, std::uint64_t offset, std::uint64_t index,
                      std::uint32_t plane, std::uint32_t layer) {
    for (std::uint32_t i = 0; i < pages.shape.head_bytes; ++i) {
      if (row[i] == std::byte{pattern_byte(seed, offset + i)}) continue;
      if (faults.wrong++ == 0) {
        faults.index = index;
        faults.plane = plane;
        faults.layer = layer;
        faults.offset = offset + i;
      }
    }
  });
  return faults;
}

PointerTable::PointerTable(const std::vector<std::uintptr_t>& pointers, int gpu) : gpu_(gpu) {
  if (gpu != kCpu) {
    address_ = gpu_table(pointers, gpu);
  } else {
    on_cpu_ = pointers;
    address_ = reinterpret_cast<std::uintptr_t>(on_cpu_.data());
  }
}

PointerTable::~PointerTable() {
  if (gpu_ != kCpu) free_gpu_table(address_, gpu_);
}

}  // namespace kvtwin::python
