// What a forward pass does to the KV of its sequences in place of attention: reads every page of every context, as
// attention would (the rows' dot products with a query), checks each byte against the page's key (page_pattern.hpp),
// and writes the new tokens' rows. One layer at a time, pages in a layer_first pool. The bodies are the same on the
// CPU and in a kernel; context_kernels.hpp has the launchers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/page_pattern.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

// One page of a sequence. A step reads the sequence's first `context` tokens (and those of the steps before), and
// writes the next `fresh`; what of both lies in this page is worked out from where the page begins.
struct ContextPage {
  std::uint64_t key[4] = {};
  std::uint32_t slot = 0;
  std::uint32_t first = 0;  // token of the sequence
  std::uint32_t context = 0;
  std::uint32_t fresh = 0;
};

// Nothing here is owned; all pointers are to memory that the kernel can reach. Pages outside the pool are left out.
struct ContextPages {
  KvShape shape;              // a block of one plane and layer, page_tokens * row_bytes, has less than 2^32 bytes
  std::byte* pool = nullptr;  // [planes][layers][pool_pages * page_tokens][heads][head_bytes]
  std::uint64_t pool_pages = 0;
  const ContextPage* pages = nullptr;  // [count]
  std::uint64_t count = 0;
  std::uint32_t layer = 0;
  std::uint32_t advance = 0;  // tokens written by the steps before
};

// Blocks (one page and plane, in the launch's layer) in which a byte was wrong. Added up over launches.
struct ContextFault {
  std::uint32_t page = 0;  // index into pages
  std::uint16_t layer = 0, plane = 0;
  std::uint32_t offset = 0;  // of the first wrong byte, in the block
  std::uint32_t got = 0;
};
struct ContextFaults {
  static constexpr std::uint32_t kKept = 64;
  std::uint32_t wrong = 0;  // blocks; the first kKept that were found are kept, in no order
  std::uint32_t unused = 0;
  ContextFault kept[kKept];
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

// The widest access of 16, 4 or 1 bytes that divides every row's address and size.
KV_HD constexpr std::uint32_t context_vector(std::uint64_t pool_address, std::uint64_t row_bytes) {
  const std::uint64_t bits = pool_address | row_bytes;
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

KV_HD inline float bf16_value(std::uint32_t high_half) {
  float value = 0;
  memcpy(&value, &high_half, sizeof value);
  return value;
}

// 16, 4 or 1 bytes, as words.
template <std::uint32_t kBytes>
struct ContextVector {
  static constexpr std::uint32_t kWords = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr std::uint32_t kWordBytes = kBytes < 4 ? 1 : 4;
  std::uint32_t words[kWords];
};

template <std::uint32_t kBytes>
KV_HD inline std::uint32_t pattern_at(std::uint64_t seed, std::uint64_t offset, std::uint32_t word) {
  if constexpr (kBytes == 1) {
    return pattern_byte(seed, offset);
  } else {
    return pattern_word(seed, static_cast<std::uint32_t>(offset / 4) + word);
  }
}

// Where a block lies: number = page * planes + plane. Null if the page is left out.
KV_HD inline std::byte* context_block(const ContextPages& p, std::uint64_t number) {
  const ContextPage& page = p.pages[number / p.shape.planes];
  if (page.slot >= p.pool_pages) return nullptr;
  const auto plane = static_cast<std::uint32_t>(number % p.shape.planes);
  return p.pool +
         byte_offset(Layout::layer_first, p.shape, p.pool_pages, {.page = page.slot, .plane = plane, .layer = p.layer});
}
KV_HD inline std::uint64_t context_seed(const ContextPages& p, std::uint64_t number) {
  return pattern_seed(p.pages[number / p.shape.planes].key, p.layer,
                      static_cast<std::uint32_t>(number % p.shape.planes));
}

// What one lane of a block's lanes finds: the first wrong byte of its own, and its part of the dot products.
struct LaneRead {
  std::uint32_t first = UINT32_MAX;
  float dot = 0;
};

// `query`: a row of bf16 in every plane alike, row_bytes long; null = none. Access::load<Vector>(at).
template <std::uint32_t kBytes, typename Access>
KV_HD inline LaneRead read_lane(const ContextPages& p, std::uint64_t number, const std::byte* query, std::uint32_t lane,
                                std::uint32_t lanes, const Access& access) {
  LaneRead found;
  const std::byte* block = context_block(p, number);
  if (block == nullptr) return found;
  using Vector = ContextVector<kBytes>;
  const std::uint64_t row = p.shape.row_bytes();
  const std::uint64_t end = context_of(p.pages[number / p.shape.planes], p.advance, p.shape.page_tokens).end * row;
  const std::uint64_t seed = context_seed(p, number);
  for (std::uint64_t at = std::uint64_t{lane} * kBytes; at < end; at += std::uint64_t{lanes} * kBytes) {
    const Vector value = access.template load<kBytes>(block + at);
    Vector weight{};
    if (query != nullptr) weight = access.template load<kBytes>(query + static_cast<std::uint32_t>(at) % row);
    for (std::uint32_t w = 0; w < Vector::kWords; ++w) {
      const std::uint32_t differing = value.words[w] ^ pattern_at<kBytes>(seed, at, w);
      if (kBytes > 1) {
        found.dot += bf16_value(value.words[w] << 16) * bf16_value(weight.words[w] << 16);
        found.dot += bf16_value(value.words[w] & 0xFFFF0000u) * bf16_value(weight.words[w] & 0xFFFF0000u);
      }
      if (differing == 0 || found.first != UINT32_MAX) continue;
      std::uint32_t byte = 0;
      while ((differing >> (8 * byte) & 0xFF) == 0) ++byte;
      found.first = static_cast<std::uint32_t>(at) + w * Vector::kWordBytes + byte;
    }
  }
  return found;
}

template <std::uint32_t kBytes, typename Access>
KV_HD inline void write_lane(const ContextPages& p, std::uint64_t number, std::uint32_t lane, std::uint32_t lanes,
                             const Access& access) {
  std::byte* block = context_block(p, number);
  if (block == nullptr) return;
  const TokenRange tokens = fresh_of(p.pages[number / p.shape.planes], p.advance, p.shape.page_tokens);
  const std::uint64_t row = p.shape.row_bytes(), seed = context_seed(p, number);
  for (std::uint64_t at = tokens.begin * row + std::uint64_t{lane} * kBytes; at < tokens.end * row;
       at += std::uint64_t{lanes} * kBytes) {
    ContextVector<kBytes> value{};
    for (std::uint32_t w = 0; w < ContextVector<kBytes>::kWords; ++w) value.words[w] = pattern_at<kBytes>(seed, at, w);
    access.template store<kBytes>(block + at, value);
  }
}

// Do the launchers take it?
bool valid(const ContextPages& pages);

// ---- CPU twins: every lane of every block, one after the other ---------------------------------------------------

// Adds to `faults`; scores[count * planes]: the blocks' dot products, where there is a query.
void read_context(const ContextPages& pages, const std::byte* query, float* scores, ContextFaults& faults);
void write_context(const ContextPages& pages);

}  // namespace kvtwin
