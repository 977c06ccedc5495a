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
    const bool enough = take_slots(at, Tier::device, count, part.slots);
    KV_CHECK(enough, "slots counted as evictable can be evicted");
  }
}

void Cache::handed(NodeId end, Tokens prompt, bool computed, const RequestPools& pools,
                   std::vector<SlotId>& slots) const {
  const Tokens page = config_.shape.page_tokens;
  for (std::size_t at = 0; at < pools_.size(); ++at) {
    const RequestPools::Part& part = pools.parts[at];
    const FurtherPool& index = *pools_[at].index;
    if (index.closure() == Closure::point) {
      slots.push_back(computed && part.copies ? index.slots(Tier::device, end).front() : part.slots.front());
    } else {
      const Tokens window = config_.pools[at].window;
      add_windows(at, end, part.slots, first_window_page(window, prompt, page), handed_slots(window, prompt, page),
                  slots);
    }
  }
}

}  // namespace kvtwin
