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
void read_blocks(const ContextPages& p, const std::byte* query, float* scores, ContextFaults& faults) {
  for (std::uint64_t number = 0; number < p.count * p.shape.planes; ++number) {
    LaneRead block;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      const LaneRead found = read_lane<kBytes>(p, number, query, lane, kLanes, CpuAccess{});
      block.first = std::min(block.first, found.first);
      block.dot += found.dot;
    }
    if (query != nullptr) scores[number] = block.dot;
    if (block.first == UINT32_MAX) continue;
    const std::uint32_t entry = faults.wrong++;
    if (entry >= ContextFaults::kMaxKept) continue;
    faults.kept[entry] = {static_cast<std::uint32_t>(number / p.shape.planes), static_cast<std::uint16_t>(p.layer),
                          static_cast<std::uint16_t>(number % p.shape.planes), block.first,
                          static_cast<std::uint32_t>(context_block(p, number)[block.first])};
  }
}

template <std::uint32_t kBytes>
void write_blocks(const ContextPages& p) {
  for (std::uint64_t number = 0; number < p.count * p.shape.planes; ++number) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) write_lane<kBytes>(p, number, lane, kLanes, CpuAccess{});
  }
}

}  // namespace

bool valid(const ContextPages& p) {
  if (p.layer >= p.shape.layers || p.shape.layers > UINT16_MAX || p.shape.planes > UINT16_MAX) return false;
  if (p.count == 0) return true;
  return p.shape.page_bytes() > 0 && p.shape.row_bytes() * p.shape.page_tokens <= INT32_MAX && p.pool != nullptr &&
         p.pool_pages > 0 && p.pages != nullptr && p.count <= UINT32_MAX;
}

void read_context(const ContextPages& p, const std::byte* query, float* scores, ContextFaults& faults) {
  const auto address = reinterpret_cast<std::uintptr_t>(p.pool) | reinterpret_cast<std::uintptr_t>(query);
  switch (context_vector(address, p.shape.row_bytes())) {
    case 16: return read_blocks<16>(p, query, scores, faults);
    case 4: return read_blocks<4>(p, query, scores, faults);
    default: return read_blocks<1>(p, query, scores, faults);
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
