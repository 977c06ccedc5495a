// Moves whole KV pages between a layer_first device pool and a host pool in any of the four layouts
// (policy/transfer/layout.hpp states their shapes), a range of layers at a time. Four ways, each of
// them a path of a Plan (policy/transfer/plan.hpp; the ring's bytes are copy_rows' too). Each leaves the same bytes.
// Nothing here can fail: the caller keeps slots within their pools, and nobody else touches these pages meanwhile.
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
  std::byte* host = nullptr;  // host_layout's shape, of host_pages pages
  std::uint64_t host_pages = 0;
  Layout host_layout = Layout::layer_first;
  bool to_device = true;
  const PageRun* runs = nullptr;  // [run_count]; the source is the host if to_device, else the device
  std::uint64_t run_count = 0;
  std::uint32_t layer_begin = 0, layer_end = 0;
};

// ---- what a copy engine is given ---------------------------------------------------------------------------

struct PieceCopy {
  std::uint64_t device_at = 0, host_at = 0;  // bytes from each pool's start
  std::uint64_t bytes = 0;
};

// Appends one copy a piece that is contiguous on both sides, joined over a run's pages where the layout lets it.
void expand_pieces(const TransferParams& params, std::vector<PieceCopy>& pieces);

// Appends the same bytes as strided copies, as few as the layout lets it.
void expand_boxes(const TransferParams& params, std::vector<Box>& boxes);

// Appends the copies of layers [layer_begin, layer_end) of neighbouring pages between the host pool and a staging
// buffer (see copy_staged), the buffer being the device side: a box, or a piece a plane where all layers move.
void expand_staged(const TransferParams& params, const StagedPages& pages, std::vector<Box>& boxes);

// ---- CPU twins ---------------------------------------------------------------------------------------------

// Each of expand_pieces by a memcpy.
void copy_pieces(const TransferParams& params);

// Each row of each of expand_boxes by a memcpy.
void copy_boxes(const TransferParams& params);

// What a copy kernel does: one copy a token's row of one layer and plane, or a head's part of it where the layout
// breaks rows up.
void copy_rows(const TransferParams& params);

// Through `staging`, which holds staging_pages pages (>= 1) of the host's layout: the layers of whole pages are moved
// between it and the host by expand_staged, and laid out anew between it and the device pool. Not for layer_first host
// pools, whose pages don't lie together.
void copy_staged(const TransferParams& params, std::byte* staging, std::uint64_t staging_pages);

}  // namespace kvtwin
