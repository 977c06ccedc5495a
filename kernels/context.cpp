#include "kernels/context.hpp"

#include <algorithm>

namespace kvtwin {
namespace {

constexpr std::uint32_t kLanes = 32;

struct CpuAccess {
  template <std::uint32_t kBytes>
  ContextVector<kBytes> load(const std::byte* at) const {
    ContextVector<kBytes> value{};
    std::memcpy(value.words, at, kBytes);
    return value;
  }
  template <std::uint32_t kBytes>
  void store(std::byte* at, const ContextVector<kBytes>& value) const {
    std::memcpy(at, value.words, kBytes);
  }
};

template <std::uint32_t kBytes>
void read_blocks(const ContextPages& p, ContextFaults& faults) {
  const ContextStep& step = *p.step;
  const auto in_row = static_cast<std::uint32_t>(p.shape.row_bytes() / kBytes);
  for (ContextBlocks at(0, 1, p.shape.planes); at.page < step.count; at.next()) {
    const ContextPage& page = step.pages[at.page];
    std::uint32_t* folds = step.folds + (at.page * p.shape.planes + at.plane) * kContextFolds;
    std::fill_n(folds, kContextFolds, 0);
    if (!in_pool(p, page)) continue;
    const std::byte* block = context_block(p, page, at.plane);
    const std::uint32_t end = context_of(page, step.advance, p.shape.page_tokens).end * in_row;
    const bool check = checks_block(p, page, at.plane, step.advance);
    const std::uint64_t seed = check ? pattern_seed(page.key, p.layer, at.plane) : 0;
    std::uint32_t first = UINT32_MAX;
    for (std::uint32_t lane = 0; lane < kContextLanes; ++lane) {
      const LaneRead found = check ? read_lane<kBytes, true>(block, end, seed, lane, CpuAccess{})
                                   : read_lane<kBytes, false>(block, end, seed, lane, CpuAccess{});
      first = std::min(first, found.first);
      folds[lane / kLanes] ^= found.fold;
    }
    if (check) faults.checked += std::uint64_t{end} * kBytes;
    if (first == UINT32_MAX) continue;
    const std::uint32_t entry = faults.wrong++;
    if (entry >= ContextFaults::kMaxKept) continue;
    faults.kept[entry] = {static_cast<std::uint32_t>(at.page), static_cast<std::uint16_t>(p.layer),
                          static_cast<std::uint16_t>(at.plane), first, static_cast<std::uint32_t>(block[first])};
  }
}

template <std::uint32_t kBytes>
void write_blocks(const ContextPages& p) {
  const ContextStep& step = *p.step;
  for (ContextBlocks at(0, 1, p.shape.planes); at.page < step.count; at.next()) {
    for (std::uint32_t lane = 0; lane < kContextLanes; ++lane) {
      write_lane<kBytes>(p, step.pages[at.page], at.plane, step.advance, lane, CpuAccess{});
    }
  }
}

}  // namespace

bool valid(const ContextPages& p) {
  return p.layer < p.shape.layers && p.shape.layers <= UINT16_MAX && p.shape.planes > 0 &&
         p.shape.planes <= UINT16_MAX && p.shape.page_bytes() > 0 &&
         p.shape.row_bytes() * p.shape.page_tokens <= INT32_MAX && p.pool != nullptr && p.pool_pages > 0 &&
         p.step != nullptr && p.check_every > 0 && p.check_every <= kMostCheckEvery;
}

void read_context(const ContextPages& p, ContextFaults& faults) {
  switch (context_vector(reinterpret_cast<std::uintptr_t>(p.pool), p.shape.row_bytes())) {
    case 16: return read_blocks<16>(p, faults);
    case 4: return read_blocks<4>(p, faults);
    default: return read_blocks<1>(p, faults);
  }
}

void write_context(const ContextPages& p) {
  switch (context_vector(reinterpret_cast<std::uintptr_t>(p.pool), p.shape.row_bytes())) {
    case 16: return write_blocks<16>(p);
    case 4: return write_blocks<4>(p);
    default: return write_blocks<1>(p);
  }
}

}  // namespace kvtwin
