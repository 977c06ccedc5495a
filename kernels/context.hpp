// The work of a forward pass on the KV of its sequences, in place of attention: reads every byte of each context,
// checks a sample of it against the page key (page_pattern.hpp), and writes the rows of the new tokens. One layer per
// call; the pages are in a layer_first pool. CPU and kernels use the same bodies; context_kernels.hpp has the
// launchers.
//
// A block is one page and plane in one layer. The first step that reads a page after a transfer has written it checks
// all bytes. In any `check_every` steps in a row that read the page, each block is checked once. The steps of different
// blocks differ, so that each step checks about the same share of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/page_pattern.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

// One page of a sequence. A step reads the sequence's first `context` tokens and the tokens of earlier steps, and
// writes the next `fresh` tokens. `first` determines which of these tokens are in this page.
struct ContextPage {
  std::uint64_t key[4] = {};
  std::uint32_t slot = 0;
  std::uint32_t first = 0;  // first token of the page, counted in the sequence
  std::uint32_t context = 0;
  std::uint32_t fresh = 0;
  std::uint32_t reads = 0;  // steps that have read the page in this slot before the pass; 0: none since it landed
};

// The number of 32-bit folds per block that read_context writes. Fold i is the xor of the vectors that the lanes
// [32 * i, 32 * i + 32) have read, word by word (vectors of one byte: of these bytes).
inline constexpr std::uint32_t kContextLanes = 128;
inline constexpr std::uint32_t kContextFolds = kContextLanes / 32;

// The part of a launch that changes from step to step. Kernels read it from memory, so a CUDA graph of a step serves
// for other steps too. Ownership: all pointers are borrowed. Requires: kernels can reach the memory.
struct ContextStep {
  const ContextPage* pages = nullptr;  // [count]
  std::uint32_t* folds = nullptr;      // [count][planes][kContextFolds]; the result of reading
  std::uint32_t count = 0;
  std::uint32_t advance = 0;  // number of tokens that earlier steps of the pass have written
};

// Ownership: all pointers are borrowed. Requires: kernels can reach the memory. Pages outside the pool are skipped.
struct ContextPages {
  KvShape shape;              // a block (one plane and layer: page_tokens * row_bytes) has less than 2^31 bytes
  std::byte* pool = nullptr;  // [planes][layers][pool_pages * page_tokens][heads][head_bytes]
  std::uint64_t pool_pages = 0;
  const ContextStep* step = nullptr;
  std::uint32_t layer = 0;
  std::uint32_t check_every = 1;  // 1 = each step checks all bytes; at most kMostCheckEvery
};
inline constexpr std::uint32_t kMostCheckEvery = 1u << 16;

// A block (one page and plane, in the layer of the launch) with a wrong byte.
struct ContextFault {
  std::uint32_t page = 0;  // index in ContextPages::pages
  std::uint16_t layer = 0, plane = 0;
  std::uint32_t offset = 0;  // of the first wrong byte, in the block
  std::uint32_t got = 0;
};
// Wrong blocks of all launches since the last reset.
struct ContextFaults {
  static constexpr std::uint32_t kMaxKept = 64;
  std::uint64_t checked = 0;  // bytes of the blocks that were checked
  std::uint32_t wrong = 0;    // number of wrong blocks; `kept` has the first kMaxKept found, in no order
  std::uint32_t unused = 0;
  ContextFault kept[kMaxKept];
};

struct TokenRange {
  std::uint32_t begin = 0, end = 0;  // in the page
};

KV_HD constexpr std::uint32_t tokens_in_page(std::uint64_t end, std::uint32_t first, std::uint32_t page_tokens) {
  if (end <= first) return 0;
  return end - first < page_tokens ? static_cast<std::uint32_t>(end - first) : page_tokens;
}
KV_HD constexpr TokenRange context_of(const ContextPage& page, std::uint32_t advance, std::uint32_t page_tokens) {
  return {0, tokens_in_page(std::uint64_t{page.context} + advance, page.first, page_tokens)};
}
KV_HD constexpr TokenRange fresh_of(const ContextPage& page, std::uint32_t advance, std::uint32_t page_tokens) {
  const std::uint64_t begin = std::uint64_t{page.context} + advance;
  return {tokens_in_page(begin, page.first, page_tokens), tokens_in_page(begin + page.fresh, page.first, page_tokens)};
}

// Returns the largest access size of 16, 4 or 1 bytes that divides the address and size of every row.
KV_HD constexpr std::uint32_t context_vector(std::uint64_t pool_address, std::uint64_t row_bytes) {
  const std::uint64_t bits = pool_address | row_bytes;
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

// 16, 4 or 1 bytes, as words.
template <std::uint32_t kBytes>
struct ContextVector {
  static constexpr std::uint32_t kWords = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr std::uint32_t kWordBytes = kBytes < 4 ? 1 : 4;
  std::uint32_t words[kWords];
};

// `index`: of the vector in the block.
template <std::uint32_t kBytes>
KV_HD inline std::uint32_t pattern_at(std::uint64_t seed, std::uint32_t index, std::uint32_t word) {
  if constexpr (kBytes == 1) {
    return pattern_byte(seed, index);
  } else {
    return pattern_word(seed, index * ContextVector<kBytes>::kWords + word);
  }
}

// The blocks first, first + step, first + 2 * step, ... of a launch. Divides once, not for each block.
struct ContextBlocks {
  KV_HD ContextBlocks(std::uint32_t first, std::uint32_t step, std::uint32_t all_planes)
      : page(first / all_planes),
        plane(first % all_planes),
        page_step(step / all_planes),
        plane_step(step % all_planes),
        planes(all_planes) {}
  KV_HD void next() {
    page += page_step;
    plane += plane_step;
    if (plane >= planes) plane -= planes, ++page;
  }
  std::uint64_t page;
  std::uint32_t plane, page_step, plane_step, planes;
};

KV_HD inline bool in_pool(const ContextPages& p, const ContextPage& page) { return page.slot < p.pool_pages; }
KV_HD inline std::byte* context_block(const ContextPages& p, const ContextPage& page, std::uint32_t plane) {
  return p.pool +
         byte_offset(Layout::layer_first, p.shape, p.pool_pages, {.page = page.slot, .plane = plane, .layer = p.layer});
}

// Whether this step checks the block.
KV_HD inline bool checks_block(const ContextPages& p, const ContextPage& page, std::uint32_t plane,
                               std::uint32_t advance) {
  const std::uint32_t reads = page.reads + advance;
  if (reads == 0) return true;
  const std::uint32_t mixed = (static_cast<std::uint32_t>(page.key[0]) + p.layer) * 0x9E3779B9u + plane * 0x85EBCA77u;
  return (reads + (mixed >> 16)) % p.check_every == 0;
}

// The result of one lane of a block: its first wrong byte (offset in the block), and the xor of what it has read.
struct LaneRead {
  std::uint32_t first = UINT32_MAX;
  std::uint32_t fold = 0;
};

// Returns the offset in the block of the first wrong byte of a vector. Requires: there is one.
template <std::uint32_t kBytes>
KV_HD inline std::uint32_t first_wrong(std::uint64_t seed, std::uint32_t index, const ContextVector<kBytes>& value) {
  std::uint32_t place = 0;
  for (std::uint32_t w = ContextVector<kBytes>::kWords; w-- > 0;) {
    const std::uint32_t differing = value.words[w] ^ pattern_at<kBytes>(seed, index, w);
    if (differing == 0) continue;
    const std::uint32_t byte = (differing & 0xFFu) != 0       ? 0
                               : (differing & 0xFF00u) != 0   ? 1
                               : (differing & 0xFF0000u) != 0 ? 2
                                                              : 3;
    place = w * ContextVector<kBytes>::kWordBytes + byte;
  }
  return index * kBytes + place;
}

// Number of loads of a lane that are in flight together. As many as possible, until registers become scarce.
inline constexpr std::uint32_t kContextLoads = 8;

// Reads one block up to vector `end`. Access has load<kBytes>(address). The loop has no division and no 64-bit product.
// kCheck = false: reads as fast as the memory is, and finds nothing.
template <std::uint32_t kBytes, bool kCheck, typename Access>
KV_HD inline LaneRead read_lane(const std::byte* block, std::uint32_t end, std::uint64_t seed, std::uint32_t lane,
                                const Access& access) {
  using Vector = ContextVector<kBytes>;
  constexpr std::uint32_t kStep = kContextLanes;
  LaneRead found;
  const auto take = [&](const Vector& value, std::uint32_t at) {
    std::uint32_t differing = 0;
    for (std::uint32_t w = 0; w < Vector::kWords; ++w) {
      found.fold ^= value.words[w];
      if (kCheck) differing |= value.words[w] ^ pattern_at<kBytes>(seed, at, w);
    }
    if (differing != 0 && found.first == UINT32_MAX) found.first = first_wrong<kBytes>(seed, at, value);
  };
  std::uint32_t at = lane;
  const std::byte* from = block + std::uint64_t{lane} * kBytes;
  for (; at + (kContextLoads - 1) * kStep < end; at += kContextLoads * kStep) {
    Vector values[kContextLoads];
    for (std::uint32_t i = 0; i < kContextLoads; ++i)
      values[i] = access.template load<kBytes>(from + i * kStep * kBytes);
    for (std::uint32_t i = 0; i < kContextLoads; ++i) take(values[i], at + i * kStep);
    from += kContextLoads * kStep * kBytes;
  }
  for (; at < end; at += kStep) {
    take(access.template load<kBytes>(from), at);
    from += kStep * kBytes;
  }
  return found;
}

template <std::uint32_t kBytes, typename Access>
KV_HD inline void write_lane(const ContextPages& p, const ContextPage& page, std::uint32_t plane, std::uint32_t advance,
                             std::uint32_t lane, const Access& access) {
  const TokenRange tokens = fresh_of(page, advance, p.shape.page_tokens);
  if (tokens.begin == tokens.end || !in_pool(p, page)) return;
  std::byte* block = context_block(p, page, plane);
  const auto in_row = static_cast<std::uint32_t>(p.shape.row_bytes() / kBytes);
  const std::uint64_t seed = pattern_seed(page.key, p.layer, plane);
  for (std::uint32_t at = tokens.begin * in_row + lane; at < tokens.end * in_row; at += kContextLanes) {
    ContextVector<kBytes> value{};
    for (std::uint32_t w = 0; w < ContextVector<kBytes>::kWords; ++w) value.words[w] = pattern_at<kBytes>(seed, at, w);
    access.template store<kBytes>(block + std::uint64_t{at} * kBytes, value);
  }
}

// Returns whether the launchers accept the pages.
bool valid(const ContextPages& pages);

// ---- CPU twins: every lane of every block, one after another ----------------------------------------------------

// Adds to `faults`, and writes the folds of the step.
void read_context(const ContextPages& pages, ContextFaults& faults);
void write_context(const ContextPages& pages);

}  // namespace kvtwin
