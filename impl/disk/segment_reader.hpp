// Gets from the disk tier's segments. One thread.
#pragma once

#include <memory>
#include <vector>

#include "impl/disk/segment_core.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

class SegmentReader {
 public:
  // That a queue needs for so many reads under way: some hold what has been read meanwhile.
  static std::uint32_t buffers(std::uint32_t depth) { return depth + (depth + 1) / 2; }
  // core and queue outlive it. The queue's buffers hold a slot each.
  SegmentReader(SegmentCore& core, BlockQueue& queue);
  void read(PageWork& work);

 private:
  struct Flight {
    PageTask task;
    PageName name;
    Place place;
  };
  void begin_some(PageWork& work);
  void begin(PageWork& work, const PageTask& task);
  void end(PageWork& work, const BlockEnd& end);
  Cause check_and_give(PageWork& work, std::uint32_t buffer);

  SegmentCore& core_;
  BlockQueue& queue_;
  std::vector<Flight> flights_;      // by buffer
  std::vector<std::uint32_t> free_;  // buffers
  std::uint32_t reading_ = 0;
  std::vector<BlockEnd> ends_;
};

}  // namespace kvtwin
