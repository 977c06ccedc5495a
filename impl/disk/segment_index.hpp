// The disk tier's index: for each page its segment and slot, whether a set of this run claims the page, and whether the
// page survives a power loss. In memory only.
// Thread: any thread. Cost: a call holds a mutex for a few look-ups.
//
//   absent --reserve, written--> claimed --erase--> absent                      set in this run
//   found at start --> unclaimed --verified--> unclaimed --claim--> claimed     a set does not rewrite a right page
//                      unclaimed --evicted, oldest segment first--> absent
//
// claimed + reserved pages never exceed the capacity. reserve() evicts unclaimed pages until all pages fit. Unclaimed
// pages are not evicted earlier, because the index does not know yet which of them sets will claim, and which of them
// had been removed in an earlier run.
//
// With an eviction policy, nobody else makes room: pages that are found at the start are claimed at once, and reserve()
// evicts the policy's victims. The policy sees each page as a chain of its own, because keys do not tell their parents.
//
// A page can be found twice at the start, if it was moved or set again before a crash. The index keeps the older copies
// as spares, because only a read shows which copy is complete. As soon as a read has shown that the youngest copy is
// right, the spares are gone: they may be copies that were removed.
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
#include "policy/storage/catalog.hpp"

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
      : number(n), file(std::move(f)), slots(count), used_(count) {}
  const FileNumber number;
  const std::shared_ptr<BlockFile> file;
  const std::uint32_t slots;

 private:
  friend class SegmentIndex;
  std::vector<std::pair<std::uint32_t, PageName>> order_;  // written or found slots, in order of their end
  std::size_t durable_ = 0;   // the first `durable_` entries of order_ survive a power loss
  std::uint64_t losses_ = 0;  // number of failed syncs, each of which dropped the entries that were not durable
  bool listed_ = false;       // the file's entry in the folder survives a power loss
  std::uint64_t claimed_ = 0;
  std::vector<bool> used_;  // by slot: a later run may find a page there
};

struct Place {
  std::shared_ptr<Segment> segment;
  std::uint32_t slot = 0;
  bool summed = false;  // the header block has a checksum that a GPU can compute (slot_format.hpp)
};

class SegmentIndex {
 public:
  // `eviction`: null if the caller of the store makes room.
  explicit SegmentIndex(Pages capacity, std::unique_ptr<EvictionPolicy> eviction = nullptr);
  bool evicts() const { return catalog_.has_value(); }

  // ---- start: segments, and slots of each segment, in ascending order
  void add_segment(std::shared_ptr<Segment> segment);
  void add_found(const PageName& name, const Place& place);
  // The slot holds something, and no page that this run can read.
  void add_damaged(const Place& place);

  // ---- pages
  std::optional<Place> find(const PageName& name) const;
  enum class Standing : std::uint8_t { absent, unverified, claimed, no_room };
  // Claims a page that is present and verified. `unverified`: the page is at `place`; read and verify it first.
  // `no_room`: all room is claimed; the page stays unclaimed.
  Standing claim(const PageName& name, Place& place);
  // Reserves room for a page to write; evicts pages as needed. Returns false if all room is claimed (with an eviction
  // policy: if all room is reserved for pages that are being written).
  bool reserve(const PageName& name);
  void unreserve(const PageName& name);
  // Changes the capacity, to at most that of the constructor, and evicts the pages that are too many. Requires:
  // evicts().
  void set_capacity(Pages capacity);
  // A write to the slot begins. However the write ends, a later run may find a page there.
  void begin_write(const Place& place);
  void written(const PageName& name, const Place& place);
  // The page was read at `place` and is right.
  void verified(const PageName& name, const Place& place);
  // The page was read at `place` and is wrong. Returns true if the index now has another copy.
  bool drop(const PageName& name, const Place& place);
  void erase(const PageName& name);

  // ---- end
  struct Copy {
    PageName name;
    Place place;
  };
  // Returns the youngest copies of the pages that have spares.
  std::vector<Copy> unsettled() const;
  // Returns the slots, segment by segment, in which a later run may find a page that is not present: a removed,
  // evicted, overwritten, moved or lost one. The name does not matter, because another copy may be present.
  std::vector<Place> dead_slots() const;

  // ---- durability
  struct Unsynced {
    std::shared_ptr<Segment> segment;
    std::size_t until = 0;     // number of entries of Segment::order_
    std::uint64_t losses = 0;  // Segment::losses_ at this time
    bool listed = false;
    bool any = false;  // whether there is anything to sync
  };
  std::vector<Unsynced> unsynced() const;
  Unsynced unsynced_of(const std::shared_ptr<Segment>& segment) const;
  void synced(const Unsynced& what);
  // Drops the pages of the segment that are not durable. Returns their number.
  Pages lost(const std::shared_ptr<Segment>& segment);

  // ---- reclaim
  // Returns the segment with the fewest claimed pages, except `head`; among equal ones, the oldest. `min_slots`: only
  // segments of at least this size.
  std::shared_ptr<Segment> victim(const Segment* head, std::uint64_t& claimed, std::uint32_t min_slots = 0) const;
  // Returns the segment with the most slots that a reclaim gains, except `head`; among equal ones, the one with the
  // fewest claimed pages, and then the oldest. Null: a reclaim gains nothing.
  std::shared_ptr<Segment> most_dead(const Segment* head) const;
  struct Move {
    PageName name;
    std::uint32_t from = 0;
    Place to;  // null: the page could not be moved
    // The copy is among the first `until` entries of its segment. `losses`: Segment::losses_ at the time of the copy.
    std::size_t until = 0;
    std::uint64_t losses = 0;
  };
  std::vector<Move> claimed_of(const Segment& segment) const;
  // A copy was written. It does not count before retire().
  void copied(Move& move, const Place& place);
  // Moves the index entries of pages that are still in the victim to their copies; all other pages of the victim, and
  // the victim, are gone. Returns false without a change if some copy may not survive a power loss.
  bool retire(const std::shared_ptr<Segment>& victim, const std::vector<Move>& moves);

  struct Totals {
    Pages claimed = 0, unclaimed = 0, reserved = 0;
    Pages evicted = 0;        // since the start
    Pages capacity = 0;       // now
    std::uint64_t slots = 0;  // of all segments
    std::size_t segments = 0;
  };
  Totals totals() const;
  // KV_CHECKs the rules at the top of this file. Slow.
  void check_invariants() const;

 private:
  struct Entry {
    Segment* segment = nullptr;  // an element of segments_
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
  void evict_until(Pages free);
  void visit(const PageName& name);
  void use(const PageName& name);

  Pages capacity_;
  mutable std::mutex mutex_;
  std::map<FileNumber, std::shared_ptr<Segment>> segments_;
  Entries entries_;
  std::unordered_multimap<PageName, Entry, PageNameHash> spares_;
  std::deque<std::pair<PageName, FileNumber>> oldest_;  // found at start, in order; entries may be outdated
  Pages claimed_ = 0, unclaimed_ = 0, reserved_ = 0, evicted_ = 0;
  std::uint64_t slots_ = 0;
  std::optional<Catalog> catalog_;  // all claimed and reserved pages
  std::vector<PageKey> victims_;
  RequestId visits_ = 0;
};

}  // namespace kvtwin
