#include "impl/disk/slot_format.hpp"

#include <algorithm>
#include <cstring>

#include "impl/storage/checksum.hpp"
#include "kernels/page_checksum.hpp"
#include "policy/base/byte_order.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kSegmentMagic = 0x746E656D6765736Bu;  // "ksegment"
constexpr std::uint32_t kSegmentVersion = 1;
constexpr std::size_t kSlotsAt = 48, kNumberAt = 56, kCheckAt = kBlockBytes - 8;
constexpr std::size_t kPlaceAt = kPageHeaderBytes, kSummedAt = kPlaceAt + 16;
constexpr std::uint64_t kSummed = 1;
constexpr std::size_t kSectorBytes = 512;

void put_check(BlockBytes block) { store_le64(block.data() + kCheckAt, checksum(block.first(kCheckAt))); }
bool check_holds(ConstBlockBytes block) {
  return load_le64(block.data() + kCheckAt) == checksum(block.first(kCheckAt));
}
void zero_from(std::size_t at, BlockBytes block) { std::memset(block.data() + at, 0, kBlockBytes - at); }

}  // namespace

void write_superblock(const PageForm& form, FileNumber number, std::uint64_t slots, BlockBytes block) {
  zero_from(0, block);
  std::byte* at = store_le64(block.data(), kSegmentMagic);
  const KvShape& s = form.shape;
  for (const std::uint32_t word : {kSegmentVersion, static_cast<std::uint32_t>(form.layout), s.layers, s.planes,
                                   s.heads, s.head_bytes, s.page_tokens, std::uint32_t{0}}) {
    at = store_le32(at, word);
  }
  store_le64(at, slot_bytes(form));
  store_le64(block.data() + kSlotsAt, slots);
  store_le64(block.data() + kNumberAt, number);
  put_check(block);
}

// A torn write keeps sectors whole, so the first sector is whole or was never written. A flipped bit changes the magic
// number or the segment number, but not both.
SuperblockKind kind_of_stump(FileNumber number, std::span<const std::byte> stump) {
  const auto sector = stump.first(std::min<std::size_t>(stump.size(), kSectorBytes));
  const bool never_written = std::ranges::all_of(sector, [](std::byte b) { return b == std::byte{0}; });
  const bool magic = stump.size() >= 8 && load_le64(stump.data()) == kSegmentMagic;
  const bool named = stump.size() >= kNumberAt + 8 && load_le64(stump.data() + kNumberAt) == number;
  return never_written || magic || named ? SuperblockKind::damaged : SuperblockKind::stranger;
}

SuperblockKind read_superblock(const PageForm& form, FileNumber number, ConstBlockBytes block, std::uint64_t& slots) {
  const std::byte* at = block.data();
  if (!check_holds(block) || load_le64(at) != kSegmentMagic) return kind_of_stump(number, block);
  if (load_le32(at + 8) != kSegmentVersion) return SuperblockKind::foreign;
  if (load_le64(at + kNumberAt) != number) return SuperblockKind::damaged;
  slots = load_le64(at + kSlotsAt);
  std::array<std::byte, kBlockBytes> expected;
  write_superblock(form, number, slots, expected);
  return std::ranges::equal(expected, block) ? SuperblockKind::ours : SuperblockKind::foreign;
}

void seal_header_block(FileNumber number, std::uint32_t slot, BlockBytes block, std::optional<std::uint64_t> sum) {
  zero_from(kPlaceAt, block);
  store_le64(store_le64(block.data() + kPlaceAt, number), slot);
  if (sum) store_le64(store_le64(block.data() + kSummedAt, kSummed), *sum);
  put_check(block);
}

HeaderKind read_header_block(const PageForm& form, FileNumber number, std::uint32_t slot, ConstBlockBytes block,
                             PageClaim& claim) {
  if (!check_holds(block)) {
    const bool empty = std::ranges::all_of(block, [](std::byte b) { return b == std::byte{0}; });
    return empty ? HeaderKind::empty : HeaderKind::damaged;
  }
  const std::byte* place = block.data() + kPlaceAt;
  if (load_le64(place) != number || load_le64(place + 8) != slot) return HeaderKind::damaged;
  const std::optional<PageClaim> read = read_page_header(form, block.first<kPageHeaderBytes>());
  if (!read) return HeaderKind::damaged;
  claim = *read;
  return HeaderKind::page;
}

std::optional<std::uint64_t> read_page_sum(ConstBlockBytes block) {
  const std::byte* at = block.data() + kSummedAt;
  if (load_le64(at) != kSummed) return std::nullopt;
  return load_le64(at + 8);
}

std::uint64_t page_sum(const PageForm& form, std::span<const std::byte> payload) {
  return page_checksum(form.layout, form.shape, payload.data(), 1, 0, 0, form.shape.layers);
}

}  // namespace kvtwin
