// The work of a forward pass on the KV of its sequences, in place of attention: reads every page of each context like
// attention (dot products of the rows with a query), checks each byte against the page key (page_pattern.hpp), and
// writes the rows of the new tokens. One layer per call; the pages are in a layer_first pool. CPU and kernels use the
// same bodies; context_kernels.hpp has the launchers.
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
};

// Ownership: all pointers are borrowed. Requires: kernels can reach the memory. Pages outside the pool are skipped.
struct ContextPages {
  KvShape shape;              // a block (one plane and layer: page_tokens * row_bytes) has less than 2^31 bytes
  std::byte* pool = nullptr;  // [planes][layers][pool_pages * page_tokens][heads][head_bytes]
  std::uint64_t pool_pages = 0;
  const ContextPage* pages = nullptr;  // [count]
  std::uint64_t count = 0;
  std::uint32_t layer = 0;
  std::uint32_t advance = 0;  // number of tokens that earlier steps have written
};

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
  std::uint32_t wrong = 0;  // number of wrong blocks; `kept` has the first kMaxKept found, in no order
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

// `index`: of the vector in the block.
template <std::uint32_t kBytes>
KV_HD inline std::uint32_t pattern_at(std::uint64_t seed, std::uint32_t index, std::uint32_t word) {
  if constexpr (kBytes == 1) {
    return pattern_byte(seed, index);
  } else {
    return pattern_word(seed, index * ContextVector<kBytes>::kWords + word);
  }
}

// Returns the address of a block, or null if its page is skipped. `number`: page * planes + plane.
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

// The result of one lane of a block: its first wrong byte (offset in the block), and its part of the dot products.
struct LaneRead {
  std::uint32_t first = UINT32_MAX;
  float dot = 0;
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

// `query`: a row of bf16 for all planes, row_bytes long; null = none. Access has load<kBytes>(address).
// The loop has no division and no 64-bit product, so that the kernel can read as fast as the memory is.
template <std::uint32_t kBytes, typename Access>
KV_HD inline LaneRead read_lane(const ContextPages& p, std::uint64_t number, const std::byte* query, std::uint32_t lane,
                                std::uint32_t lanes, const Access& access) {
  LaneRead found;
  const std::byte* block = context_block(p, number);
  if (block == nullptr) return found;
  using Vector = ContextVector<kBytes>;
  const auto in_row = static_cast<std::uint32_t>(p.shape.row_bytes() / kBytes);
  const std::uint32_t end = context_of(p.pages[number / p.shape.planes], p.advance, p.shape.page_tokens).end * in_row;
  const std::uint64_t seed = context_seed(p, number);
  const std::uint32_t query_step = lanes % in_row;
  std::uint32_t query_at = lane % in_row;
  Vector weight{};
  for (std::uint32_t at = lane; at < end; at += lanes) {
    const Vector value = access.template load<kBytes>(block + std::uint64_t{at} * kBytes);
    if (query != nullptr && (query_step != 0 || at == lane)) {  // otherwise each row meets the same part of the query
      weight = access.template load<kBytes>(query + std::uint64_t{query_at} * kBytes);
      query_at += query_step;
      if (query_at >= in_row) query_at -= in_row;
    }
    std::uint32_t differing = 0;
    for (std::uint32_t w = 0; w < Vector::kWords; ++w) {
      differing |= value.words[w] ^ pattern_at<kBytes>(seed, at, w);
      if (kBytes > 1) {
        found.dot += bf16_value(value.words[w] << 16) * bf16_value(weight.words[w] << 16);
        found.dot += bf16_value(value.words[w] & 0xFFFF0000u) * bf16_value(weight.words[w] & 0xFFFF0000u);
      }
    }
    if (differing != 0 && found.first == UINT32_MAX) found.first = first_wrong<kBytes>(seed, at, value);
  }
  return found;
}

template <std::uint32_t kBytes, typename Access>
KV_HD inline void write_lane(const ContextPages& p, std::uint64_t number, std::uint32_t lane, std::uint32_t lanes,
                             const Access& access) {
  std::byte* block = context_block(p, number);
  if (block == nullptr) return;
  const TokenRange tokens = fresh_of(p.pages[number / p.shape.planes], p.advance, p.shape.page_tokens);
  const auto in_row = static_cast<std::uint32_t>(p.shape.row_bytes() / kBytes);
  const std::uint64_t seed = context_seed(p, number);
  for (std::uint32_t at = tokens.begin * in_row + lane; at < tokens.end * in_row; at += lanes) {
    ContextVector<kBytes> value{};
    for (std::uint32_t w = 0; w < ContextVector<kBytes>::kWords; ++w) value.words[w] = pattern_at<kBytes>(seed, at, w);
    access.template store<kBytes>(block + std::uint64_t{at} * kBytes, value);
  }
}

// Returns whether the launchers accept the pages.
bool valid(const ContextPages& pages);

// ---- CPU twins: every lane of every block, one after another ----------------------------------------------------

// Adds to `faults`. If there is a query, scores[count * planes] receive the dot products of the blocks.
void read_context(const ContextPages& pages, const std::byte* query, float* scores, ContextFaults& faults);
void write_context(const ContextPages& pages);

}  // namespace kvtwin
