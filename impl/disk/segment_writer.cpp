#include "impl/disk/segment_writer.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "impl/disk/own_folder.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kSyncTag = std::uint64_t{1} << 32;
constexpr std::size_t kMostSyncs = 8;  // under way; sealing one more segment waits for its sync

Cause cause_of(std::int64_t error) {
  return error == -ENOSPC || error == -EDQUOT || error == -EFBIG ? Cause::full : Cause::io_error;
}

// Segments beyond the capacity: dead pages gather there, and the more of them, the fewer live ones are rewritten to get
// at their room. Two at least: one that is filled while another is emptied, and what that one gives.
std::uint64_t most_slots(Pages capacity, std::uint64_t slots) {
  const std::uint64_t full = (capacity + slots - 1) / slots;
  return (full + std::max<std::uint64_t>(2, (full + 7) / 8)) * slots;
}

}  // namespace

SegmentWriter::SegmentWriter(SegmentCore& core, BlockQueue& queue, std::uint32_t segment_slots, Pages capacity,
                             std::vector<ForeignFile> foreign)
    : core_(core),
      queue_(queue),
      segment_slots_(segment_slots),
      most_slots_(most_slots(capacity, segment_slots)),
      foreign_(foreign.begin(), foreign.end()),
      flights_(core.depth),
      syncs_(kMostSyncs) {
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
    if (free_.size() == flights_.size() && syncing_ == 0 && again_.empty()) return;
    settle();
  }
}

void SegmentWriter::begin(const PageTask& task) {
  if (task.verb == StorageVerb::set) return begin_set(task);
  KV_CHECK(task.verb == StorageVerb::remove, "the writer sets and removes");
  core_.index.erase(page_name(task.space, task.key));
  ++core_.counters.pages_removed;
  work_->end(task, Cause::none);
}

void SegmentWriter::begin_set(const PageTask& task) {
  const PageName name = page_name(task.space, task.key);
  while (pending(name)) settle();
  Place place;
  switch (core_.index.claim(name, place)) {
    case SegmentIndex::Standing::claimed: ++core_.counters.pages_already_there; return work_->end(task, Cause::none);
    case SegmentIndex::Standing::unverified:
      launch({Kind::verify, task, name, place, 0}, BlockOperation::Kind::read);
      return;
    case SegmentIndex::Standing::no_room: ++core_.counters.full; return work_->end(task, Cause::full);
    case SegmentIndex::Standing::absent: break;
  }
  if (!core_.index.reserve()) {
    ++core_.counters.full;
    return work_->end(task, Cause::full);
  }
  if (!has_head()) {
    const Cause cause = make_head();
    if (cause != Cause::none) {
      core_.index.unreserve();
      ++(cause == Cause::full ? core_.counters.full : core_.counters.io_errors);
      return work_->end(task, cause);
    }
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

bool SegmentWriter::pending(const PageName& name) const {
  return std::ranges::any_of(flights_, [&](const Flight& it) { return it.place.segment && it.name == name; });
}

// With the next free buffer.
std::uint32_t SegmentWriter::launch(Flight flight, BlockOperation::Kind kind) {
  const std::uint32_t buffer = free_.back();
  free_.pop_back();
  flights_[buffer] = std::move(flight);
  const Place& place = flights_[buffer].place;
  queue_.submit(
      {kind, place.segment->file.get(), slot_offset(core_.form, place.slot), slot_bytes(core_.form), buffer, buffer});
  queue_.flush();  // the disk is to have work while the next page is copied
  return buffer;
}

void SegmentWriter::settle() {
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
    core_.index.unreserve();
    cause = cause_of(result < 0 ? result : -ENOSPC);  // a disk that takes less than it is given has no room
    ++(cause == Cause::full ? core_.counters.full : core_.counters.io_errors);
  }
  slot_ended(flight.place);
  work_->end(flight.task, cause);
}

// Right: the set finds it there, and can vouch for it. Else it is written.
void SegmentWriter::end_verify(const Flight& flight, std::uint32_t buffer, std::int64_t result) {
  if (holds(buffer, flight.name, flight.place, result)) {
    core_.index.verified(flight.name, flight.place);
  } else {
    if (whole(result)) ++core_.counters.corrupt;
    core_.index.drop(flight.name, flight.place);
  }
  again_.push_back(flight.task);
}

// A slot with its page header and payload; `sum`: of the payload, if it is known.
void SegmentWriter::seal(Place& place, std::span<std::byte> slot, std::optional<std::uint64_t> sum) {
  if (!sum && core_.sums) sum = page_sum(core_.form, slot.subspan(kBlockBytes, core_.form.bytes()));
  place.summed = sum.has_value();
  seal_header_block(place.segment->number, place.slot, slot.first<kBlockBytes>(), sum);
}

bool SegmentWriter::holds(std::uint32_t buffer, const PageName& name, const Place& place, std::int64_t result) {
  if (!whole(result)) return false;
  const std::span<const std::byte> slot = queue_.buffer(buffer);
  PageClaim claim;
  const HeaderKind kind =
      read_header_block(core_.form, place.segment->number, place.slot, slot.first<kBlockBytes>(), claim);
  return kind == HeaderKind::page && page_name(claim.space, claim.key) == name &&
         holds_page(core_.form, claim.space, claim.key, slot.first<kPageHeaderBytes>(),
                    slot.subspan(kBlockBytes, core_.form.bytes()), core_.seal);
}

// ---- the head ----------------------------------------------------------------------------------------

Place SegmentWriter::take_slot() {
  Filling& it = filling_.back();
  ++it.writing;
  return {it.segment, it.next++};
}

// Seals the segment with its last slot.
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
  while (free_.size() < flights_.size() || syncing_ > 0) settle();
}

// One segment's room is kept for what reclaim moves, so that it can always begin.
Cause SegmentWriter::make_head() {
  // Nothing may be on its way to a segment that is let go. Once a segment, so the queue that runs dry costs little.
  if (occupied() + 2 * segment_slots_ > most_slots_) drain();
  while (occupied() + 2 * segment_slots_ > most_slots_ && let_oldest_go()) continue;
  if (occupied() + segment_slots_ > most_slots_ && !reclaim_until(most_slots_ - segment_slots_)) return Cause::io_error;
  if (!has_head()) {
    const Cause cause = open_head();
    if (cause != Cause::none) return cause;
  }
  reclaim_until(most_slots_ - segment_slots_);  // if it can't, the next one must
  return has_head() ? Cause::none : Cause::full;
}

Cause SegmentWriter::open_head() {
  for (;;) {
    const Cause cause = create_head();
    if (cause != Cause::full) return cause;
    drain();  // a disk fuller than we thought
    if (!let_oldest_go()) return cause;
  }
}

Cause SegmentWriter::create_head() {
  const FileNumber number = core_.files->next_number();
  std::array<std::byte, kBlockBytes> block;
  write_superblock(core_.form, number, segment_slots_, block);
  OpenedFile opened = core_.files->create(number, slot_offset(core_.form, segment_slots_), block);
  if (is_file_limit(-opened.error)) ++core_.counters.file_limit;
  if (!opened.file) return cause_of(opened.error);
  const auto segment = std::make_shared<Segment>(number, std::move(opened.file), segment_slots_);
  core_.index.add_segment(segment);
  filling_.push_back({segment, 0, 0});
  return Cause::none;
}

// A file of another form, or a segment of which nothing is claimed: those of former lives, oldest first.
bool SegmentWriter::let_oldest_go() {
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
  // All claimed pages together fill fewer segments, so that it ends; that many rounds are enough.
  for (std::size_t i = core_.index.totals().segments + 4; occupied() > slots; --i) {
    std::uint64_t claimed = 0;
    const std::shared_ptr<Segment> victim = core_.index.victim(head(), claimed);
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
  if (!core_.index.retire(victim, moves_)) return false;  // a sync failed while they were on their way
  for (const SegmentIndex::Move& move : moves_) core_.counters.pages_moved += move.to.segment ? 1U : 0U;
  unlink(victim);
  return true;
}

// False: some couldn't be written.
bool SegmentWriter::move_pages(const Segment& victim) {
  move_failed_ = false;
  for (std::size_t next = 0; next < moves_.size() || free_.size() < flights_.size() || syncing_ > 0;) {
    if (move_failed_) next = moves_.size();
    for (; next < moves_.size() && !free_.empty(); ++next) {
      const std::optional<Place> from = core_.index.find(moves_[next].name);
      // Dropped meanwhile by who read it.
      if (from && from->segment.get() == &victim && from->slot == moves_[next].from) {
        launch({Kind::move_read, {}, moves_[next].name, *from, next}, BlockOperation::Kind::read);
      }
    }
    settle();
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
  launch(std::move(flight), BlockOperation::Kind::write);  // with the same buffer: it was freed last
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
  if (core_.files->remove(victim->number, victim->file.get()) != 0) ++core_.counters.io_errors;
  ++core_.counters.segments_reclaimed;
}

}  // namespace kvtwin
