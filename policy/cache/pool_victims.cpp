#include "policy/cache/pool_victims.hpp"

#include <algorithm>
#include <utility>

namespace kvtwin {

PoolVictims::PoolVictims(const RadixTree& tree, std::vector<Pool> pools, Bytes page_bytes, Tokens page_tokens,
                         const PoolEviction& eviction)
    : tree_(tree), pools_(std::move(pools)), page_bytes_(page_bytes), page_tokens_(page_tokens), eviction_(eviction) {
  for (const Pool& pool : pools_) longest_tail_ = std::max(longest_tail_, pool.index->tail_pages());
}

// Like FurtherPool::Walk, but from the node upwards.
bool PoolVictims::is_point(NodeId id, Tier tier) const {
  return std::ranges::all_of(pools_, [&](const Pool& pool) {
    const Pages needed = std::max<Pages>(pool.index->tail_pages(), 1);
    Pages covered = 0;
    for (NodeId at = id; at != tree_.root() && covered < needed; at = tree_.node(at).parent) {
      if (!pool.index->has(Tier::device, at) && !(tier == Tier::host && pool.index->has(Tier::host, at))) return false;
      covered += tree_.node(at).facts.pages;
    }
    return true;
  });
}

// Returns the node itself, or the next point on the path of first children whose window can contain the node's.
NodeId PoolVictims::point_of(NodeId id, Tier tier) const {
  const Pages end = tree_.node(id).facts.depth_pages + longest_tail_;
  while (id != NodeId::none && tree_.node(id).facts.depth_pages < end) {
    if (is_point(id, tier)) return id;
    id = tree_.node(id).first_child;
  }
  return NodeId::none;
}

PoolCandidate PoolVictims::candidate(std::size_t at, NodeId id, Tier tier) const {
  const Node& node = tree_.node(id);
  const bool offered = tree_.is_offered(id, tier == Tier::device ? PolicyRole::device : PolicyRole::host);
  const bool leaf = at == pools_.size() ? offered : goes_whole(tree_, *pools_[at].index, tier, id);
  PoolCandidate of;
  of.inner = node.on(tier).children == 1;
  std::uint64_t last_use = leaf ? node.facts.last_access : 0;
  if (leaf) of.bytes = node.facts.pages * page_bytes_;
  for (const Pool& pool : pools_) {
    if (!pool.index->has(tier, id)) continue;
    if (!leaf && !goes_with(*pools_[at].index, *pool.index, tier, id, offered)) continue;
    of.bytes += pool.index->slots(tier, id).size() * pool.slot_bytes;
    last_use = std::max(last_use, pool.index->last_use(tier, id));
  }
  of.idle = tree_.last_stamp() - last_use;
  const NodeId point = point_of(id, tier);
  if (point == NodeId::none) return of;
  of.to = tree_.node(point).facts.depth_pages * page_tokens_;
  bool useless = leaf;  // without the leaf, the pages above
  for (NodeId above = node.parent; above != tree_.root(); above = tree_.node(above).parent) {
    if (is_point(above, tier)) {
      of.from = tree_.node(above).facts.depth_pages * page_tokens_;
      break;
    }
    useless = useless && tree_.node(above).on(tier).children == 1;
    if (useless) of.bytes += tree_.node(above).facts.pages * page_bytes_;
  }
  return of;
}

NodeId PoolVictims::in_pool(std::size_t at, Tier tier, EvictionTurn first) const {
  const FurtherPool& index = *pools_[at].index;
  NodeId least = NodeId::none;
  std::uint64_t worth = 0;
  for (NodeId id = index.oldest(tier, first); id != NodeId::none; id = index.next_oldest(tier, id)) {
    const std::uint64_t here = eviction_.worth(candidate(at, id, tier));
    if (least != NodeId::none && here >= worth) continue;
    least = id;
    worth = here;
  }
  return least;
}

NodeId PoolVictims::leaf(NodeId next) const {
  if (next == NodeId::none || !eviction_.orders_leaves()) return next;
  NodeId least = next;
  std::uint64_t worth = eviction_.worth(candidate(pools_.size(), next, Tier::device));
  for (const Pool& pool : pools_) {
    for (const EvictionTurn turn : {EvictionTurn::ended, EvictionTurn::ordinary, EvictionTurn::referenced}) {
      for (NodeId id = pool.index->oldest(Tier::device, turn); id != NodeId::none && pool.index->turn(id) == turn;
           id = pool.index->next_oldest(Tier::device, id)) {
        if (!tree_.is_offered(id, PolicyRole::device)) continue;
        if (tree_.node(id).references != tree_.node(next).references || tree_.node(id).ended != tree_.node(next).ended)
          continue;
        const std::uint64_t here = eviction_.worth(candidate(pools_.size(), id, Tier::device));
        if (here >= worth) continue;
        least = id;
        worth = here;
      }
    }
  }
  return least;
}

}  // namespace kvtwin
