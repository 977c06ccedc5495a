// Cache, requests in two parts: what of windows and states a prefill engine hands over, and a decode engine receives.
// Both know from the prompt's length how many slots of each pool that is (policy/transfer/hand_over.hpp).
#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

Pages Cache::reusable_pages(Tokens prompt) const {
  const Tokens page = config_.shape.page_tokens;
  Pages pages = prompt / page;
  for (const PoolConfig& pool : config_.pools) {
    if (pool.closure == Closure::tail) pages = std::min(pages, first_window_page(pool.window, prompt, page));
  }
  return pages;
}

Room Cache::make_room_to_receive(Pages pages, Tokens prompt, NodeId kept) {
  if (pools_.empty()) return make_room(pages, kept);
  bool enough = pages <= obtainable_of_full();
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const PoolConfig& pool = config_.pools[at];
    const bool window = pool.closure == Closure::tail;
    const Pages slots = window ? handed_slots(pool.window, prompt, config_.shape.page_tokens) : states_of_request();
    enough = enough && slots <= obtainable(pools_[at]);
  }
  return enough ? Room::now : Room::never;
}

void Cache::allocate_to_receive(Pages pages, Tokens prompt, std::vector<SlotId>& slots, RequestPools& pools) {
  if (pools_.empty()) {
    const bool room = allocate(pages, slots);
    KV_CHECK(room, "the room was made before");
    return;
  }
  take_pages(pages, slots);
  const Tokens page = config_.shape.page_tokens;
  pools.parts.resize(pools_.size());
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const PoolConfig& pool = config_.pools[at];
    RequestPools::Part& part = pools.parts[at];
    Pages count = states_of_request();
    if (pool.closure == Closure::tail) {
      const Pages first = first_window_page(pool.window, prompt, page);
      count = slots.size() - first;
      part.slots.resize(first, kNoSlot);
      part.released = first * page;
    }
    make_room_beside(at, count);
    const bool enough = pools_[at].allocate(Tier::device, count, part.slots);
    KV_CHECK(enough, "slots counted as evictable can be evicted");
  }
}

void Cache::handed(NodeId end, Tokens prompt, const RequestPools& pools, std::vector<SlotId>& slots) const {
  const Tokens page = config_.shape.page_tokens;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const std::vector<SlotId>& own = pools.parts[at].slots;
    if (pools_[at].index->closure() == Closure::point) {
      slots.push_back(own.front());
      continue;
    }
    const Pages first = first_window_page(config_.pools[at].window, prompt, page);
    const auto begin = static_cast<std::ptrdiff_t>(slots.size());
    const Pages count = handed_slots(config_.pools[at].window, prompt, page);
    for (Pages i = 0; i < count; ++i) slots.push_back(first + i < own.size() ? own[first + i] : kNoSlot);
    for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages > first; id = tree_.node(id).parent) {
      const Pages depth = tree_.node(id).facts.depth_pages, top = depth - tree_.node(id).facts.pages;
      const std::span<const SlotId> windows = pools_[at].index->slots(Tier::device, id);
      if (windows.empty()) continue;
      for (Pages i = std::max(first, top); i < depth; ++i) {
        SlotId& slot = slots[static_cast<std::size_t>(begin) + (i - first)];
        if (slot == kNoSlot) slot = windows[i - top];
      }
    }
    KV_CHECK(std::ranges::find(slots.begin() + begin, slots.end(), kNoSlot) == slots.end(),
             "the windows of a prompt's end are there");
  }
}

}  // namespace kvtwin
