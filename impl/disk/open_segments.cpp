#include <algorithm>
#include <cerrno>
#include <system_error>

#include "impl/disk/block_list.hpp"
#include "impl/disk/own_folder.hpp"
#include "impl/disk/segment_core.hpp"

namespace kvtwin {
namespace {

struct FoundFile {
  FileNumber number = 0;
  OpenedFile opened;
  SuperblockKind kind = SuperblockKind::stranger;  // until its superblock has been read
  std::uint32_t slots = 0;
};

std::vector<FoundFile> open_files(SegmentCore& core) {
  int error = 0;
  std::vector<FoundFile> found;
  const std::vector<FileNumber> numbers = core.files->list(error);
  if (error != 0) throw std::system_error(-error, std::generic_category(), "listing the disk tier's folder");
  for (const FileNumber number : numbers) {
    OpenedFile opened = core.files->open(number);
    // The user can change this setting. The stored pages must not be dropped because of it.
    if (is_file_limit(-opened.error) || opened.error == -ENOMEM) {
      throw std::system_error(-opened.error, std::generic_category(),
                              "opening the disk tier's " + std::to_string(numbers.size()) +
                                  " segments, which stay open, where " + file_limit_sentence());
    }
    if (!opened.file) ++core.counters.io_errors;
    found.push_back({number, std::move(opened), SuperblockKind::stranger, 0});
  }
  return found;
}

void read_superblocks(SegmentCore& core, BlockQueue& queue, std::span<FoundFile> found) {
  std::vector<BlockItem> items;
  std::vector<FoundFile*> files;
  for (FoundFile& file : found) {
    if (!file.opened.file) continue;
    if (file.opened.bytes == 0) {
      file.kind = SuperblockKind::damaged;
      continue;
    }
    items.push_back({file.opened.file.get(), 0});
    files.push_back(&file);
  }
  read_blocks(queue, core.depth, kBlockBytes, items, [&](std::size_t i, std::span<const std::byte> block) {
    FoundFile& file = *files[i];
    if (block.empty()) {  // a later run may be able to read it
      ++core.counters.io_errors;
      return;
    }
    if (block.size() < kBlockBytes) {
      file.kind = kind_of_stump(file.number, block);
      return;
    }
    std::uint64_t slots = 0;
    file.kind = read_superblock(core.form, file.number, block.first<kBlockBytes>(), slots);
    // The file's real size limits the number of slots.
    const Bytes fit = (file.opened.bytes - kBlockBytes) / slot_bytes(core.form);
    file.slots = static_cast<std::uint32_t>(std::min<std::uint64_t>({slots, fit, UINT32_MAX}));
  });
}

struct FoundSlot {
  std::size_t file = 0;
  std::uint32_t slot = 0;
  HeaderKind kind = HeaderKind::empty;
  PageName name;
  bool summed = false, readable = false;  // readable: by the secret of this run
};

// Returns all slots of the tier's segments, file by file, in order.
std::vector<FoundSlot> read_headers(SegmentCore& core, BlockQueue& queue, std::span<const FoundFile> found) {
  std::vector<FoundSlot> slots;
  std::vector<BlockItem> items;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].kind != SuperblockKind::ours) continue;
    for (std::uint32_t slot = 0; slot < found[i].slots; ++slot) {
      slots.push_back({i, slot, HeaderKind::empty, {}, false, false});
      items.push_back({found[i].opened.file.get(), slot_offset(core.form, slot)});
    }
  }
  read_blocks(queue, core.depth, kBlockBytes, items, [&](std::size_t i, std::span<const std::byte> block) {
    FoundSlot& it = slots[i];
    PageClaim claim;
    if (block.size() < kBlockBytes) {
      ++core.counters.io_errors;
      it.kind = HeaderKind::damaged;
      return;
    }
    it.kind = read_header_block(core.form, found[it.file].number, it.slot, block.first<kBlockBytes>(), claim);
    if (it.kind == HeaderKind::page) {
      it.readable = claim.secret == id_of(core.seal);
      if (!it.readable) ++core.counters.other_secret;
      it.name = page_name(claim.space, claim.key);
      it.summed = read_page_sum(block.first<kBlockBytes>()).has_value();
    }
    if (it.kind == HeaderKind::damaged) ++core.counters.corrupt;
  });
  return slots;
}

void remove_file(SegmentCore& core, FoundFile& file) {
  if (core.files->remove(file.number, file.opened.file.get()) != 0) ++core.counters.io_errors;
}

// A segment that was not full has unused slots: their room is freed. They are not filled, because a write of the
// previous process may still be in progress there.
void add_segment(SegmentCore& core, FoundFile& file, std::span<const FoundSlot> slots) {
  std::uint32_t used = 0;
  for (const FoundSlot& it : slots) {
    if (it.kind != HeaderKind::empty) used = it.slot + 1;
  }
  if (used == 0) return remove_file(core, file);
  if (used < file.slots) core.files->shrink(*file.opened.file, slot_offset(core.form, used));
  const auto segment = std::make_shared<Segment>(file.number, file.opened.file, used);
  core.index.add_segment(segment);
  for (const FoundSlot& it : slots) {
    if (it.readable) core.index.add_found(it.name, {segment, it.slot, it.summed});
    if (it.kind == HeaderKind::damaged) core.index.add_damaged({segment, it.slot});
  }
}

}  // namespace

std::vector<ForeignFile> open_segments(SegmentCore& core, BlockQueue& queue) {
  std::vector<FoundFile> found = open_files(core);
  read_superblocks(core, queue, found);
  const std::vector<FoundSlot> slots = read_headers(core, queue, found);
  std::vector<ForeignFile> foreign;
  std::size_t first = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    FoundFile& file = found[i];
    if (file.kind == SuperblockKind::damaged) {
      ++core.counters.damaged_segments;
      remove_file(core, file);
    } else if (file.kind == SuperblockKind::stranger) {
      ++core.counters.strange_files;
    } else if (file.kind == SuperblockKind::foreign) {
      ++core.counters.foreign_segments;
      foreign.push_back({file.number, in_blocks(file.opened.bytes) / slot_bytes(core.form) + 1});
    } else {
      add_segment(core, file, std::span(slots).subspan(first, file.slots));
      first += file.slots;
    }
  }
  const SegmentIndex::Totals totals = core.index.totals();
  core.counters.pages_found = totals.claimed + totals.unclaimed;
  return foreign;
}

}  // namespace kvtwin
