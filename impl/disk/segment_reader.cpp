#include "impl/disk/segment_reader.hpp"

#include <cerrno>

namespace kvtwin {

SegmentReader::Way::Way(BlockQueue* q, std::uint32_t buffers, std::uint32_t m)
    : queue(q), max_reads(m), flights(buffers) {
  for (std::uint32_t i = buffers; i-- > 0;) free.push_back(i);
}

SegmentReader::SegmentReader(SegmentCore& core, BlockQueue& queue, DirectPages* direct, BlockQueue* direct_queue)
    : core_(core),
      direct_(direct),
      host_(&queue, buffers(core.depth), core.depth),
      // Some of the GPU's buffers hold pages that are being checked. With one buffer, it is read into or checked.
      gpu_(direct_queue, direct == nullptr ? 0 : direct->buffers(),
           direct == nullptr ? 0 : direct->buffers() - direct->buffers() / 3) {}

void SegmentReader::read(PageWork& work) {
  for (;;) {
    begin_reads(work);
    if (way_->idle()) return;
    ends_.clear();
    way_->queue->wait(ends_);
    way_->reading -= static_cast<std::uint32_t>(ends_.size());
    begin_reads(work);  // keeps the disk busy during the checks and copies
    if (way_ == &gpu_) {
      end_direct(work);
    } else {
      for (const BlockEnd& it : ends_) end(work, it);
    }
  }
}

void SegmentReader::begin_reads(PageWork& work) {
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
  // One flush for all reads: several reads cost the kernel, or the host of a virtual disk, little more than one.
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
  // The flight keeps the file open, even if the segment is removed.
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
    return end_read(work, buffer, check_and_deliver(work, buffer));
  }
  const Flight flight = release(buffer);
  ++core_.counters.io_errors;
  if (end.result >= 0) core_.index.drop(flight.name, flight.place);  // the file has been cut off before this slot
  work.end(flight.task, Cause::io_error);
}

// Ends the read of a whole slot. `cause`: none, or corrupt.
void SegmentReader::end_read(PageWork& work, std::uint32_t buffer, Cause cause) {
  const bool direct = way_ == &gpu_;
  const Flight flight = release(buffer);
  if (cause == Cause::none) {
    ++core_.counters.pages_read;
    core_.index.verified(flight.name, flight.place);
  } else {
    ++core_.counters.corrupt;
    // Read the other copy.
    if (core_.index.drop(flight.name, flight.place)) return waiting_.push_back({flight.task, direct});
  }
  work.end(flight.task, cause);
}

// Reads the page again through host memory. That way finds out whether the disk is at fault, and reports the cause.
void SegmentReader::retry_through_host(std::uint32_t buffer, SegmentCounters::Count& reason) {
  ++reason;
  waiting_.push_back({release(buffer).task, false});
}

void SegmentReader::end_direct(PageWork& work) {
  arrived_.clear();
  for (const BlockEnd& it : ends_) {
    const auto buffer = static_cast<std::uint32_t>(it.tag);
    if (it.result == static_cast<std::int64_t>(slot_bytes(core_.form))) {
      arrived_.push_back(buffer);
    } else {
      retry_through_host(buffer,
                         it.result == -EOPNOTSUPP ? core_.counters.direct_refused : core_.counters.direct_errors);
    }
  }
  if (arrived_.empty()) return;
  headers_.resize(arrived_.size() * kBlockBytes);
  if (!direct_->read_headers(arrived_, headers_)) {
    for (const std::uint32_t buffer : arrived_) retry_through_host(buffer, core_.counters.direct_errors);
    return;
  }
  check_headers(headers_);
  if (landings_.empty()) return;
  if (!direct_->land(landings_)) {
    for (const DirectPages::Landing& it : landings_) retry_through_host(it.buffer, core_.counters.direct_errors);
    return;
  }
  for (std::size_t i = 0; i < landings_.size(); ++i) {
    const DirectPages::Landing& it = landings_[i];
    // The fault may be the disk's or that of the way to the GPU. The way through host memory finds out.
    if (it.sum != sums_[i]) {
      retry_through_host(it.buffer, core_.counters.direct_errors);
      continue;
    }
    ++core_.counters.direct_pages;
    direct_->landed(it.slot, it.key);
    end_read(work, it.buffer, Cause::none);
  }
}

// Fills landings_ and sums_ with the pages that arrived and whose headers are right.
void SegmentReader::check_headers(std::span<const std::byte> blocks) {
  landings_.clear();
  sums_.clear();
  for (const std::uint32_t buffer : arrived_) {
    const ConstBlockBytes block = blocks.first<kBlockBytes>();
    blocks = blocks.subspan(kBlockBytes);
    const Flight& flight = gpu_.flights[buffer];
    if (check_header(flight, block) != Cause::none) {
      retry_through_host(buffer, core_.counters.direct_errors);
      continue;
    }
    const std::optional<std::uint64_t> sum = read_page_sum(block);
    if (!sum) {  // another program that knows the format has changed the block
      retry_through_host(buffer, core_.counters.unsummed);
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

Cause SegmentReader::check_and_deliver(PageWork& work, std::uint32_t buffer) {
  const Flight& flight = host_.flights[buffer];
  const std::span<const std::byte> slot = host_.queue->buffer(buffer);
  const Cause cause = check_header(flight, slot.first<kBlockBytes>());
  if (cause != Cause::none) return cause;
  return work.give(flight.task, slot.first<kPageHeaderBytes>(), slot.subspan(kBlockBytes, core_.form.bytes()));
}

}  // namespace kvtwin
