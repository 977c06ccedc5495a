// The format of the disk tier's files, little-endian. A segment is a superblock and slots of equal size:
//
//   superblock  4 KiB: 0 u64 magic | 8 u32 version | 12 u32 layout | 16 u32 layers, planes, heads, head_bytes,
//               page_tokens | 36 u32 zero | 40 u64 slot bytes | 48 u64 slots | 56 u64 segment number | zeros |
//               4088 u64 check
//   slot        a header block of 4 KiB, then the payload, up to a multiple of 4 KiB
//   header      0 a page header (storage/page_header.hpp) | 128 u64 segment number | 136 u64 slot |
//   block       144 u64 summed | 152 u64 page checksum | zeros | 4088 u64 check
//
// The checks are XXH3 over the 4088 bytes before them, so any flipped byte of the block is found. Segment number and
// slot find a block that was written to, or read from, a wrong place. A slot that was never written is all zeros.
//
// `summed` is 1 if the payload's page_checksum (kernels/page_checksum.hpp) follows, else 0. A GPU can compute this
// checksum of a page that the CPU does not see. Only stores with direct reads write it. Older stores wrote zeros there
// and ignore the field, so the version is the same and each store reads the segments of the other. The check in the
// page header covers the payload in both cases. All functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "impl/disk/files.hpp"
#include "impl/storage/page_header.hpp"

namespace kvtwin {

using BlockBytes = std::span<std::byte, kBlockBytes>;
using ConstBlockBytes = std::span<const std::byte, kBlockBytes>;

constexpr Bytes in_blocks(Bytes bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }
inline Bytes slot_bytes(const PageForm& form) { return kBlockBytes + in_blocks(form.bytes()); }
inline Bytes slot_offset(const PageForm& form, Bytes slot) { return kBlockBytes + slot * slot_bytes(form); }

// foreign: a segment of another form or version. damaged: a superblock that is torn, flipped, misplaced or never
// written. stranger: the file was never a segment.
enum class SuperblockKind : std::uint8_t { ours, foreign, damaged, stranger };

void write_superblock(const PageForm& form, FileNumber number, std::uint64_t slots, BlockBytes block);
// Returns the kind of a file that is shorter than a superblock, as after a lost file size.
SuperblockKind kind_of_stump(FileNumber number, std::span<const std::byte> stump);
// `slots` is set only for `ours`.
SuperblockKind read_superblock(const PageForm& form, FileNumber number, ConstBlockBytes block, std::uint64_t& slots);

// Completes the block around its page header. Overwrites the rest of the block.
void seal_header_block(FileNumber number, std::uint32_t slot, BlockBytes block,
                       std::optional<std::uint64_t> sum = std::nullopt);

enum class HeaderKind : std::uint8_t { page, empty, damaged };
// `claim` is set only for `page`: a complete page of this form in its place.
HeaderKind read_header_block(const PageForm& form, FileNumber number, std::uint32_t slot, ConstBlockBytes block,
                             PageClaim& claim);
// Returns the page_checksum of the payload, or none if the block has none. Requires: HeaderKind::page.
std::optional<std::uint64_t> read_page_sum(ConstBlockBytes block);
// Computes the page_checksum of the payload.
std::uint64_t page_sum(const PageForm& form, std::span<const std::byte> payload);

}  // namespace kvtwin
