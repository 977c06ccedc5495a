#include "policy/offload/host_chunks.hpp"

#include <algorithm>

#include "policy/base/check.hpp"

namespace kvtwin {

HostChunks::HostChunks(const HostChunksConfig& config)
    : config_(config), order_(make_chunk_order(config.eviction, config.chunks)) {}

HostChunks::Held* HostChunks::find(const ChunkKey& key) {
  const auto known = slot_of_.find(key);
  return known == slot_of_.end() ? nullptr : &slots_[known->second];
}

Found HostChunks::look_up(const ChunkKey& key) const {
  const auto known = slot_of_.find(key);
  if (known == slot_of_.end()) return Found::miss;
  return slots_[known->second].loads == kIncomplete ? Found::pending : Found::hit;
}

// ---- stores ----------------------------------------------------------------------------------------------------

// Chunks of this offer are not forgotten for each other.
void HostChunks::count_offers(std::span<const Chunk> offered) {
  std::size_t known = 0;
  for (const Chunk& chunk : offered) {
    const auto at = offer_of_.find(chunk.key);
    if (at == offer_of_.end()) continue;
    ++at->second->count;
    offers_.splice(offers_.end(), offers_, at->second);
    ++known;
  }
  std::size_t others = offers_.size() - known;
  for (const Chunk& chunk : offered) {
    if (offer_of_.contains(chunk.key)) continue;
    if (offers_.size() >= config_.remembered_offers) {
      if (others == 0) continue;
      offer_of_.erase(offers_.front().key);
      offers_.pop_front();
      --others;
    }
    offers_.push_back({chunk.key});
    offer_of_[chunk.key] = std::prev(offers_.end());
  }
}

bool HostChunks::has_been_offered_enough(const ChunkKey& key) const {
  if (config_.store_threshold < 2) return true;
  const auto at = offer_of_.find(key);
  return at != offer_of_.end() && at->second->count >= config_.store_threshold;
}

void HostChunks::see(std::span<const Chunk> chunks, RequestId request) {
  Access& access = accesses_[request];
  std::vector<Chunk> first;
  for (const Chunk& chunk : chunks) {
    if (std::exchange(access.use[chunk.key].seen, true)) continue;
    access.seen[chunk.key.group].push_back(chunk);
    first.push_back(chunk);
  }
  if (!first.empty()) order_->see(first, request);
}

std::optional<HostChunks::Store> HostChunks::prepare_store(std::span<const Chunk> offered, RequestId request) {
  if (config_.store_threshold >= 2) count_offers(offered);
  Access& access = accesses_[request];
  Store store;
  std::vector<Chunk> missed, used, here;
  for (const Chunk& chunk : offered) {
    const Found found = look_up(chunk.key);
    if (found == Found::pending) continue;
    if (found == Found::hit) {
      here.push_back(chunk);
    } else if (has_been_offered_enough(chunk.key)) {
      store.chunks.push_back(chunk);
      if (!std::exchange(access.use[chunk.key].missed, true)) missed.push_back(chunk);
    } else {
      continue;
    }
    used.push_back(chunk);
  }
  if (!missed.empty()) order_->miss(missed);
  see(used, request);
  for (const Chunk& chunk : here) {
    Use& use = access.use[chunk.key];
    if (!use.stored) use.reused = true;
  }
  if (!make_room(offered, store)) return std::nullopt;

  for (const Chunk& chunk : store.chunks) {
    store.slots.push_back(take_slot(chunk.key));
    order_->enter(chunk, request);
    access.use[chunk.key].stored = true;
  }
  incomplete_ += static_cast<std::uint32_t>(store.chunks.size());
  return store;
}

// Evicts for store.chunks, none of the offered ones.
bool HostChunks::make_room(std::span<const Chunk> offered, Store& store) {
  if (store.chunks.size() <= free_slots()) return true;
  const std::size_t lacking = store.chunks.size() - free_slots();
  if (lacking > evictable_) return false;
  ChunkKeySet kept;
  for (const Chunk& chunk : offered) kept.insert(chunk.key);
  auto evicted = order_->evict(lacking, kept);
  if (!evicted) return false;
  store.evicted = std::move(*evicted);
  evictable_ -= static_cast<std::uint32_t>(lacking);
  Change change = {Change::Kind::evicted, store.evicted, {}};
  for (const ChunkKey& key : store.evicted) free_slot(slot_of_.at(key), change);
  changes_.push_back(std::move(change));
  return true;
}

void HostChunks::complete_store(std::span<const Chunk> chunks, bool success) {
  Change change = {success ? Change::Kind::stored : Change::Kind::failed, {}, {}};
  for (const Chunk& chunk : chunks) {
    Held* const held = find(chunk.key);
    if (held == nullptr || held->loads != kIncomplete) continue;
    --incomplete_;
    change.chunks.push_back(chunk.key);
    if (success) {
      held->loads = 0;
      ++evictable_;
      order_->allow(chunk.key);
    } else {
      order_->remove(chunk.key);
      free_slot(slot_of_.at(chunk.key), change);
    }
  }
  if (!change.chunks.empty()) changes_.push_back(std::move(change));
}

// ---- loads -----------------------------------------------------------------------------------------------------

std::vector<SlotId> HostChunks::prepare_load(std::span<const Chunk> chunks, RequestId request, bool uses) {
  std::vector<SlotId> slots;
  for (const Chunk& chunk : chunks) {
    Held* const held = find(chunk.key);
    KV_CHECK(held != nullptr && held->loads != kIncomplete, "a chunk that is loaded is complete");
    if (held->loads++ == 0) {
      order_->forbid(chunk.key);
      --evictable_;
    }
    slots.push_back(slot_of_.at(chunk.key));
  }
  if (!uses) return slots;
  see(chunks, request);
  for (const Chunk& chunk : chunks) {
    Use& use = accesses_[request].use[chunk.key];
    if (!use.stored) use.reused = true;
  }
  return slots;
}

void HostChunks::complete_load(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) {
    Held* const held = find(chunk.key);
    KV_CHECK(held != nullptr && held->loads > 0, "a chunk that has been loaded was kept");
    if (--held->loads > 0) continue;
    ++evictable_;
    order_->allow(chunk.key);
  }
}

void HostChunks::finish(RequestId request) {
  const auto at = accesses_.find(request);
  if (at == accesses_.end()) return;
  const Access& access = at->second;
  std::vector<ChunkOrder::Use> uses;
  for (const auto& [group, chunks] : access.seen) {
    for (const Chunk& chunk : chunks) {
      const Use& use = access.use.at(chunk.key);
      uses.push_back({chunk, use.stored, use.reused});
    }
  }
  std::ranges::stable_sort(uses, {}, [](const ChunkOrder::Use& use) { return use.chunk.end; });
  order_->finish(uses, request);
  accesses_.erase(at);
}

SlotId HostChunks::take_slot(const ChunkKey& key) {
  SlotId slot = static_cast<SlotId>(slots_.size());
  if (slot < config_.chunks) {
    slots_.emplace_back();
  } else {
    slot = freed_.back();
    freed_.pop_back();
  }
  slots_[slot] = {key, kIncomplete, false};
  slot_of_[key] = slot;
  return slot;
}

void HostChunks::free_slot(SlotId slot, Change& change) {
  change.slots.push_back(slot);
  slot_of_.erase(slots_[slot].key);
  slots_[slot].is_free = true;
  freed_.push_back(slot);
}

void HostChunks::check_invariants() const {
  std::uint32_t evictable = 0, incomplete = 0;
  std::size_t taken = 0;
  for (SlotId slot = 0; slot < slots_.size(); ++slot) {
    const Held& held = slots_[slot];
    if (held.is_free) continue;
    ++taken;
    KV_CHECK(slot_of_.at(held.key) == slot, "a chunk has one slot");
    evictable += held.loads == 0 ? 1 : 0;
    incomplete += held.loads == kIncomplete ? 1 : 0;
  }
  KV_CHECK(taken == slot_of_.size() && taken + freed_.size() == slots_.size(), "a slot has a chunk or is free");
  KV_CHECK(evictable == evictable_ && incomplete == incomplete_, "counts of chunks");
}

}  // namespace kvtwin
