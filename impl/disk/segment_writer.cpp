#include "impl/disk/segment_writer.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "impl/disk/own_folder.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kSyncTag = std::uint64_t{1} << 32;
constexpr std::size_t kMaxSyncsInFlight = 8;  // in progress; if more segments are sealed, the seal waits for its sync

Cause cause_of(std::int64_t error) {
  return error == -ENOSPC || error == -EDQUOT || error == -EFBIG ? Cause::full : Cause::io_error;
}

// Returns the largest number of slots of all segments together. The segments beyond the capacity collect dead pages:
// with more of them, reclaim rewrites fewer claimed pages. At least two: one is filled while another is emptied.
std::uint64_t max_slots(Pages capacity, std::uint64_t slots) {
  const std::uint64_t full = (capacity + slots - 1) / slots;
  return (full + std::max<std::uint64_t>(2, (full + 7) / 8)) * slots;
}

// The inverse: returns the capacity for which max_slots() is at most `most`; at least one page.
Pages capacity_within(std::uint64_t most, std::uint64_t slots) {
  const std::uint64_t segments = most / slots;
  const std::uint64_t full = segments > 18 ? segments * 8 / 9 : segments - std::min<std::uint64_t>(segments, 2);
  return std::max<Pages>(1, full * slots);
}

}  // namespace

SegmentWriter::SegmentWriter(SegmentCore& core, BlockQueue& queue, std::uint32_t segment_slots, Pages capacity,
                             bool shares_room, std::vector<ForeignFile> foreign)
    : core_(core),
      queue_(queue),
      segment_slots_(segment_slots),
      max_slots_(max_slots(capacity, segment_slots)),
      shares_room_(shares_room),
      foreign_(foreign.begin(), foreign.end()),
      flights_(core.depth),
      syncs_(kMaxSyncsInFlight) {
  for (std::uint32_t i = core.depth; i-- > 0;) free_.push_back(i);
}

void SegmentWriter::write(PageWork& work) {
  work_ = &work;
  for (;;) {
    while (!free_.empty()) {
      PageTask task;
      if (!again_.empty()) {
        task = again_.back();
        again_.pop_back();
      } else if (!work.next(task)) {
        break;
      }
      begin(task);
    }
    if (free_.size() == flights_.size() && syncing_ == 0 && again_.empty()) break;
    handle_ends();
  }
  if (shares_room_ && std::exchange(removed_, false)) give_room_back();
}

// Other stores may have the room of removed pages.
void SegmentWriter::give_room_back() {
  while (occupied() > most_slots() && drop_oldest_file()) continue;
  reclaim_until(most_slots());
}

std::uint64_t SegmentWriter::most_slots() const {
  if (!shares_room_) return max_slots_;
  const SegmentIndex::Totals now = core_.index.totals();
  return std::min(max_slots_, max_slots(now.claimed + now.reserved + now.unclaimed, segment_slots_));
}

void SegmentWriter::begin(const PageTask& task) {
  if (task.verb == StorageVerb::set) return begin_set(task);
  KV_CHECK(task.verb == StorageVerb::remove, "the writer sets and removes");
  core_.index.erase(page_name(task.space, task.key));
  removed_ = true;
  ++core_.counters.pages_removed;
  work_->end(task, Cause::none);
}

void SegmentWriter::begin_set(const PageTask& task) {
  const PageName name = page_name(task.space, task.key);
  while (pending(name)) handle_ends();
  Place place;
  switch (core_.index.claim(name, place)) {
    case SegmentIndex::Standing::claimed: ++core_.counters.pages_already_there; return work_->end(task, Cause::none);
    case SegmentIndex::Standing::unverified:
      launch({Kind::verify, task, name, place, 0}, BlockOperation::Kind::read);
      return;
    case SegmentIndex::Standing::no_room: ++core_.counters.full; return work_->end(task, Cause::full);
    case SegmentIndex::Standing::absent: break;
  }
  while (!core_.index.reserve(name)) {
    if (core_.index.evicts() && free_.size() < flights_.size()) {  // pages that are being written cannot be evicted yet
      handle_ends();
      continue;
    }
    ++core_.counters.full;
    return work_->end(task, Cause::full);
  }
  if (const Cause cause = provide_head(); cause != Cause::none) {
    core_.index.unreserve(name);
    ++(cause == Cause::full ? core_.counters.full : core_.counters.io_errors);
    return work_->end(task, cause);
  }
  const std::span<std::byte> slot = queue_.buffer(free_.back());
  PageHeader header;
  work_->take(task, header, slot.subspan(kBlockBytes, core_.form.bytes()));
  std::ranges::copy(header, slot.begin());
  const std::span<std::byte> rest = slot.subspan(kBlockBytes + core_.form.bytes());
  std::ranges::fill(rest, std::byte{0});
  place = take_slot();
  seal(place, slot, std::nullopt);
  launch({Kind::set, task, name, std::move(place), 0}, BlockOperation::Kind::write);
}

void SegmentWriter::resize(Pages capacity) {
  core_.index.set_capacity(capacity);
  max_slots_ = max_slots(capacity, segment_slots_);
  while (occupied() > max_slots_ && drop_oldest_file()) continue;
  reclaim_until(max_slots_);  // on failure, the next segment makes room
  drain();
}

bool SegmentWriter::pending(const PageName& name) const {
  return std::ranges::any_of(flights_, [&](const Flight& it) { return it.place.segment && it.name == name; });
}

// Uses the next free buffer.
std::uint32_t SegmentWriter::launch(Flight flight, BlockOperation::Kind kind) {
  const std::uint32_t buffer = free_.back();
  free_.pop_back();
  flights_[buffer] = std::move(flight);
  const Place& place = flights_[buffer].place;
  queue_.submit(
      {kind, place.segment->file.get(), slot_offset(core_.form, place.slot), slot_bytes(core_.form), buffer, buffer});
  queue_.flush();  // the disk works while the next page is copied
  return buffer;
}

void SegmentWriter::handle_ends() {
  std::vector<BlockEnd> ends;
  queue_.wait(ends);
  for (const BlockEnd& it : ends) end(it);
}

void SegmentWriter::end(const BlockEnd& end) {
  if (end.tag >= kSyncTag) return end_sync(end);
  const auto buffer = static_cast<std::uint32_t>(end.tag);
  Flight flight = std::exchange(flights_[buffer], {});
  if (!whole(end.result) && flight.kind != Kind::set) ++core_.counters.io_errors;
  if (flight.kind == Kind::move_read) return end_move_read(std::move(flight), buffer, end.result);
  if (flight.kind == Kind::verify) {
    end_verify(flight, buffer, end.result);
  } else if (flight.kind == Kind::set) {
    end_set(flight, end.result);
  } else {
    end_move_write(flight, end.result);
  }
  free_.push_back(buffer);
}

void SegmentWriter::end_set(const Flight& flight, std::int64_t result) {
  Cause cause = Cause::none;
  if (whole(result)) {
    core_.index.written(flight.name, flight.place);
    ++core_.counters.pages_written;
  } else {
    core_.index.unreserve(flight.name);
    cause = cause_of(result < 0 ? result : -ENOSPC);  // a disk that writes fewer bytes has no room
    ++(cause == Cause::full ? core_.counters.full : core_.counters.io_errors);
  }
  slot_ended(flight.place);
  work_->end(flight.task, cause);
}

// If the page is right, the set is repeated and claims the page. Otherwise the repeated set writes the page.
void SegmentWriter::end_verify(const Flight& flight, std::uint32_t buffer, std::int64_t result) {
  if (holds(buffer, flight.name, flight.place, result)) {
    core_.index.verified(flight.name, flight.place);
  } else {
    if (whole(result)) ++core_.counters.corrupt;
    core_.index.drop(flight.name, flight.place);
  }
  again_.push_back(flight.task);
}

// Completes a slot that has its page header and payload. `sum`: checksum of the payload, if known.
void SegmentWriter::seal(Place& place, std::span<std::byte> slot, std::optional<std::uint64_t> sum) {
  if (!sum && core_.sums) sum = page_sum(core_.form, slot.subspan(kBlockBytes, core_.form.bytes()));
  place.summed = sum.has_value();
  seal_header_block(place.segment->number, place.slot, slot.first<kBlockBytes>(), sum);
}

bool SegmentWriter::holds(std::uint32_t buffer, const PageName& name, const Place& place, std::int64_t result) {
  return whole(result) && slot_holds(core_, name, place, queue_.buffer(buffer).first(slot_bytes(core_.form)));
}

// ---- the head ----------------------------------------------------------------------------------------

Place SegmentWriter::take_slot() {
  Filling& it = filling_.back();
  ++it.writing;
  Place place{it.segment, it.next++};
  core_.index.begin_write(place);
  return place;
}

// Seals the segment after its last slot.
void SegmentWriter::slot_ended(const Place& place) {
  const auto at = std::ranges::find(filling_, place.segment, &Filling::segment);
  if (--at->writing > 0 || at->next < place.segment->slots) return;
  filling_.erase(at);
  const SegmentIndex::Unsynced what = core_.index.unsynced_of(place.segment);
  const auto slot = std::ranges::find_if(syncs_, [](const Sync& it) { return !it.what; });
  if (slot == syncs_.end()) {
    sync_segments(core_, std::span(&what, 1));
    return;
  }
  slot->what = what;
  ++syncing_;
  const auto tag = static_cast<std::uint64_t>(slot - syncs_.begin());
  queue_.submit({BlockOperation::Kind::sync, what.segment->file.get(), 0, 0, 0, kSyncTag + tag});
}

void SegmentWriter::end_sync(const BlockEnd& end) {
  Sync& sync = syncs_[end.tag - kSyncTag];
  if (end.result >= 0 && !sync.what->listed && !sync.folder) {
    sync.folder = true;
    queue_.submit({BlockOperation::Kind::sync, &core_.files->folder(), 0, 0, 0, end.tag});
    return;
  }
  const SegmentIndex::Unsynced what = *sync.what;
  sync = {};
  --syncing_;
  if (end.result < 0) return lose_segment(core_, what.segment);
  core_.index.synced(what);
}

std::uint64_t SegmentWriter::occupied() const {
  std::uint64_t slots = core_.index.totals().slots;
  for (const ForeignFile& file : foreign_) slots += file.slots;
  return slots;
}

void SegmentWriter::drain() {
  while (free_.size() < flights_.size() || syncing_ > 0) handle_ends();
}

// The copies of a reclaim may fill the new head at once. On a medium that has just become too small, this happens a few
// times.
Cause SegmentWriter::provide_head() {
  std::size_t rounds = core_.index.evicts() ? core_.index.totals().segments + 4 : 1;
  while (!has_head()) {
    if (rounds-- == 0) return Cause::full;
    if (const Cause cause = make_head(); cause != Cause::none) return cause;
  }
  return Cause::none;
}

// The room of one segment is reserved for the copies of reclaim, so that reclaim can always start.
Cause SegmentWriter::make_head() {
  // A segment can only be dropped when nothing is being written to it. drain() empties the queue, but only once per
  // segment.
  if (occupied() + 2 * segment_slots_ > most_slots()) drain();
  while (occupied() + 2 * segment_slots_ > most_slots() && drop_oldest_file()) continue;
  if (occupied() + segment_slots_ > most_slots() && !free_slots()) return Cause::io_error;
  if (!has_head()) {
    const Cause cause = open_head();
    if (cause != Cause::none) return cause;
  }
  free_slots();  // on failure, the next call must succeed
  return Cause::none;
}

// Makes room for a segment, by a reclaim. If the medium has no room for the copies, gives up a segment.
bool SegmentWriter::free_slots() {
  create_error_ = 0;
  if (reclaim_until(most_slots() - segment_slots_)) return true;
  return core_.index.evicts() && lacks_room() && give_up_segment();
}

Cause SegmentWriter::open_head() {
  const std::uint32_t slots = segment_slots_;
  for (;;) {
    const Cause cause = create_head();
    if (cause != Cause::full) return cause;
    drain();  // the disk has less room than expected
    if (drop_oldest_file()) continue;
    if (!core_.index.evicts()) return cause;
    // A small medium gets small segments, because a reclaim needs the room of one.
    constexpr std::uint64_t kMinSegments = 8;
    if (segment_slots_ > 1 && occupied() < kMinSegments * segment_slots_) {
      segment_slots_ = (segment_slots_ + 1) / 2;
      continue;
    }
    if (fit_to_medium()) continue;
    segment_slots_ = slots;
    return cause;
  }
}

// The medium is full, with the segments that are there: they are all that the store can have. Evicts the pages that do
// not fit then. One segment makes room for the next; its pages cannot be moved, because the medium is full. Returns
// false if no segment can go, or if that would not help.
bool SegmentWriter::fit_to_medium() {
  if (occupied() == 0 || !lacks_room()) return false;
  max_slots_ = occupied();
  core_.index.set_capacity(std::min(core_.index.totals().capacity, capacity_within(max_slots_, segment_slots_)));
  return give_up_segment();
}

// Evicts the pages of a segment: of one that is larger than new ones, because their copies would need several segments;
// else of the one with the fewest claimed pages.
bool SegmentWriter::give_up_segment() {
  drain();
  std::uint64_t claimed = 0;
  std::shared_ptr<Segment> victim = core_.index.victim(head(), claimed, segment_slots_ + 1);
  if (!victim) victim = core_.index.victim(head(), claimed);
  if (!victim || !core_.index.retire(victim, {})) return false;
  unlink(victim);
  return true;
}

Cause SegmentWriter::create_head() {
  const FileNumber number = core_.files->next_number();
  std::array<std::byte, kBlockBytes> block;
  write_superblock(core_.form, number, segment_slots_, block);
  OpenedFile opened = core_.files->create(number, slot_offset(core_.form, segment_slots_), block);
  create_error_ = opened.error;
  if (is_file_limit(-opened.error)) ++core_.counters.file_limit;
  if (!opened.file) return cause_of(opened.error);
  const auto segment = std::make_shared<Segment>(number, std::move(opened.file), segment_slots_);
  core_.index.add_segment(segment);
  filling_.push_back({segment, 0, 0});
  return Cause::none;
}

// Drops the oldest file of another form, or the oldest segment of earlier runs without claimed pages.
bool SegmentWriter::drop_oldest_file() {
  if (!foreign_.empty()) {
    if (core_.files->remove(foreign_.front().number, nullptr) != 0) ++core_.counters.io_errors;
    foreign_.pop_front();
    ++core_.counters.foreign_reclaimed;
    return true;
  }
  std::uint64_t claimed = 0;
  const std::shared_ptr<Segment> victim = core_.index.victim(head(), claimed);
  if (!victim || claimed != 0) return false;
  core_.index.retire(victim, {});
  unlink(victim);
  return true;
}

// ---- reclaim -----------------------------------------------------------------------------------------

bool SegmentWriter::reclaim_until(std::uint64_t slots) {
  // Ends, because all claimed pages together need fewer segments. This number of rounds is enough.
  for (std::size_t i = core_.index.totals().segments + 4; occupied() > slots; --i) {
    const std::shared_ptr<Segment> victim = core_.index.most_dead(head());
    if (!victim || i == 0 || !reclaim(victim)) return false;
  }
  return true;
}

bool SegmentWriter::reclaim(const std::shared_ptr<Segment>& victim) {
  drain();
  moves_ = core_.index.claimed_of(*victim);
  if (!move_pages(*victim)) return false;
  std::vector<SegmentIndex::Unsynced> targets;
  for (const SegmentIndex::Move& move : moves_) {
    if (!move.to.segment ||
        std::ranges::find(targets, move.to.segment, &SegmentIndex::Unsynced::segment) != targets.end())
      continue;
    targets.push_back(core_.index.unsynced_of(move.to.segment));
  }
  if (!sync_segments(core_, targets)) return false;
  if (!core_.index.retire(victim, moves_)) return false;  // a sync failed during the copies
  for (const SegmentIndex::Move& move : moves_) core_.counters.pages_moved += move.to.segment ? 1U : 0U;
  unlink(victim);
  return true;
}

// Returns false if a copy could not be written.
bool SegmentWriter::move_pages(const Segment& victim) {
  move_failed_ = false;
  for (std::size_t next = 0; next < moves_.size() || free_.size() < flights_.size() || syncing_ > 0;) {
    if (move_failed_) next = moves_.size();
    for (; next < moves_.size() && !free_.empty(); ++next) {
      const std::optional<Place> from = core_.index.find(moves_[next].name);
      // Skips a page that the reader has dropped in the meantime.
      if (from && from->segment.get() == &victim && from->slot == moves_[next].from) {
        launch({Kind::move_read, {}, moves_[next].name, *from, next}, BlockOperation::Kind::read);
      }
    }
    handle_ends();
  }
  return !move_failed_;
}

void SegmentWriter::end_move_read(Flight flight, std::uint32_t buffer, std::int64_t result) {
  free_.push_back(buffer);
  if (!holds(buffer, flight.name, flight.place, result)) {
    if (whole(result)) ++core_.counters.corrupt;
    core_.index.drop(flight.name, flight.place);
    return;
  }
  if (move_failed_ || (!has_head() && create_head() != Cause::none)) {
    move_failed_ = true;
    return;
  }
  Place place = take_slot();
  const std::span<std::byte> slot = queue_.buffer(buffer);
  seal(place, slot, read_page_sum(slot.first<kBlockBytes>()));
  flight.kind = Kind::move_write;
  flight.place = std::move(place);
  launch(std::move(flight), BlockOperation::Kind::write);  // uses the same buffer, which was freed last
}

void SegmentWriter::end_move_write(const Flight& flight, std::int64_t result) {
  if (whole(result)) {
    core_.index.copied(moves_[flight.move], flight.place);
  } else {
    move_failed_ = true;
  }
  slot_ended(flight.place);
}

void SegmentWriter::unlink(const std::shared_ptr<Segment>& victim) {
  if (core_.files->remove(victim->number, victim->file.get()) != 0) {
    ++core_.counters.io_errors;
    core_.not_removed.push_back(victim);
  }
  ++core_.counters.segments_reclaimed;
}

}  // namespace kvtwin
