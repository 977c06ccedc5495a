// What the disk tier's files look like, little-endian. A segment is a superblock and equally large slots:
//
//   superblock  4 KiB: 0 u64 magic | 8 u32 version | 12 u32 layout | 16 u32 layers, planes, heads, head_bytes,
//               page_tokens | 36 u32 zero | 40 u64 slot bytes | 48 u64 slots | 56 u64 segment number | zeros |
//               4088 u64 check
//   slot        a header block of 4 KiB, then the payload, up to a multiple of 4 KiB
//   header      0 a page header (storage/page_header.hpp) | 128 u64 segment number | 136 u64 slot |
//   block       144 u64 summed | 152 u64 page checksum | zeros | 4088 u64 check
//
// The checks are XXH3 over the 4088 bytes before: any flipped byte of the block shows. Number and slot tell a block
// that landed, or is read, in the wrong place. A slot never written is zeros.
//
// `summed` is 1 where the payload's page_checksum (kernels/page_checksum.hpp) follows, 0 where it doesn't: it is the
// check that a GPU can make of a page that the CPU doesn't see. Only stores that are opened for direct reads write it.
// Older ones have zeros there and mind nothing else, so that the version is the same and each reads the other's. The
// page header's check vouches for the payload either way. Pure functions.
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

// foreign: a segment of another form or version. damaged: the superblock of a segment that is torn, flipped, misplaced
// or never written. stranger: no segment was ever made of this.
enum class SuperblockKind : std::uint8_t { ours, foreign, damaged, stranger };

void write_superblock(const PageForm& form, FileNumber number, std::uint64_t slots, BlockBytes block);
// Of what a file begins with that is shorter than a superblock, as a lost size leaves it.
SuperblockKind kind_of_stump(FileNumber number, std::span<const std::byte> stump);
// `slots` only if ours.
SuperblockKind read_superblock(const PageForm& form, FileNumber number, ConstBlockBytes block, std::uint64_t& slots);

// Around the page header that is there already. The rest of the block is overwritten.
void seal_header_block(FileNumber number, std::uint32_t slot, BlockBytes block,
                       std::optional<std::uint64_t> sum = std::nullopt);

enum class HeaderKind : std::uint8_t { page, empty, damaged };
// `claim` only if a page: whole, of this form and in its place.
HeaderKind read_header_block(const PageForm& form, FileNumber number, std::uint32_t slot, ConstBlockBytes block,
                             PageClaim& claim);
// Of a block that is a page's: its payload's page_checksum, if it is there.
std::optional<std::uint64_t> read_page_sum(ConstBlockBytes block);
// What it would be.
std::uint64_t page_sum(const PageForm& form, std::span<const std::byte> payload);

}  // namespace kvtwin
