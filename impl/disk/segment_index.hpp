// What the disk tier knows of its pages: which segment and slot each lies in, who wants it kept, and what survives the
// machine's power. Memory only; any thread may call, a call holds a mutex for a few look-ups.
//
//   absent --reserve, written--> claimed --erase--> absent          set in this life
//   found at open --> unclaimed --verified--> --claim--> claimed    a set need not write what lies there and is right
//                     unclaimed --evicted, oldest segment first--> absent
//
// claimed + reserved pages never exceed the capacity, and unclaimed ones go until all of them fit when one is reserved
// (not before: removed pages may be among those found, and whom to keep isn't known yet). A page found twice at open
// (moved, or set again, before a crash) keeps its older copies as spares: of copies that were under way only reading
// tells the whole one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "impl/disk/files.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

// A page's name in the store: storage_page_key(space, key).
struct PageName {
  std::uint64_t low = 0, high = 0;
  friend auto operator<=>(const PageName&, const PageName&) = default;
};
PageName page_name(const PageKey& space, const PageKey& key);
struct PageNameHash {  // a name is already uniform
  std::size_t operator()(const PageName& name) const noexcept { return static_cast<std::size_t>(name.low); }
};

class SegmentIndex;

class Segment {
 public:
  Segment(FileNumber n, std::shared_ptr<BlockFile> f, std::uint32_t count)
      : number(n), file(std::move(f)), slots(count) {}
  const FileNumber number;
  const std::shared_ptr<BlockFile> file;
  const std::uint32_t slots;

 private:
  friend class SegmentIndex;
  std::vector<std::pair<std::uint32_t, PageName>> order_;  // what was written or found, in the order of its end
  std::size_t durable_ = 0;                                // the first so many of order_ survive the power
  std::uint64_t losses_ = 0;                               // how often the rest was given up
  bool listed_ = false;                                    // so does the file's entry in the folder
  std::uint64_t claimed_ = 0;
};

struct Place {
  std::shared_ptr<Segment> segment;
  std::uint32_t slot = 0;
  bool summed = false;  // its header block has a checksum that a GPU can take (slot_format.hpp)
};

class SegmentIndex {
 public:
  explicit SegmentIndex(Pages capacity) : capacity_(capacity) {}

  // ---- opening: segments and their slots in ascending order
  void add_segment(std::shared_ptr<Segment> segment);
  void add_found(const PageName& name, const Place& place);

  // ---- pages
  std::optional<Place> find(const PageName& name) const;
  enum class Standing : std::uint8_t { absent, unverified, claimed, no_room };
  // Claims it if it is there and was verified. Unverified: where it lies. No room: all of it is claimed; it stays
  // found.
  Standing claim(const PageName& name, Place& place);
  // Room for one page to be written; an unclaimed page makes room. False: all room is claimed.
  bool reserve();
  void unreserve();
  void written(const PageName& name, const Place& place);
  // It was read from there, and was right.
  void verified(const PageName& name, const Place& place);
  // It was read from there, and wasn't right. True: there is another copy now.
  bool drop(const PageName& name, const Place& place);
  void erase(const PageName& name);

  // Slots of pages that aren't there any more, which the next life would find.
  std::vector<Place> forgotten() const;

  // ---- durability
  struct Unsynced {
    std::shared_ptr<Segment> segment;
    std::size_t until = 0;     // of order_
    std::uint64_t losses = 0;  // by then
    bool listed = false;
    bool any = false;  // is there anything to sync?
  };
  std::vector<Unsynced> unsynced() const;
  Unsynced unsynced_of(const std::shared_ptr<Segment>& segment) const;
  void synced(const Unsynced& what);
  // Of the segment, what isn't known to survive: dropped. How many pages.
  Pages lost(const std::shared_ptr<Segment>& segment);

  // ---- reclaim
  // Of all but `head`, the one with the fewest claimed pages; the oldest of equals.
  std::shared_ptr<Segment> victim(const Segment* head, std::uint64_t& claimed) const;
  struct Move {
    PageName name;
    std::uint32_t from = 0;
    Place to;  // none: it couldn't be moved
    // Its copy is the last of so many that were written there; how often the segment had given up the rest by then.
    std::size_t until = 0;
    std::uint64_t losses = 0;
  };
  std::vector<Move> claimed_of(const Segment& segment) const;
  // A copy was written that doesn't count yet.
  void copied(Move& move, const Place& place);
  // The copies count, if their page still lies in the victim; whatever else lay there is gone, and so is it. False,
  // and nothing has changed: some copy may not survive the power.
  bool retire(const std::shared_ptr<Segment>& victim, const std::vector<Move>& moves);

  struct Totals {
    Pages claimed = 0, unclaimed = 0, reserved = 0;
    Pages evicted = 0;        // unclaimed ones, ever
    std::uint64_t slots = 0;  // of all segments
    std::size_t segments = 0;
  };
  Totals totals() const;
  // KV_CHECKs what the top of this file promises; slow.
  void check_invariants() const;

 private:
  struct Entry {
    Segment* segment = nullptr;  // in segments_
    std::uint32_t slot = 0;
    bool claimed = false, verified = false, summed = false;
  };
  using Entries = std::unordered_map<PageName, Entry, PageNameHash>;
  bool lies_at(const Entry& entry, const Segment& segment, std::uint32_t slot) const {
    return entry.segment == &segment && entry.slot == slot;
  }
  static Unsynced unsynced_now(const std::shared_ptr<Segment>& segment);
  bool forget(Entries::iterator at, bool spares_too);
  bool evict_oldest();

  const Pages capacity_;
  mutable std::mutex mutex_;
  std::map<FileNumber, std::shared_ptr<Segment>> segments_;
  Entries entries_;
  std::unordered_multimap<PageName, Entry, PageNameHash> spares_;
  std::deque<std::pair<PageName, FileNumber>> oldest_;  // found at open, in order; may have gone since
  Pages claimed_ = 0, unclaimed_ = 0, reserved_ = 0, evicted_ = 0;
  std::uint64_t slots_ = 0;
};

}  // namespace kvtwin
