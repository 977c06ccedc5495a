#include "impl/disk/segment_reader.hpp"

namespace kvtwin {

SegmentReader::SegmentReader(SegmentCore& core, BlockQueue& queue)
    : core_(core), queue_(queue), flights_(buffers(core.depth)) {
  for (auto i = static_cast<std::uint32_t>(flights_.size()); i-- > 0;) free_.push_back(i);
}

void SegmentReader::read(PageWork& work) {
  for (;;) {
    begin_some(work);
    if (free_.size() == flights_.size()) return;
    ends_.clear();
    queue_.wait(ends_);
    reading_ -= static_cast<std::uint32_t>(ends_.size());
    begin_some(work);  // the disk needn't wait while we check and copy
    for (const BlockEnd& it : ends_) end(work, it);
  }
}

void SegmentReader::begin_some(PageWork& work) {
  PageTask task;
  while (reading_ < core_.depth && !free_.empty() && work.next(task)) begin(work, task);
  queue_.flush();  // together: what a few cost the kernel, and a virtual disk's host, is little more than what one does
}

void SegmentReader::begin(PageWork& work, const PageTask& task) {
  const PageName name = page_name(task.space, task.key);
  std::optional<Place> place = core_.index.find(name);
  if (!place) {
    ++core_.counters.missing;
    return work.end(task, Cause::missing);
  }
  const std::uint32_t buffer = free_.back();
  free_.pop_back();
  BlockFile* file = place->segment->file.get();
  const Bytes offset = slot_offset(core_.form, place->slot);
  // The flight keeps the segment's file open, whatever becomes of the segment.
  flights_[buffer] = {task, name, std::move(*place)};
  ++reading_;
  queue_.submit({BlockOperation::Kind::read, file, offset, slot_bytes(core_.form), buffer, buffer});
}

void SegmentReader::end(PageWork& work, const BlockEnd& end) {
  const auto buffer = static_cast<std::uint32_t>(end.tag);
  const Flight flight = flights_[buffer];
  Cause cause = Cause::io_error;
  bool another_copy = false;
  if (end.result == static_cast<std::int64_t>(slot_bytes(core_.form))) {
    cause = check_and_give(work, buffer);
    if (cause == Cause::none) {
      ++core_.counters.pages_read;
      core_.index.verified(flight.name, flight.place);
    } else {
      ++core_.counters.corrupt;
      another_copy = core_.index.drop(flight.name, flight.place);
    }
  } else {
    ++core_.counters.io_errors;
    if (end.result >= 0) core_.index.drop(flight.name, flight.place);  // its file has been cut off before it
  }
  flights_[buffer] = {};
  free_.push_back(buffer);
  if (another_copy) return begin(work, flight.task);
  work.end(flight.task, cause);
}

Cause SegmentReader::check_and_give(PageWork& work, std::uint32_t buffer) {
  const Flight& flight = flights_[buffer];
  const std::span<const std::byte> slot = queue_.buffer(buffer);
  PageClaim claim;
  const HeaderKind kind =
      read_header_block(core_.form, flight.place.segment->number, flight.place.slot, slot.first<kBlockBytes>(), claim);
  if (kind != HeaderKind::page || claim.space != flight.task.space || claim.key != flight.task.key) {
    return Cause::corrupt;
  }
  return work.give(flight.task, slot.first<kPageHeaderBytes>(), slot.subspan(kBlockBytes, core_.form.bytes()));
}

}  // namespace kvtwin
