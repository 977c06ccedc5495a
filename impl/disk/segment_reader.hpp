// The gets of the disk tier. Thread: one.
//
//   to L2, or no direct way --> read into host memory --> check header and payload --> PageWork::give
//   to L1, direct way --------> read into GPU memory ---> CPU checks the header --> GPU copies the page into its slot,
//                               computes its sum -------> compare the sum
//                               on any failure: read through host memory
//
// Reads of one way end before reads of the other way begin, because a thread can wait for one queue only.
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
  // Returns the number of buffers for `depth` reads in progress. The extra buffers hold pages that are being checked.
  static std::uint32_t buffers(std::uint32_t depth) { return depth + (depth + 1) / 2; }
  // Ownership: all arguments outlive the reader. Requires: each buffer of the queues holds one slot; `direct` and
  // `direct_queue` are both null or both set.
  SegmentReader(SegmentCore& core, BlockQueue& queue, DirectPages* direct, BlockQueue* direct_queue);
  void read(PageWork& work);

 private:
  struct Flight {
    PageTask task;
    PageName name;
    Place place;
  };
  struct Way {
    Way(BlockQueue* q, std::uint32_t buffers, std::uint32_t max_reads);
    bool idle() const { return free.size() == flights.size(); }
    bool has_room() const { return reading < max_reads && !free.empty(); }

    BlockQueue* const queue;
    const std::uint32_t max_reads;    // limit of reads in progress
    std::vector<Flight> flights;      // by buffer
    std::vector<std::uint32_t> free;  // free buffers
    std::uint32_t reading = 0;
  };
  struct Start {
    PageTask task;
    bool direct = false;
  };

  void begin_reads(PageWork& work);
  bool next(PageWork& work, Start& start);
  void begin(PageWork& work, const Start& start);
  void end(PageWork& work, const BlockEnd& end);
  void end_direct(PageWork& work);
  void check_headers(std::span<const std::byte> blocks);
  void end_read(PageWork& work, std::uint32_t buffer, Cause cause);
  void retry_through_host(std::uint32_t buffer, SegmentCounters::Count& reason);
  Flight release(std::uint32_t buffer);
  Cause check_header(const Flight& flight, ConstBlockBytes block) const;
  Cause check_and_deliver(PageWork& work, std::uint32_t buffer);

  SegmentCore& core_;
  DirectPages* const direct_;
  Way host_, gpu_;
  Way* way_ = &host_;          // the way whose reads are in progress
  std::deque<Start> waiting_;  // begin before all other pages
  std::vector<BlockEnd> ends_;
  // Complete reads into GPU memory.
  std::vector<std::uint32_t> arrived_;
  std::vector<std::byte> headers_;
  std::vector<DirectPages::Landing> landings_;
  std::vector<std::uint64_t> sums_;  // the expected sums of landings_
};

}  // namespace kvtwin
