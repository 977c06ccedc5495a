#include "kernels/transfer.hpp"

#include <algorithm>
#include <cstring>

namespace kvtwin {
namespace {

struct Copy {
  std::byte* device;
  std::byte* host;
  bool to_device;
  void operator()(std::uint64_t at_device, std::uint64_t at_host, std::uint64_t bytes) const {
    if (to_device) {
      std::memcpy(device + at_device, host + at_host, bytes);
    } else {
      std::memcpy(host + at_host, device + at_device, bytes);
    }
  }
};

// One (plane, layer) block of `tokens` tokens, contiguous on the device: how it lies on the host.
struct Block {
  std::uint64_t at_device = 0, at_host = 0, tokens = 0;
  std::uint64_t token_stride = 0, head_stride = 0;
};

// Calls copy(device offset, host offset, bytes) for each piece of the block that is contiguous on the host, but for no
// piece longer than a row if `by_rows`.
template <typename Function>
void for_pieces(const KvShape& s, const Block& block, bool by_rows, const Function& copy) {
  const std::uint64_t row = s.row_bytes();
  const bool rows_whole = block.head_stride == s.head_bytes || s.heads == 1;
  if (rows_whole && block.token_stride == row && !by_rows)
    return copy(block.at_device, block.at_host, block.tokens * row);
  for (std::uint64_t token = 0; token < block.tokens; ++token) {
    const std::uint64_t at_device = block.at_device + token * row;
    const std::uint64_t at_host = block.at_host + token * block.token_stride;
    if (rows_whole) {
      copy(at_device, at_host, row);
      continue;
    }
    for (std::uint32_t head = 0; head < s.heads; ++head) {
      copy(at_device + std::uint64_t{head} * s.head_bytes, at_host + head * block.head_stride, s.head_bytes);
    }
  }
}

template <typename Function>
void for_blocks(const TransferParams& p, const Function& visit) {
  const KvShape& s = p.shape;
  const auto host_at = [&](const KvIndex& i) { return byte_offset(p.host_layout, s, p.host_pages, i); };
  Block block;
  block.token_stride = s.page_tokens > 1 ? host_at({.token = 1}) : s.row_bytes();
  block.head_stride = s.heads > 1 ? host_at({.head = 1}) : s.head_bytes;
  const bool joined = pieces_join_across_pages(p.host_layout, s);
  for (std::uint64_t r = 0; r < p.run_count; ++r) {
    const PageRun& run = p.runs[r];
    const std::uint64_t device_first = p.to_device ? run.target_first : run.source_first;
    const std::uint64_t host_first = p.to_device ? run.source_first : run.target_first;
    const std::uint32_t step = joined ? run.pages : 1;
    block.tokens = std::uint64_t{step} * s.page_tokens;
    for (std::uint32_t page = 0; page < run.pages; page += step) {
      for (std::uint32_t plane = 0; plane < s.planes; ++plane) {
        for (std::uint32_t layer = p.layer_begin; layer < p.layer_end; ++layer) {
          block.at_device = byte_offset(Layout::layer_first, s, p.device_pages,
                                        {.page = device_first + page, .plane = plane, .layer = layer});
          block.at_host = host_at({.page = host_first + page, .plane = plane, .layer = layer});
          visit(block);
        }
      }
    }
  }
}

void copy_blocks(const TransferParams& p, bool by_rows) {
  const Copy copy{p.device, p.host, p.to_device};
  for_blocks(p, [&](const Block& block) { for_pieces(p.shape, block, by_rows, copy); });
}

}  // namespace

void copy_pieces(const TransferParams& params) { copy_blocks(params, false); }

void copy_rows(const TransferParams& params) { copy_blocks(params, true); }

void copy_staged(const TransferParams& params, std::byte* staging, std::uint64_t staging_pages) {
  const std::uint64_t plane_bytes = params.shape.page_bytes() / params.shape.planes;  // a page's, in one plane
  for (std::uint64_t r = 0; r < params.run_count; ++r) {
    const PageRun& run = params.runs[r];
    for (std::uint64_t done = 0; done < run.pages; done += staging_pages) {
      const auto pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(staging_pages, run.pages - done));
      const auto skip = static_cast<std::uint32_t>(done);
      const std::uint64_t host_first = (params.to_device ? run.source_first : run.target_first) + done;
      const auto whole_pages = [&](bool into_staging) {
        for (std::uint32_t plane = 0; plane < params.shape.planes; ++plane) {
          std::byte* host = params.host + (plane * params.host_pages + host_first) * plane_bytes;
          std::byte* staged = staging + plane * staging_pages * plane_bytes;
          std::memcpy(into_staging ? staged : host, into_staging ? host : staged, pages * plane_bytes);
        }
      };
      // The staging buffer is a host pool of its own, in which the run begins at page 0.
      const PageRun part =
          params.to_device ? PageRun{0, run.target_first + skip, pages} : PageRun{run.source_first + skip, 0, pages};
      TransferParams relayout = params;
      relayout.host = staging;
      relayout.host_pages = staging_pages;
      relayout.runs = &part;
      relayout.run_count = 1;
      relayout.layer_begin = 0;
      relayout.layer_end = params.shape.layers;
      if (params.to_device) whole_pages(true);
      copy_rows(relayout);
      if (!params.to_device) whole_pages(false);
    }
  }
}

}  // namespace kvtwin
