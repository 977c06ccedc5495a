// The same operation for many blocks, several at a time.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "impl/disk/files.hpp"

namespace kvtwin {

struct BlockItem {
  BlockFile* file = nullptr;
  Bytes offset = 0;
};

// Reads or writes `bytes` bytes at each item, `depth` items at a time, in any order. Calls `ended(i, result, buffer)`
// for each item i; `result` is that of BlockEnd. Requires: the queue has `depth` buffers of at least `bytes` bytes, and
// no operation is in progress.
template <typename Ended>
void for_each_block(BlockQueue& queue, std::uint32_t depth, BlockOperation::Kind kind, Bytes bytes,
                    std::span<const BlockItem> items, Ended ended) {
  std::vector<std::uint32_t> free;
  for (std::uint32_t i = 0; i < depth; ++i) free.push_back(i);
  std::vector<std::size_t> item_of(depth);
  std::vector<BlockEnd> ends;
  for (std::size_t next = 0; next < items.size() || free.size() < depth;) {
    for (; next < items.size() && !free.empty(); ++next) {
      const std::uint32_t buffer = free.back();
      free.pop_back();
      item_of[buffer] = next;
      queue.submit({kind, items[next].file, items[next].offset, bytes, buffer, buffer});
    }
    ends.clear();
    queue.wait(ends);
    for (const BlockEnd& end : ends) {
      const auto buffer = static_cast<std::uint32_t>(end.tag);
      ended(item_of[buffer], end.result, queue.buffer(buffer));
      free.push_back(buffer);
    }
  }
}

// Calls `read(i, bytes)` for each item i. `bytes` has fewer bytes at the end of a file, and is empty on an error.
template <typename Read>
void read_blocks(BlockQueue& queue, std::uint32_t depth, Bytes bytes, std::span<const BlockItem> items, Read read) {
  for_each_block(queue, depth, BlockOperation::Kind::read, bytes, items,
                 [&](std::size_t i, std::int64_t result, std::span<const std::byte> buffer) {
                   const auto most = static_cast<std::int64_t>(bytes);
                   read(i, buffer.first(static_cast<std::size_t>(std::clamp<std::int64_t>(result, 0, most))));
                 });
}

}  // namespace kvtwin
