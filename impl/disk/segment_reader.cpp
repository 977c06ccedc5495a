#include "impl/disk/segment_reader.hpp"

#include <cerrno>

namespace kvtwin {

SegmentReader::Way::Way(BlockQueue* q, std::uint32_t buffers, std::uint32_t m) : queue(q), most(m), flights(buffers) {
  for (std::uint32_t i = buffers; i-- > 0;) free.push_back(i);
}

SegmentReader::SegmentReader(SegmentCore& core, BlockQueue& queue, DirectPages* direct, BlockQueue* direct_queue)
    : core_(core),
      direct_(direct),
      host_(&queue, buffers(core.depth), core.depth),
      // Of the GPU's buffers too, some hold what is being checked; with one only, it is one or the other.
      gpu_(direct_queue, direct == nullptr ? 0 : direct->buffers(),
           direct == nullptr ? 0 : direct->buffers() - direct->buffers() / 3) {}

void SegmentReader::read(PageWork& work) {
  for (;;) {
    begin_some(work);
    if (way_->idle()) return;
    ends_.clear();
    way_->queue->wait(ends_);
    way_->reading -= static_cast<std::uint32_t>(ends_.size());
    begin_some(work);  // the disk needn't wait while we check and copy
    if (way_ == &gpu_) {
      end_direct(work);
    } else {
      for (const BlockEnd& it : ends_) end(work, it);
    }
  }
}

void SegmentReader::begin_some(PageWork& work) {
  Start start;
  while (way_->has_room() && next(work, start)) {
    Way& way = start.direct ? gpu_ : host_;
    if (&way != way_ && !way_->idle()) {
      waiting_.push_front(start);
      break;
    }
    way_ = &way;
    begin(work, start);
  }
  // Together: what a few cost the kernel, and a virtual disk's host, is little more than what one does.
  way_->queue->flush();
}

bool SegmentReader::next(PageWork& work, Start& start) {
  if (!waiting_.empty()) {
    start = waiting_.front();
    waiting_.pop_front();
    return true;
  }
  if (!work.next(start.task)) return false;
  start.direct = direct_ != nullptr && start.task.memory == Tier::device;
  return true;
}

void SegmentReader::begin(PageWork& work, const Start& start) {
  const PageTask& task = start.task;
  const PageName name = page_name(task.space, task.key);
  std::optional<Place> place = core_.index.find(name);
  if (!place) {
    ++core_.counters.missing;
    return work.end(task, Cause::missing);
  }
  if (start.direct && !place->summed) {
    ++core_.counters.unsummed;
    waiting_.push_front({task, false});
    return;
  }
  const std::uint32_t buffer = way_->free.back();
  way_->free.pop_back();
  BlockFile* file = place->segment->file.get();
  const Bytes offset = slot_offset(core_.form, place->slot);
  // The flight keeps the segment's file open, whatever becomes of the segment.
  way_->flights[buffer] = {task, name, std::move(*place)};
  ++way_->reading;
  way_->queue->submit({BlockOperation::Kind::read, file, offset, slot_bytes(core_.form), buffer, buffer});
}

SegmentReader::Flight SegmentReader::release(std::uint32_t buffer) {
  Flight flight = std::exchange(way_->flights[buffer], {});
  way_->free.push_back(buffer);
  return flight;
}

void SegmentReader::end(PageWork& work, const BlockEnd& end) {
  const auto buffer = static_cast<std::uint32_t>(end.tag);
  if (end.result == static_cast<std::int64_t>(slot_bytes(core_.form))) {
    return end_read(work, buffer, check_and_give(work, buffer));
  }
  const Flight flight = release(buffer);
  ++core_.counters.io_errors;
  if (end.result >= 0) core_.index.drop(flight.name, flight.place);  // its file has been cut off before it
  work.end(flight.task, Cause::io_error);
}

// A slot was read: the page is right, and where it should be, or it is corrupt.
void SegmentReader::end_read(PageWork& work, std::uint32_t buffer, Cause cause) {
  const bool direct = way_ == &gpu_;
  const Flight flight = release(buffer);
  if (cause == Cause::none) {
    ++core_.counters.pages_read;
    core_.index.verified(flight.name, flight.place);
  } else {
    ++core_.counters.corrupt;
    if (core_.index.drop(flight.name, flight.place)) return waiting_.push_back({flight.task, direct});  // another copy
  }
  work.end(flight.task, cause);
}

// The usual way tells what is wrong with the disk, and answers for it.
void SegmentReader::bounce(std::uint32_t buffer, SegmentCounters::Count& why) {
  ++why;
  waiting_.push_back({release(buffer).task, false});
}

void SegmentReader::end_direct(PageWork& work) {
  arrived_.clear();
  for (const BlockEnd& it : ends_) {
    const auto buffer = static_cast<std::uint32_t>(it.tag);
    if (it.result == static_cast<std::int64_t>(slot_bytes(core_.form))) {
      arrived_.push_back(buffer);
    } else {
      bounce(buffer, it.result == -EOPNOTSUPP ? core_.counters.direct_refused : core_.counters.direct_errors);
    }
  }
  if (arrived_.empty()) return;
  headers_.resize(arrived_.size() * kBlockBytes);
  if (!direct_->read_headers(arrived_, headers_)) {
    for (const std::uint32_t buffer : arrived_) bounce(buffer, core_.counters.direct_errors);
    return;
  }
  check_headers(headers_);
  if (landings_.empty()) return;
  if (!direct_->land(landings_)) {
    for (const DirectPages::Landing& it : landings_) bounce(it.buffer, core_.counters.direct_errors);
    return;
  }
  for (std::size_t i = 0; i < landings_.size(); ++i) {
    const DirectPages::Landing& it = landings_[i];
    // The disk may be wrong, or the way to the GPU: the usual way tells.
    if (it.sum != sums_[i]) {
      bounce(it.buffer, core_.counters.direct_errors);
      continue;
    }
    ++core_.counters.direct_pages;
    direct_->landed(it.slot, it.key);
    end_read(work, it.buffer, Cause::none);
  }
}

// What is to land, of what arrived.
void SegmentReader::check_headers(std::span<const std::byte> blocks) {
  landings_.clear();
  sums_.clear();
  for (const std::uint32_t buffer : arrived_) {
    const ConstBlockBytes block = blocks.first<kBlockBytes>();
    blocks = blocks.subspan(kBlockBytes);
    const Flight& flight = gpu_.flights[buffer];
    if (check_header(flight, block) != Cause::none) {
      bounce(buffer, core_.counters.direct_errors);
      continue;
    }
    const std::optional<std::uint64_t> sum = read_page_sum(block);
    if (!sum) {  // changed behind our back, by somebody who knows the format
      bounce(buffer, core_.counters.unsummed);
      continue;
    }
    landings_.push_back({buffer, flight.task.slot, flight.task.key, 0});
    sums_.push_back(*sum);
  }
}

Cause SegmentReader::check_header(const Flight& flight, ConstBlockBytes block) const {
  PageClaim claim;
  const HeaderKind kind = read_header_block(core_.form, flight.place.segment->number, flight.place.slot, block, claim);
  const bool ours = kind == HeaderKind::page && claim.space == flight.task.space && claim.key == flight.task.key &&
                    claim.secret == id_of(core_.seal);
  return ours ? Cause::none : Cause::corrupt;
}

Cause SegmentReader::check_and_give(PageWork& work, std::uint32_t buffer) {
  const Flight& flight = host_.flights[buffer];
  const std::span<const std::byte> slot = host_.queue->buffer(buffer);
  const Cause cause = check_header(flight, slot.first<kBlockBytes>());
  if (cause != Cause::none) return cause;
  return work.give(flight.task, slot.first<kPageHeaderBytes>(), slot.subspan(kBlockBytes, core_.form.bytes()));
}

}  // namespace kvtwin
