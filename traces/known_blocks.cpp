#include "traces/known_blocks.hpp"

#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kFirstLines = 64;

std::uint32_t hash_of(std::uint64_t id) { return static_cast<std::uint32_t>(mix64(id) >> 32); }

}  // namespace

void KnownBlocks::clear() {
  blocks_.clear();
  free_.clear();
  table_.rebuild(kFirstLines, [](const Place&) { return false; });
}

std::size_t KnownBlocks::place_of(std::uint64_t id, std::uint32_t hash) const {
  return table_.find(
      hash, [&](const Place& place) { return place.hash == hash && blocks_[place.block_plus_one - 1].id == id; });
}

std::uint32_t KnownBlocks::find(std::uint64_t id) const {
  const Place& place = table_.at(place_of(id, hash_of(id)));
  return place.is_empty() ? kNone : place.block_plus_one - 1;
}

std::uint32_t KnownBlocks::find_or_add(std::uint64_t id, std::uint32_t above) {
  const std::uint32_t hash = hash_of(id);
  std::size_t at = place_of(id, hash);
  if (!table_.at(at).is_empty()) return table_.at(at).block_plus_one - 1;
  if (2 * (size() + 1) > table_.places()) {
    table_.rebuild(2 * table_.lines(), [](const Place&) { return true; });
    at = place_of(id, hash);
  }
  auto block = static_cast<std::uint32_t>(blocks_.size());
  if (free_.empty()) {
    blocks_.emplace_back();
  } else {
    block = free_.back();
    free_.pop_back();
    blocks_[block] = {};
  }
  blocks_[block].id = id;
  blocks_[block].above = above;
  if (above != kNone) ++blocks_[above].below;
  table_.at(at) = {hash, block + 1};
  return block;
}

void KnownBlocks::clear_rank(std::uint32_t block, std::uint64_t rank) {
  blocks_[block].ranks &= ~(std::uint64_t{1} << rank);
  while (block != kNone && blocks_[block].ranks == 0 && blocks_[block].below == 0) {
    const Block gone = blocks_[block];
    table_.erase(place_of(gone.id, hash_of(gone.id)));
    free_.push_back(block);
    block = gone.above;
    if (block != kNone) --blocks_[block].below;
  }
}

std::size_t KnownBlocks::memory_bytes() const {
  return blocks_.capacity() * sizeof(Block) + free_.capacity() * sizeof free_[0] + table_.places() * sizeof(Place);
}

}  // namespace kvtwin
