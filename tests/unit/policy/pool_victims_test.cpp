// The victims of pools by worth, against a model that looks at every node of the tree and walks every path from the
// top.
#include "policy/cache/pool_victims.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "policy/config.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

using test::chain;
using test::slots;
using test::Splitmix;

constexpr Bytes kPageBytes = 4096;
constexpr Tokens kPageTokens = 16;

EngineConfig config_with(const std::string& text) {
  EngineConfig config;
  config.pool_eviction = text;
  return config;
}

// The facts of a candidate, by definition.
class SlowVictims {
 public:
  SlowVictims(const RadixTree& tree, std::vector<PoolVictims::Pool> pools) : tree_(tree), pools_(std::move(pools)) {}

  std::vector<NodeId> nodes() const {
    std::vector<NodeId> all;
    for (std::uint32_t i = 1; i < 4096; ++i) {
      if (tree_.has(NodeId{i})) all.push_back(NodeId{i});
    }
    return all;
  }
  bool is_point(NodeId end, Tier tier) const {
    std::vector<NodeId> path;
    for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) path.insert(path.begin(), id);
    bool all = true;
    for (const PoolVictims::Pool& pool : pools_) {
      FurtherPool::Walk walk(*pool.index, tier == Tier::host);
      bool accepted = false;
      for (const NodeId id : path) accepted = walk.accepts(id, tree_.node(id).facts.pages);
      all = all && accepted;
    }
    return all;
  }
  PoolCandidate candidate(std::size_t at, NodeId id, Tier tier) const {
    const Node& node = tree_.node(id);
    const bool leaf = tree_.is_offered(id, tier == Tier::device ? PolicyRole::device : PolicyRole::host);
    PoolCandidate of;
    of.inner = node.on(tier).children == 1;
    std::uint64_t last = leaf ? node.facts.last_access : 0;
    for (std::size_t other = 0; other < pools_.size(); ++other) {
      const FurtherPool& index = *pools_[other].index;
      const bool window = at < pools_.size() && pools_[at].index->closure() == Closure::tail;
      const bool goes = leaf || other == at || (window && !index.leased(tier, id));
      if (!goes || !index.has(tier, id)) continue;
      of.bytes += index.slots(tier, id).size() * pools_[other].slot_bytes;
      last = std::max(last, index.last_use(tier, id));
    }
    of.idle = tree_.last_stamp() - last;
    Pages longest = 1;
    for (const PoolVictims::Pool& pool : pools_) longest = std::max(longest, pool.index->tail_pages());
    std::optional<NodeId> point;
    for (NodeId below = id; below != NodeId::none && !point; below = tree_.node(below).first_child) {
      if (tree_.node(below).facts.depth_pages >= node.facts.depth_pages + longest) break;
      if (is_point(below, tier)) point = below;
    }
    if (leaf) of.bytes += node.facts.pages * kPageBytes;
    if (!point) return of;
    of.to = tree_.node(*point).facts.depth_pages * kPageTokens;
    std::size_t between = 0;
    for (NodeId above = node.parent; above != tree_.root(); above = tree_.node(above).parent) {
      if (is_point(above, tier)) {
        of.from = tree_.node(above).facts.depth_pages * kPageTokens;
        break;
      }
      ++between;  // nodes from above `id` to here
      const auto below = static_cast<std::size_t>(std::ranges::count_if(
          nodes(), [&](NodeId other) { return tree_.node(other).on(tier).resident() && is_below(other, above); }));
      if (leaf && below == between) of.bytes += tree_.node(above).facts.pages * kPageBytes;
    }
    return of;
  }

 private:
  bool is_below(NodeId id, NodeId above) const {
    for (; id != tree_.root(); id = tree_.node(id).parent) {
      if (tree_.node(id).parent == above) return true;
    }
    return false;
  }

  const RadixTree& tree_;
  const std::vector<PoolVictims::Pool> pools_;
};

struct Lease {
  NodeId end;
  std::vector<Pages> from;
};

// One random tree with random windows and states, on L1 and partly on L2.
class RandomPools {
 public:
  RandomPools(Splitmix& random, const std::vector<Pages>& tails) : random_(random) {
    for (const Pages tail : tails) {
      pools_.push_back(&tree_.add_pool(tail == 0 ? Closure::point : Closure::tail, tail));
      weighed_.push_back({pools_.back(), tail == 0 ? Bytes{70'000} : Bytes{3000}});
    }
  }

  const RadixTree& tree() const { return tree_; }
  RadixTree& tree() { return tree_; }
  const std::vector<PoolVictims::Pool>& weighed() const { return weighed_; }

  void step() {
    if (random_.below(4) != 0) insert();
    const std::vector<NodeId> nodes = SlowVictims(tree_, weighed_).nodes();
    if (nodes.empty()) return;
    const NodeId id = nodes[random_.below(nodes.size())];
    FurtherPool& pool = *pools_[random_.below(pools_.size())];
    const Tier tier = random_.below(3) == 0 ? Tier::host : Tier::device;
    switch (random_.below(4)) {
      case 0:
        if (pool.has(tier, id) && !pool.leased(tier, id)) pool.take(tier, id);
        return;
      case 1: static_cast<void>(tree_.next_stamp()); return pool.use(id);
      case 2: return lease(id);
      default:
        if (!leases_.empty()) release();
    }
  }

 private:
  void insert() {
    std::vector<std::uint64_t> tokens;
    for (std::uint64_t i = 1 + random_.below(12); i > 0; --i) tokens.push_back(random_.below(3) == 0);
    const std::vector<PageKey> keys = chain(tokens);
    const PrefixMatch match = tree_.match(keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.touch(match.end, stamp);
    NodeId end = match.end;
    if (match.device_pages < keys.size()) {
      const auto rest = std::span(keys).subspan(match.device_pages);
      const bool copied = end == tree_.root() || tree_.node(end).host.resident();
      const Slots host = copied && random_.below(2) == 0 ? slots(0, rest.size()) : Slots{};
      end = tree_.insert(end, rest, slots(0, rest.size()), host, stamp, 0);
    }
    for (FurtherPool* const pool : pools_) {
      for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) {
        for (const Tier tier : kTiersOfTree) {
          if (random_.below(3) != 0 || !tree_.node(id).on(tier).resident() || pool->has(tier, id)) continue;
          pool->put(tier, id, slots(0, pool->closure() == Closure::point ? 1 : tree_.node(id).facts.pages));
        }
      }
    }
  }
  void lease(NodeId end) {
    if (leases_.size() == 3) return;
    Lease lease{end, {}};
    tree_.lease(Tier::device, end);
    for (FurtherPool* const pool : pools_) lease.from.push_back(pool->lease(Tier::device, end));
    leases_.push_back(lease);
  }
  void release() {
    for (std::size_t at = 0; at < pools_.size(); ++at) {
      pools_[at]->release(Tier::device, leases_.back().end, leases_.back().from[at]);
    }
    tree_.release(Tier::device, leases_.back().end);
    leases_.pop_back();
  }
  using Slots = std::vector<SlotId>;

  Splitmix& random_;
  RadixTree tree_{make_eviction("lru"), make_eviction("lru")};
  std::vector<FurtherPool*> pools_;
  std::vector<PoolVictims::Pool> weighed_;
  std::vector<Lease> leases_;
};

TEST(PoolVictims, AreThoseOfASlowModel) {
  const std::unique_ptr<PoolEviction> eviction = make_pool_eviction(config_with("work_per_byte(inner=0.25)"));
  std::uint64_t victims = 0, leaves = 0, not_oldest = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Splitmix random(seed);
    const std::vector<std::vector<Pages>> kinds = {{0}, {1}, {3}, {2, 0}, {5, 0}};
    RandomPools made(random, kinds[seed % kinds.size()]);
    RadixTree& tree = made.tree();
    const SlowVictims slow(tree, made.weighed());
    const PoolVictims fast(tree, made.weighed(), kPageBytes, kPageTokens, *eviction);
    const auto worth = [&](std::size_t at, NodeId id, Tier tier) {
      return eviction->worth(slow.candidate(at, id, tier));
    };
    for (int step = 0; step < 60; ++step) {
      made.step();
      for (std::size_t at = 0; at < made.weighed().size(); ++at) {
        const FurtherPool& pool = *made.weighed()[at].index;
        for (const Tier tier : kTiersOfTree) {
          NodeId least = NodeId::none;
          for (NodeId id = pool.oldest(tier); id != NodeId::none; id = pool.next_oldest(tier, id)) {
            if (least == NodeId::none || worth(at, id, tier) < worth(at, least, tier)) least = id;
          }
          ASSERT_EQ(fast.in_pool(at, tier), least) << "seed " << seed << " step " << step;
          victims += least != NodeId::none;
          not_oldest += least != pool.oldest(tier);
        }
      }
      const std::size_t all = made.weighed().size();
      const NodeId next = tree.device_victim(), leaf = fast.leaf(next);
      ASSERT_EQ(leaf == NodeId::none, next == NodeId::none);
      if (next == NodeId::none) continue;
      leaves += leaf != next;
      for (const NodeId id : slow.nodes()) {
        const bool known = std::ranges::any_of(made.weighed(), [&](const PoolVictims::Pool& pool) {
          return pool.index->has(Tier::device, id) && !pool.index->leased(Tier::device, id);
        });
        if (!tree.is_offered(id, PolicyRole::device) || (!known && id != next)) continue;
        ASSERT_GE(worth(all, id, Tier::device), worth(all, leaf, Tier::device)) << "seed " << seed;
      }
    }
  }
  EXPECT_GT(victims, 5000U);
  EXPECT_GT(not_oldest, 1000U);
  EXPECT_GT(leaves, 100U);
}

PoolCandidate candidate(Tokens from, Tokens to, std::uint64_t idle, Bytes bytes, bool inner = false) {
  return {from, to, idle, bytes, inner};
}

TEST(PoolVictims, AreWorthTheWorkPerByteAndAccess) {
  const std::unique_ptr<PoolEviction> policy = make_pool_eviction(config_with("work_per_byte"));
  const std::uint64_t one = policy->worth(candidate(0, 1000, 9, 1 << 20));
  EXPECT_EQ(policy->worth(candidate(500, 500, 0, 1)), 0U) << "no request can continue there";
  EXPECT_GT(policy->worth(candidate(0, 2000, 9, 1 << 20)), 2 * one) << "deep tokens are more work";
  EXPECT_GT(policy->worth(candidate(50'000, 51'000, 9, 1 << 20)), one);
  EXPECT_NEAR(static_cast<double>(policy->worth(candidate(0, 1000, 19, 1 << 20))), static_cast<double>(one) / 2, 1.0);
  EXPECT_LT(policy->worth(candidate(0, 1000, 9, 1 << 21)), one * 51 / 100);
  EXPECT_NEAR(static_cast<double>(policy->worth(candidate(0, 1000, 9, 1 << 20, true))), static_cast<double>(one) * 0.3,
              static_cast<double>(one) * 0.001);
  const Tokens most = Tokens{1} << 30;
  EXPECT_GT(policy->worth(candidate(0, most, 0, 0)), policy->worth(candidate(0, most / 2, 1'000'000, Bytes{1} << 50)));
  EXPECT_TRUE(policy->orders_leaves());
  EXPECT_FALSE(make_pool_eviction(config_with("work_per_byte(leaves=false)"))->orders_leaves());
  EXPECT_TRUE(make_pool_eviction(config_with("lru"))->by_use());
  EXPECT_EQ(make_pool_eviction(config_with("work_per_byte(inner=2)")), nullptr);
}

}  // namespace
}  // namespace kvtwin
