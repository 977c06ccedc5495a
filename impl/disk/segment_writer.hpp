// The sets, removes and reclaims of the disk tier. Thread: one.
//
//   set --> present and claimed -----------------------------> done
//       --> present, not verified in this run --> read --right--> claimed, done
//                                                      --wrong--> as if absent
//       --> absent --> a slot of the head --> write ----------> in the index, done
//   head full --> new segment
//   no room, with an eviction policy --> evict the policy's victims
//   too many segments --> take the segment with the fewest claimed pages: read, check and write each claimed page to
//   the
//       head, sync, update the index, unlink the file
#pragma once

#include <cerrno>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "impl/disk/segment_core.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

class SegmentWriter {
 public:
  // Ownership: `core` and `queue` outlive the writer. Requires: each buffer of the queue holds one slot.
  SegmentWriter(SegmentCore& core, BlockQueue& queue, std::uint32_t segment_slots, Pages capacity, bool shares_room,
                std::vector<ForeignFile> foreign);
  void write(PageWork& work);
  // See SegmentStore.
  void resize(Pages capacity);

 private:
  enum class Kind : std::uint8_t { set, verify, move_read, move_write };
  struct Flight {
    Kind kind = Kind::set;
    PageTask task;
    PageName name;
    Place place;
    std::size_t move = 0;
  };
  struct Filling {
    std::shared_ptr<Segment> segment;
    std::uint32_t next = 0;     // next free slot
    std::uint32_t writing = 0;  // slots in progress
  };

  struct Sync {
    std::optional<SegmentIndex::Unsynced> what;
    bool folder = false;  // the file is synced; the sync of the folder is in progress
  };

  void begin(const PageTask& task);
  void begin_set(const PageTask& task);
  bool pending(const PageName& name) const;
  std::uint32_t launch(Flight flight, BlockOperation::Kind kind);
  void handle_ends();
  void end(const BlockEnd& end);
  void end_set(const Flight& flight, std::int64_t result);
  void end_verify(const Flight& flight, std::uint32_t buffer, std::int64_t result);
  void end_move_read(Flight flight, std::uint32_t buffer, std::int64_t result);
  void end_move_write(const Flight& flight, std::int64_t result);
  void end_sync(const BlockEnd& end);
  void slot_ended(const Place& place);
  bool holds(std::uint32_t buffer, const PageName& name, const Place& place, std::int64_t result);
  void seal(Place& place, std::span<std::byte> slot, std::optional<std::uint64_t> sum);
  bool whole(std::int64_t result) const { return result == static_cast<std::int64_t>(slot_bytes(core_.form)); }

  bool has_head() const { return !filling_.empty() && filling_.back().next < filling_.back().segment->slots; }
  const Segment* head() const { return has_head() ? filling_.back().segment.get() : nullptr; }
  Place take_slot();
  std::uint64_t occupied() const;
  Cause provide_head();
  Cause make_head();
  Cause open_head();
  Cause create_head();
  bool free_slots();
  // The last segment could not be created, and the removal of others would help. Not so for a limit of the file's size.
  bool lacks_room() const { return create_error_ == -ENOSPC || create_error_ == -EDQUOT; }
  bool fit_to_medium();
  bool give_up_segment();
  bool drop_oldest_file();
  bool reclaim_until(std::uint64_t slots);
  bool reclaim(const std::shared_ptr<Segment>& victim);
  bool move_pages(const Segment& victim);
  void unlink(const std::shared_ptr<Segment>& victim);
  void drain();
  void give_room_back();
  // The slots of all segments together, at most.
  std::uint64_t most_slots() const;

  SegmentCore& core_;
  BlockQueue& queue_;
  std::uint32_t segment_slots_;  // of new segments
  std::uint64_t max_slots_;      // of the capacity
  const bool shares_room_;
  bool removed_ = false;  // a page, since room was given back
  int create_error_ = 0;  // -errno of the last creation of a segment
  std::deque<ForeignFile> foreign_;
  PageWork* work_ = nullptr;
  std::vector<Flight> flights_;      // by buffer
  std::vector<std::uint32_t> free_;  // free buffers
  std::vector<PageTask> again_;      // sets whose present page was wrong or has just been verified
  std::vector<Sync> syncs_;          // syncs in progress, by tag
  std::size_t syncing_ = 0;
  std::vector<Filling> filling_;  // the last segment is the head, if it has a free slot
  std::vector<SegmentIndex::Move> moves_;
  bool move_failed_ = false;
};

}  // namespace kvtwin
