#include "policy/index/further_pool.hpp"

#include "policy/base/check.hpp"
#include "policy/index/radix_tree.hpp"

namespace kvtwin {

FurtherPool::FurtherPool(const RadixTree& tree, Closure closure, Pages tail_pages)
    : tree_(tree), closure_(closure), tail_pages_(tail_pages) {
  KV_CHECK(closure != Closure::path, "pool 0 is the only one with the closure of a path");
  KV_CHECK((closure == Closure::tail) == (tail_pages > 0), "a tail has a length");
}

const FurtherPool::Place& FurtherPool::place(Tier tier, NodeId id) const {
  static const Place kBlank;
  const std::vector<Place>& places = places_[index(tier)];
  const auto at = static_cast<std::size_t>(id);
  return at < places.size() ? places[at] : kBlank;
}

FurtherPool::Place& FurtherPool::mutable_place(Tier tier, NodeId id) {
  std::vector<Place>& places = places_[index(tier)];
  const auto at = static_cast<std::size_t>(id);
  if (at >= places.size()) places.resize(at + 1);
  return places[at];
}

bool FurtherPool::is_blank(NodeId id) const {
  for (const Tier tier : kTiersOfTree) {
    const Place& here = place(tier, id);
    if (!here.slots.empty() || here.leases > 0 || here.listed) return false;
  }
  return true;
}

// ---- the order of use --------------------------------------------------------------------------------

void FurtherPool::list(Tier tier, NodeId id, NodeId behind) {
  Order& order = tiers_[index(tier)];
  Place& here = mutable_place(tier, id);
  KV_CHECK(!here.listed, "a node is in the order once");
  here.listed = true;
  here.last_use = tree_.last_stamp();
  here.newer = behind;
  here.older = behind == NodeId::none ? order.newest : place(tier, behind).older;
  if (behind == NodeId::none) {
    order.newest = id;
  } else {
    mutable_place(tier, behind).older = id;
  }
  if (here.older == NodeId::none) {
    order.oldest = id;
  } else {
    mutable_place(tier, here.older).newer = id;
  }
}

void FurtherPool::unlist(Tier tier, NodeId id) {
  Order& order = tiers_[index(tier)];
  Place& here = mutable_place(tier, id);
  if (!here.listed) return;
  here.listed = false;
  if (here.newer == NodeId::none) {
    order.newest = here.older;
  } else {
    mutable_place(tier, here.newer).older = here.older;
  }
  if (here.older == NodeId::none) {
    order.oldest = here.newer;
  } else {
    mutable_place(tier, here.older).newer = here.newer;
  }
  here.newer = here.older = NodeId::none;
}

NodeId FurtherPool::unleased(Tier tier, NodeId at) const {
  while (at != NodeId::none && place(tier, at).leases > 0) at = place(tier, at).newer;
  return at;
}

// ---- slots -------------------------------------------------------------------------------------------

void FurtherPool::put(Tier tier, NodeId id, std::span<const SlotId> slots) {
  KV_CHECK(slots.size() == (closure_ == Closure::point ? 1 : tree_.node(id).facts.pages), "a slot for each page");
  Place& here = mutable_place(tier, id);
  KV_CHECK(here.slots.empty(), "the node isn't on the tier yet");
  here.slots.append(slots);
  Order& order = tiers_[index(tier)];
  order.held += slots.size();
  if (here.leases > 0) order.leased += slots.size();
  if (tier == Tier::device) {
    list(tier, id, NodeId::none);
    unlist(Tier::host, id);
  } else if (!has(Tier::device, id)) {
    list(tier, id, NodeId::none);
  }
}

void FurtherPool::set_arriving(Tier tier, NodeId id, OperationId operation) {
  KV_CHECK(has(tier, id), "a transfer fills slots");
  mutable_place(tier, id).arriving = operation;
}

std::vector<SlotId> FurtherPool::take(Tier tier, NodeId id) {
  Place& here = mutable_place(tier, id);
  KV_CHECK(!here.slots.empty(), "the node is on the tier");
  std::vector<SlotId> slots(here.slots.begin(), here.slots.end());
  here.slots = {};
  here.arriving = OperationId::none;
  Order& order = tiers_[index(tier)];
  order.held -= slots.size();
  if (here.leases > 0) order.leased -= slots.size();
  unlist(tier, id);
  if (tier == Tier::device && has(Tier::host, id)) list(Tier::host, id, NodeId::none);
  return slots;
}

void FurtherPool::split(NodeId upper, NodeId lower, Pages pages) {
  KV_CHECK(is_blank(upper), "the upper part of a split is new");
  if (closure_ == Closure::point) return;
  for (const Tier tier : kTiersOfTree) {
    if (place(tier, lower).slots.empty() && place(tier, lower).leases == 0) continue;
    static_cast<void>(mutable_place(tier, upper));  // both references stay valid
    Place& below = mutable_place(tier, lower);
    Place& above = mutable_place(tier, upper);
    above.slots = below.slots.cut(pages);
    above.leases = below.leases;
    above.arriving = below.arriving;
    if (!below.listed) continue;
    list(tier, upper, lower);
    above.last_use = below.last_use;
  }
}

bool goes_with(const FurtherPool& lost, const FurtherPool& other, Tier tier, NodeId id) {
  if (&lost == &other) return true;
  return lost.closure() == Closure::tail && other.has(tier, id) && !other.leased(tier, id);
}

// ---- closures ----------------------------------------------------------------------------------------

bool FurtherPool::Walk::accepts(NodeId id, Pages pages) {
  const bool here = pool_.has(Tier::device, id) || (host_ && pool_.has(Tier::host, id));
  if (pool_.closure_ == Closure::point) return here && pages == pool_.tree_.node(id).facts.pages;
  if (!here) {
    whole_ = false;
    pages_ = 0;
    return false;
  }
  pages_ += pages;
  return whole_ || pages_ >= pool_.tail_pages_;
}

// Visits the nodes from `end` upwards, until they cover so many pages.
template <typename Visit>
void FurtherPool::each_needed(NodeId end, Pages pages, Visit visit) const {
  Pages covered = 0;
  for (NodeId id = end; id != tree_.root() && covered < pages; id = tree_.node(id).parent) {
    covered += tree_.node(id).facts.pages;
    visit(id);
  }
}

void FurtherPool::count_lease(Tier tier, NodeId id) {
  Place& here = mutable_place(tier, id);
  if (here.leases++ == 0) tiers_[index(tier)].leased += here.slots.size();
}

Pages FurtherPool::lease(Tier tier, NodeId end) {
  if (end == tree_.root()) return 0;
  Pages from = tree_.node(end).facts.depth_pages;
  each_needed(end, closure_ == Closure::point ? 1 : tail_pages_, [&](NodeId id) {
    count_lease(tier, id);
    from = tree_.node(id).facts.depth_pages - tree_.node(id).facts.pages;
  });
  return closure_ == Closure::point ? tree_.node(end).facts.depth_pages - 1 : from;
}

void FurtherPool::release(Tier tier, NodeId end, Pages from) {
  for (NodeId id = end; id != tree_.root() && tree_.node(id).facts.depth_pages > from; id = tree_.node(id).parent) {
    Place& here = mutable_place(tier, id);
    KV_CHECK(here.leases > 0, "a lease is released once");
    if (--here.leases == 0) {
      tiers_[index(tier)].leased -= here.slots.size();
      if (tier == Tier::host && here.listed) {  // as SGLang: a node that nothing reads any more is in use until now
        unlist(tier, id);
        list(tier, id, NodeId::none);
      }
    }
    if (closure_ == Closure::point) return;
  }
}

void FurtherPool::use(NodeId end) {
  NodeId behind = NodeId::none;
  each_needed(end, closure_ == Closure::point ? 1 : tail_pages_ + 1, [&](NodeId id) {
    if (!has(Tier::device, id)) return;
    unlist(Tier::device, id);
    list(Tier::device, id, behind);
    behind = id;
  });
}

// ---- invariants --------------------------------------------------------------------------------------

void FurtherPool::check_invariants() const {
  for (const Tier tier : kTiersOfTree) {
    const Order& order = tiers_[index(tier)];
    const std::vector<Place>& places = places_[index(tier)];
    Pages held = 0, leased = 0;
    std::size_t listed = 0, in_order = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto id = static_cast<NodeId>(i);
      const Place& here = places[i];
      KV_CHECK(tree_.has(id) || is_blank(id), "nothing is known of a node that has gone");
      held += here.slots.size();
      if (here.leases > 0) leased += here.slots.size();
      listed += here.listed;
      KV_CHECK(here.listed == (!here.slots.empty() && (tier == Tier::device || !has(Tier::device, id))),
               "the nodes that have slots are in the order, those of L2 if they are not on L1");
      if (here.slots.empty()) continue;
      KV_CHECK(here.slots.size() == (closure_ == Closure::point ? 1 : tree_.node(id).facts.pages), "a slot a page");
      // Under write-back, the window of a node on L1 may be on L2 without its pages.
      KV_CHECK(tree_.node(id).on(tier).resident() || (tier == Tier::host && tree_.node(id).device.resident()),
               "no window and no state without the pages of its node");
    }
    NodeId newer = NodeId::none;
    for (NodeId at = order.newest; at != NodeId::none; at = place(tier, at).older) {
      KV_CHECK(place(tier, at).newer == newer && place(tier, at).listed, "the order is linked");
      newer = at;
      ++in_order;
    }
    KV_CHECK(newer == order.oldest && in_order == listed, "every listed node is in the order");
    KV_CHECK(held == order.held && leased == order.leased, "slots are counted");
  }
}

}  // namespace kvtwin
