// A reference for transfers: copies one byte at a time.
#pragma once

#include "kernels/transfer.hpp"

namespace kvtwin {

inline void copy_slowly(const TransferParams& p) {
  for (std::uint64_t r = 0; r < p.run_count; ++r) {
    for (std::uint32_t i = 0; i < p.runs[r].pages; ++i) {
      const std::uint64_t source = p.runs[r].source_first + i, target = p.runs[r].target_first + i;
      KvIndex at;
      for (at.plane = 0; at.plane < p.shape.planes; ++at.plane) {
        for (at.layer = p.layer_begin; at.layer < p.layer_end; ++at.layer) {
          for (at.token = 0; at.token < p.shape.page_tokens; ++at.token) {
            for (at.head = 0; at.head < p.shape.heads; ++at.head) {
              at.page = p.to_device ? target : source;
              std::byte* device = p.device + byte_offset(Layout::layer_first, p.shape, p.device_pages, at);
              at.page = p.to_device ? source : target;
              std::byte* host = p.host + byte_offset(p.host_layout, p.shape, p.host_pages, at);
              for (std::uint32_t byte = 0; byte < p.shape.head_bytes; ++byte) {
                if (p.to_device) {
                  device[byte] = host[byte];
                } else {
                  host[byte] = device[byte];
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace kvtwin
