// Sets and removes, and the making of room, in the disk tier's segments. One thread.
//
//   set --> there and claimed ------------------------------> done
//       --> there, never read in this life --> read --right--> claimed, done
//                                                 --wrong--> as if not there
//       --> not there --> a slot of the head --> write ------> in the index, done
//   head full --> another segment; too many --> the one with the fewest claimed pages: read, check, write each to the
//       head, sync, then the index points there and the file is unlinked
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "impl/disk/segment_core.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

class SegmentWriter {
 public:
  // core and queue outlive it. The queue's buffers hold a slot each.
  SegmentWriter(SegmentCore& core, BlockQueue& queue, std::uint32_t segment_slots, Pages capacity,
                std::vector<ForeignFile> foreign);
  void write(PageWork& work);

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
    std::uint32_t next = 0;     // slot
    std::uint32_t writing = 0;  // slots under way
  };

  struct Sync {
    std::optional<SegmentIndex::Unsynced> what;
    bool folder = false;  // its file is synced, the folder follows
  };

  void begin(const PageTask& task);
  void begin_set(const PageTask& task);
  bool pending(const PageName& name) const;
  std::uint32_t launch(Flight flight, BlockOperation::Kind kind);
  void settle();
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
  Cause make_head();
  Cause open_head();
  Cause create_head();
  bool let_oldest_go();
  bool reclaim_until(std::uint64_t slots);
  bool reclaim(const std::shared_ptr<Segment>& victim);
  bool move_pages(const Segment& victim);
  void unlink(const std::shared_ptr<Segment>& victim);
  void drain();

  SegmentCore& core_;
  BlockQueue& queue_;
  const std::uint32_t segment_slots_;
  const std::uint64_t most_slots_;
  std::deque<ForeignFile> foreign_;
  PageWork* work_ = nullptr;
  std::vector<Flight> flights_;      // by buffer
  std::vector<std::uint32_t> free_;  // buffers
  std::vector<PageTask> again_;      // sets whose page there wasn't right
  std::vector<Sync> syncs_;          // under way, by their tag
  std::size_t syncing_ = 0;
  std::vector<Filling> filling_;  // the last one is the head, if it has slots left
  std::vector<SegmentIndex::Move> moves_;
  bool move_failed_ = false;
};

}  // namespace kvtwin
