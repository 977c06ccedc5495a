// What the disk tier's reader, writer and opening share.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "impl/disk/segment_index.hpp"
#include "impl/disk/slot_format.hpp"

namespace kvtwin {

struct SegmentCounters {
  using Count = std::atomic<std::uint64_t>;
  Count pages_written = 0, pages_read = 0, pages_already_there = 0, pages_removed = 0, pages_found = 0;
  Count pages_moved = 0, segments_reclaimed = 0, foreign_segments = 0, foreign_reclaimed = 0;
  Count damaged_segments = 0, corrupt = 0, missing = 0, io_errors = 0, full = 0, failed_syncs = 0, pages_lost = 0;
  // Of the pages that were to go to L1 without host memory: those that did, and those that took the way through it,
  // because they have no checksum that a GPU can take, their file isn't read directly, or that went wrong.
  Count direct_pages = 0, unsummed = 0, direct_refused = 0, direct_errors = 0;
  // Found at open: files that no disk tier made, which stay; and pages whose check takes another secret, or none.
  Count strange_files = 0, other_secret = 0;
  Count file_limit = 0;  // a segment could not be made, as too many files are open
};

struct SegmentCore {
  SegmentCore(const PageForm& f, std::shared_ptr<Files> fs, Pages capacity, std::uint32_t d, bool s,
              const PageSeal* key)
      : form(f), files(std::move(fs)), index(capacity), depth(d), sums(s), seal(key) {}
  const PageForm form;
  const std::shared_ptr<Files> files;
  SegmentIndex index;
  SegmentCounters counters;
  const std::uint32_t depth;
  const bool sums;  // what is written gets a checksum that a GPU can take
  const PageSeal* const seal;
};

// What these segments hold so far survives the power. False: of some it doesn't; their pages are dropped.
bool sync_segments(SegmentCore& core, std::span<const SegmentIndex::Unsynced> segments);
void lose_segment(SegmentCore& core, const std::shared_ptr<Segment>& segment);

// A segment that isn't ours to read, but to remove when its room is wanted.
struct ForeignFile {
  FileNumber number = 0;
  std::uint64_t slots = 0;  // as many of ours would fit
};

// Fills the index from the folder. Removes damaged segments. Leaves what is no segment and what can't be opened.
// Returns the foreign ones, oldest first. std::system_error if it can't be told what there is.
std::vector<ForeignFile> open_segments(SegmentCore& core, BlockQueue& queue);

}  // namespace kvtwin
