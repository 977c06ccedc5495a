// The regular end of the disk tier. A removed, evicted or overwritten page lies in its slot until its segment is
// removed, so that its header block is overwritten with zeros, as in a slot that was never used.
#include <algorithm>
#include <system_error>

#include "impl/disk/block_list.hpp"
#include "impl/disk/segment_core.hpp"

namespace kvtwin {

bool slot_holds(const SegmentCore& core, const PageName& name, const Place& place, std::span<const std::byte> slot) {
  if (slot.size() < slot_bytes(core.form)) return false;
  PageClaim claim;
  const HeaderKind kind =
      read_header_block(core.form, place.segment->number, place.slot, slot.first<kBlockBytes>(), claim);
  return kind == HeaderKind::page && page_name(claim.space, claim.key) == name &&
         holds_page(core.form, claim.space, claim.key, slot.first<kPageHeaderBytes>(),
                    slot.subspan(kBlockBytes, core.form.bytes()), core.seal);
}

namespace {

// Of each page that was found several times, keeps the youngest copy that is right. A crash may have torn the youngest
// one while it was moved, so its older copy is given up only after a read.
void settle_copies(SegmentCore& core) {
  std::vector<SegmentIndex::Copy> copies = core.index.unsettled();
  if (copies.empty()) return;
  const Bytes bytes = slot_bytes(core.form);
  const std::unique_ptr<BlockQueue> queue = core.files->queue(core.depth, bytes);
  for (; !copies.empty(); copies = core.index.unsettled()) {
    std::vector<BlockItem> items;
    for (const auto& [name, place] : copies) {
      items.push_back({place.segment->file.get(), slot_offset(core.form, place.slot)});
    }
    read_blocks(*queue, core.depth, bytes, items, [&](std::size_t i, std::span<const std::byte> slot) {
      const auto& [name, place] = copies[i];
      if (slot_holds(core, name, place, slot)) return core.index.verified(name, place);
      ++core.counters.corrupt;
      core.index.drop(name, place);
    });
  }
}

using Segments = std::vector<std::shared_ptr<Segment>>;  // each once

// Overwrites the blocks with zeros. `of`: the segments of the items, grouped. Returns the segments in which this
// failed.
Segments zero_blocks(SegmentCore& core, std::span<const BlockItem> items, const Segments& of) {
  Segments failed;
  const auto fail = [&failed](const std::shared_ptr<Segment>& segment) {
    if (std::ranges::find(failed, segment) == failed.end()) failed.push_back(segment);
  };
  const std::unique_ptr<BlockQueue> queue = core.files->queue(core.depth, kBlockBytes);
  for (std::uint32_t i = 0; i < core.depth; ++i) std::ranges::fill(queue->buffer(i), std::byte{0});
  for_each_block(*queue, core.depth, BlockOperation::Kind::write, kBlockBytes, items,
                 [&](std::size_t i, std::int64_t result, std::span<const std::byte>) {
                   if (result == static_cast<std::int64_t>(kBlockBytes)) return;
                   ++core.counters.io_errors;
                   fail(of[i]);
                 });
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (i > 0 && of[i] == of[i - 1]) continue;
    if (core.files->sync(*of[i]->file) == 0) continue;
    ++core.counters.failed_syncs;
    fail(of[i]);
  }
  return failed;
}

}  // namespace

void forget_for_good(SegmentCore& core) {
  std::vector<BlockItem> items;
  Segments of, failed;
  try {
    settle_copies(core);
    for (const Place& it : core.index.dead_slots()) {
      items.push_back({it.segment->file.get(), slot_offset(core.form, it.slot)});
      of.push_back(it.segment);
    }
    for (const std::shared_ptr<Segment>& it : core.not_removed) {
      if (core.files->remove(it->number, it->file.get()) == 0) continue;
      items.push_back({it->file.get(), 0});  // a segment without a superblock is damaged: the next run removes it
      of.push_back(it);
    }
    if (!items.empty()) failed = zero_blocks(core, items, of);
  } catch (const std::system_error&) {  // no queue
    ++core.counters.io_errors;
    for (const Place& it : core.index.dead_slots()) {
      if (failed.empty() || failed.back() != it.segment) failed.push_back(it.segment);
    }
  }
  // Rather no page than one that was removed.
  for (const std::shared_ptr<Segment>& it : failed) {
    if (core.files->remove(it->number, it->file.get()) != 0) ++core.counters.io_errors;
  }
  if (core.files->sync_folder() != 0) ++core.counters.failed_syncs;  // removed segments do not come back
}

}  // namespace kvtwin
