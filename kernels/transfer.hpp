// Moves whole KV pages between a layer_first device pool and a host pool in any of the four layouts
// (policy/transfer/layout.hpp), for a range of layers. Four ways, each for a path of a Plan (policy/transfer/plan.hpp);
// for the ring, copy_rows moves the same bytes. All ways give the same bytes.
// Requires: slots are within their pools, and nothing else uses the pages during the copy. No function can fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/transfer/boxes.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

struct TransferParams {
  KvShape shape;
  std::byte* device = nullptr;  // [planes][layers][device_pages * page_tokens][heads][head_bytes]
  std::uint64_t device_pages = 0;
  std::byte* host = nullptr;  // host_pages pages in host_layout
  std::uint64_t host_pages = 0;
  Layout host_layout = Layout::layer_first;
  bool to_device = true;
  const PageRun* runs = nullptr;  // [run_count]; the source is the host if to_device, else the device
  std::uint64_t run_count = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;
};

// ---- descriptors for a copy engine -------------------------------------------------------------------------

struct PieceCopy {
  std::uint64_t device_at = 0, host_at = 0;  // bytes from the start of each pool
  std::uint64_t bytes = 0;
};

// Appends one copy per piece that is contiguous on both sides. Copies of a run's pages are joined if the layout
// permits.
void expand_pieces(const TransferParams& params, std::vector<PieceCopy>& pieces);

// Appends the same bytes as strided copies, as few as the layout permits.
void expand_boxes(const TransferParams& params, std::vector<Box>& boxes);

// Appends the copies of layers [layer_begin, layer_end) of neighbouring pages between the host pool and a staging
// buffer (see copy_staged), which takes the place of the device: one box, or for all layers one piece per plane.
void expand_staged(const TransferParams& params, const StagedPages& pages, std::vector<Box>& boxes);

// ---- CPU twins ---------------------------------------------------------------------------------------------

// Executes each copy of expand_pieces with memcpy.
void copy_pieces(const TransferParams& params);

// Executes each row of each box of expand_boxes with memcpy.
void copy_boxes(const TransferParams& params);

// Does the work of a copy kernel: one copy per token's row of one layer and plane, or per head if the layout splits
// rows.
void copy_rows(const TransferParams& params);

// Copies through `staging`, which holds staging_pages pages in the host's layout. expand_staged moves the layers of
// whole pages between `staging` and the host; a relayout moves them between `staging` and the device pool.
// Requires: staging_pages >= 1; the host pool is not layer_first, because its pages are not contiguous.
void copy_staged(const TransferParams& params, std::byte* staging, std::uint64_t staging_pages);

}  // namespace kvtwin
