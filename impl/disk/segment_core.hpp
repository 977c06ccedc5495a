// The state that the disk tier's reader, writer and start share.
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
  // Pages that were requested for L1 without host memory: pages that went directly, and pages that went through host
  // memory. Reasons: no checksum for the GPU (unsummed), no direct reads of the file (refused), failure (errors).
  Count direct_pages = 0, unsummed = 0, direct_refused = 0, direct_errors = 0;
  // Found at the start: files that are not the disk tier's, which stay; pages whose check uses another secret, or none.
  Count strange_files = 0, other_secret = 0;
  Count file_limit = 0;  // a segment could not be created, because too many files are open
};

struct SegmentCore {
  SegmentCore(const PageForm& f, std::shared_ptr<Files> fs, Pages capacity, std::unique_ptr<EvictionPolicy> eviction,
              std::uint32_t d, bool s, const PageSeal* key)
      : form(f), files(std::move(fs)), index(capacity, std::move(eviction)), depth(d), sums(s), seal(key) {}
  const PageForm form;
  const std::shared_ptr<Files> files;
  SegmentIndex index;
  SegmentCounters counters;
  const std::uint32_t depth;
  const bool sums;  // written pages get a checksum that a GPU can compute
  const PageSeal* const seal;
  std::vector<std::shared_ptr<Segment>> not_removed;  // left the index, but the file could not be removed. Writer only
};

// Returns whether `slot`, which was read at `place`, holds the whole and right page.
bool slot_holds(const SegmentCore& core, const PageName& name, const Place& place, std::span<const std::byte> slot);

// Makes the content of the segments durable. Returns false if a sync failed; the pages that it covered are dropped.
bool sync_segments(SegmentCore& core, std::span<const SegmentIndex::Unsynced> segments);
void lose_segment(SegmentCore& core, const std::shared_ptr<Segment>& segment);

// The regular end: from now on, a later run finds the present pages and no other ones. Requires: no call is in
// progress; the pages were synced.
void forget_for_good(SegmentCore& core);

// A segment of another form. This tier cannot read it, and removes it when room is needed.
struct ForeignFile {
  FileNumber number = 0;
  std::uint64_t slots = 0;  // room, in slots of this tier
};

// Fills the index from the folder. Removes damaged segments. Keeps files that are no segments or cannot be opened.
// Returns the foreign segments, oldest first.
// Errors: std::system_error if the folder's content cannot be determined.
std::vector<ForeignFile> open_segments(SegmentCore& core, BlockQueue& queue);

}  // namespace kvtwin
