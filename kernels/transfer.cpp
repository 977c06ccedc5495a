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

void copy_box_rows(const std::vector<Box>& boxes, const Copy& copy) {
  for (const Box& box : boxes) {
    for (std::uint64_t slice = 0; slice < box.depth; ++slice) {
      for (std::uint64_t row = 0; row < box.height; ++row) {
        copy(box.device_at + slice * box.device_slice + row * box.device_pitch,
             box.host_at + slice * box.host_slice + row * box.host_pitch, box.width);
      }
    }
  }
}

// Calls copy(device offset, host offset, bytes) for each piece, joined over a run's pages if the layout permits.
template <typename Function>
void for_pieces(const TransferParams& p, const Function& copy) {
  const PieceGrid grid = piece_grid(p.host_layout, p.shape, p.device_pages, p.host_pages);
  for (std::uint64_t r = 0; r < p.run_count; ++r) {
    const PageRun& run = p.runs[r];
    const std::uint64_t device_first = p.to_device ? run.target_first : run.source_first;
    const std::uint64_t host_first = p.to_device ? run.source_first : run.target_first;
    const std::uint32_t step = grid.joins_pages() ? run.pages : 1;
    for (std::uint32_t page = 0; page < run.pages; page += step) {
      for (std::uint32_t plane = 0; plane < grid.plane.count; ++plane) {
        for (std::uint32_t layer = p.layer_begin; layer < p.layer_end; ++layer) {
          for (std::uint32_t token = 0; token < grid.token.count; ++token) {
            for (std::uint32_t head = 0; head < grid.head.count; ++head) {
              copy((device_first + page) * grid.device_page + plane * grid.plane.device_stride +
                       layer * grid.layer.device_stride + token * grid.token.device_stride +
                       head * grid.head.device_stride,
                   (host_first + page) * grid.host_page + plane * grid.plane.host_stride +
                       layer * grid.layer.host_stride + token * grid.token.host_stride + head * grid.head.host_stride,
                   step * grid.piece_bytes);
            }
          }
        }
      }
    }
  }
}

}  // namespace

void expand_pieces(const TransferParams& params, std::vector<PieceCopy>& pieces) {
  for_pieces(params, [&](std::uint64_t at_device, std::uint64_t at_host, std::uint64_t bytes) {
    pieces.push_back({at_device, at_host, bytes});
  });
}

void expand_boxes(const TransferParams& p, std::vector<Box>& boxes) {
  if (p.layer_begin == p.layer_end) return;
  const PieceGrid pieces = piece_grid(p.host_layout, p.shape, p.device_pages, p.host_pages);
  for (std::uint64_t r = 0; r < p.run_count; ++r) {
    const PageRun& run = p.runs[r];
    const std::uint64_t device_first = p.to_device ? run.target_first : run.source_first;
    const std::uint64_t host_first = p.to_device ? run.source_first : run.target_first;
    const BoxGrid grid = box_grid(pieces, run.pages, p.layer_end - p.layer_begin);
    for (std::uint64_t i = 0; i < grid.boxes(); ++i) {
      boxes.push_back(grid.box(i, device_first * pieces.device_page + p.layer_begin * pieces.layer.device_stride,
                               host_first * pieces.host_page + p.layer_begin * pieces.layer.host_stride));
    }
  }
}

void copy_pieces(const TransferParams& params) {
  for_pieces(params, Copy{params.device, params.host, params.to_device});
}

void expand_staged(const TransferParams& p, const StagedPages& at, std::vector<Box>& boxes) {
  if (p.layer_begin == p.layer_end) return;
  if (p.layer_begin != 0 || p.layer_end != p.shape.layers) {
    boxes.push_back(layer_slices(p.host_layout, p.shape, at, p.layer_begin, p.layer_end));
    return;
  }
  const std::uint64_t plane_bytes = p.shape.page_bytes() / p.shape.planes;  // of one page
  for (std::uint64_t plane = 0; plane < p.shape.planes; ++plane) {
    Box piece;
    piece.device_at = (plane * at.staging_pages + at.staging_first) * plane_bytes;
    piece.host_at = (plane * at.host_pages + at.host_first) * plane_bytes;
    piece.width = at.pages * plane_bytes;
    piece.device_pitch = piece.host_pitch = piece.device_slice = piece.host_slice = piece.width;
    boxes.push_back(piece);
  }
}

void copy_boxes(const TransferParams& params) {
  std::vector<Box> boxes;
  expand_boxes(params, boxes);
  copy_box_rows(boxes, Copy{params.device, params.host, params.to_device});
}

void copy_rows(const TransferParams& params) {
  const Copy copy{params.device, params.host, params.to_device};
  const std::uint64_t row = params.shape.row_bytes();
  for_pieces(params, [&](std::uint64_t at_device, std::uint64_t at_host, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes; done += row) {
      copy(at_device + done, at_host + done, std::min(row, bytes - done));
    }
  });
}

void copy_staged(const TransferParams& params, std::byte* staging, std::uint64_t staging_pages) {
  std::vector<Box> boxes;
  for (std::uint64_t r = 0; r < params.run_count; ++r) {
    const PageRun& run = params.runs[r];
    for (std::uint64_t done = 0; done < run.pages; done += staging_pages) {
      const auto pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(staging_pages, run.pages - done));
      const auto skip = static_cast<std::uint32_t>(done);
      const std::uint64_t host_first = (params.to_device ? run.source_first : run.target_first) + done;
      boxes.clear();
      expand_staged(params,
                    {.pages = pages,
                     .staging_first = 0,
                     .staging_pages = staging_pages,
                     .host_first = host_first,
                     .host_pages = params.host_pages},
                    boxes);
      // The staging buffer is a host pool in which the run begins at page 0.
      const PageRun part =
          params.to_device ? PageRun{0, run.target_first + skip, pages} : PageRun{run.source_first + skip, 0, pages};
      TransferParams relayout = params;
      relayout.host = staging;
      relayout.host_pages = staging_pages;
      relayout.runs = &part;
      relayout.run_count = 1;
      const Copy between{staging, params.host, params.to_device};
      if (params.to_device) copy_box_rows(boxes, between);
      copy_rows(relayout);
      if (!params.to_device) copy_box_rows(boxes, between);
    }
  }
}

}  // namespace kvtwin
