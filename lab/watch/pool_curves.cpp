#include "lab/watch/pool_curves.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

namespace kvtwin {
namespace {

constexpr std::array<std::uint64_t, 6> kSizesInQuarters = {1, 2, 4, 8, 16, 32};  // of the present size

bool is_window(std::string_view kind) { return kind == "sliding_window" || kind == "sliding_window_mla"; }

}  // namespace

bool PoolCurves::has_curve(const BlockEvent& event) {
  return (is_window(event.group_kind) && event.group_window > 0) || event.group_kind == "mamba";
}

void PoolCurves::take(const BlockEvent& event) {
  if (event.kind != BlockEvent::Kind::stored || !event.group || !event.is_of_device()) return;
  auto pool = std::ranges::find(pools_, *event.group, &Pool::group);
  if (pool == pools_.end()) {
    if (!has_curve(event) || event.block_tokens == 0 || pools_.size() == kMaxPools) return;
    pools_.emplace_back(*event.group, max_blocks_);
    pool = std::prev(pools_.end());
    pool->kind = event.group_kind;
    pool->window = is_window(event.group_kind) ? event.group_window : 0;
    pool->block_tokens = event.block_tokens;
  }
  for (const std::uint64_t block : event.blocks) {
    if (pool->stored.size() >= max_blocks_) pool->stored.clear();
    pool->stored.insert(block);
  }
}

void PoolCurves::serve(std::span<const std::uint64_t> blocks, Tokens block_tokens) {
  for (Pool& pool : pools_) serve(pool, blocks, block_tokens);
}

void PoolCurves::serve(Pool& pool, std::span<const std::uint64_t> blocks, Tokens block_tokens) {
  // A block of the pool has the name of the last of the request's blocks in it.
  if (pool.block_tokens % block_tokens != 0) return;
  const auto joined = static_cast<std::size_t>(pool.block_tokens / block_tokens);
  pool.lookup_blocks += blocks.size();
  keys_.clear();
  distances_.clear();
  for (std::size_t end = joined; end <= blocks.size(); end += joined) {
    keys_.push_back(blocks[end - 1]);
    distances_.push_back(pool.stack.distance(keys_.back()));
  }
  // Of a window of W tokens, those before the next token: W - 1.
  const std::size_t needed =
      std::max<std::size_t>(1, static_cast<std::size_t>((pool.window + pool.block_tokens - 2) / pool.block_tokens));
  // From the longest prefix down: the size from which on the pool can use it, if no longer one needs less.
  constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::uint64_t least = kNever;
  std::size_t usable = 0;                      // of a pool without limit
  std::size_t longer = 0;                      // the prefix that needs `least`
  const auto gain = [&](std::size_t prefix) {  // sizes from `least` on use `longer` blocks, and smaller ones `prefix`
    if (least == kNever) return;
    if (pool.gained.size() <= least) pool.gained.resize(static_cast<std::size_t>(least) + 1);
    pool.gained[static_cast<std::size_t>(least)] += (longer - prefix) * joined;
  };
  for (std::size_t prefix = keys_.size(); prefix > 0 && least > 1; --prefix) {
    std::uint64_t size = 0;
    for (std::size_t i = prefix - std::min(prefix, needed); i < prefix && size != kNever; ++i) {
      size = distances_[i] == StackDistances::kNew ? kNever : std::max(size, distances_[i]);
    }
    if (size >= least) continue;
    usable = std::max(usable, prefix);
    gain(prefix);
    least = size;
    longer = prefix;
  }
  gain(0);
  used_.clear();
  for (std::size_t i = usable - std::min(usable, needed); i < usable; ++i) used_.push_back(keys_[i]);
  for (std::size_t i = usable; i < keys_.size(); ++i) {
    if (pool.stored.has(keys_[i])) used_.push_back(keys_[i]);
  }
  pool.stack.visit(used_, distances_);
}

PoolCurves::Curve PoolCurves::curve_of(const Pool& pool, std::uint64_t present) const {
  Curve curve{pool.group, pool.kind, pool.window, {}};
  std::uint64_t hits = 0;
  std::size_t at = 0;
  for (const std::uint64_t quarters : kSizesInQuarters) {
    const std::uint64_t size = present * quarters / 4;
    if (size == 0 || (!curve.sizes.empty() && size == curve.sizes.back().blocks)) continue;
    for (; at < pool.gained.size() && at <= size; ++at) hits += pool.gained[at];
    const double share =
        pool.lookup_blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(pool.lookup_blocks);
    curve.sizes.push_back({size, share, pool.stack.forgotten() > 0 && size > pool.stack.largest()});
  }
  return curve;
}

std::size_t PoolCurves::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Pool& pool : pools_) {
    bytes += pool.stored.memory_bytes() + pool.stack.memory_bytes() + pool.gained.capacity() * sizeof pool.gained[0];
  }
  return bytes;
}

}  // namespace kvtwin
