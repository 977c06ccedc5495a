// Gets from the disk tier's segments. One thread.
//
//   into L2, or without a direct way --> a read into host memory -> header, payload checked -> PageWork::give
//   into L1, where there is one ------> a read into GPU memory -> header checked by the CPU -> laid out in its slot and
//                                       summed by the GPU -> sum compared
//                                       what can't go this way takes the other one
//
// Reads of one way are through before those of the other begin: a thread waits for one queue only.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "impl/disk/direct_pages.hpp"
#include "impl/disk/segment_core.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

class SegmentReader {
 public:
  // That a queue needs for so many reads under way: some hold what has been read meanwhile.
  static std::uint32_t buffers(std::uint32_t depth) { return depth + (depth + 1) / 2; }
  // All of it outlives the reader. The queues' buffers hold a slot each. `direct`, `direct_queue`: null, or both.
  SegmentReader(SegmentCore& core, BlockQueue& queue, DirectPages* direct, BlockQueue* direct_queue);
  void read(PageWork& work);

 private:
  struct Flight {
    PageTask task;
    PageName name;
    Place place;
  };
  struct Way {
    Way(BlockQueue* q, std::uint32_t buffers, std::uint32_t most);
    bool idle() const { return free.size() == flights.size(); }
    bool has_room() const { return reading < most && !free.empty(); }

    BlockQueue* const queue;
    const std::uint32_t most;         // reads under way
    std::vector<Flight> flights;      // by buffer
    std::vector<std::uint32_t> free;  // buffers
    std::uint32_t reading = 0;
  };
  struct Start {
    PageTask task;
    bool direct = false;
  };

  void begin_some(PageWork& work);
  bool next(PageWork& work, Start& start);
  void begin(PageWork& work, const Start& start);
  void end(PageWork& work, const BlockEnd& end);
  void end_direct(PageWork& work);
  void check_headers(std::span<const std::byte> blocks);
  void end_read(PageWork& work, std::uint32_t buffer, Cause cause);
  void bounce(std::uint32_t buffer, SegmentCounters::Count& why);
  Flight release(std::uint32_t buffer);
  Cause check_header(const Flight& flight, ConstBlockBytes block) const;
  Cause check_and_give(PageWork& work, std::uint32_t buffer);

  SegmentCore& core_;
  DirectPages* const direct_;
  Way host_, gpu_;
  Way* way_ = &host_;          // whose reads are under way
  std::deque<Start> waiting_;  // to be begun before all others
  std::vector<BlockEnd> ends_;
  // Of reads into GPU memory that came whole.
  std::vector<std::uint32_t> arrived_;
  std::vector<std::byte> headers_;
  std::vector<DirectPages::Landing> landings_;
  std::vector<std::uint64_t> sums_;  // that those should have
};

}  // namespace kvtwin
