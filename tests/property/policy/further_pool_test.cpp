// Compares windows and states beside the tree with a slow model: a map of single pages, each with its own window slot,
// state and leases.
#include "policy/index/further_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "policy/index/radix_tree.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

struct Page {
  std::vector<PageKey> path;                     // from the top to this page
  SlotId device = kNoSlot, host = kNoSlot;       // of its window
  SlotId state = kNoSlot, host_state = kNoSlot;  // at its end
  std::uint32_t window_leases = 0, state_leases = 0;
};

struct Lease {
  NodeId node;
  PageKey last;
  Pages window_from, state_from;
};

class Twin {
 public:
  explicit Twin(std::uint64_t seed)
      : random_(seed),
        tail_(random_.between(1, 5)),
        tree_(make_eviction("lru"), make_eviction("lru")),
        windows_(tree_.add_pool(Closure::tail, tail_)),
        states_(tree_.add_pool(Closure::point, 0)) {}

  void step() {
    switch (random_.below(10)) {
      case 0:
      case 1: insert(); break;
      case 2: tree_.match(path()); break;
      case 3:
      case 4: put(); break;
      case 5: take(); break;
      case 6: lease(); break;
      case 7: release(); break;
      case 8: remove_leaf(); break;
      default: use(); break;
    }
    compare();
  }

  void drain() {
    while (!leases_.empty()) release();
    while (tree_.nodes() > 0) remove_leaf();
    for (const FurtherPool* pool : {&windows_, &states_}) {
      EXPECT_EQ(pool->slots_held(Tier::device) + pool->slots_held(Tier::host), 0u);
      EXPECT_EQ(pool->slots_leased(Tier::device), 0u);
      EXPECT_EQ(pool->oldest(Tier::device), NodeId::none);
    }
    compare();
  }

 private:
  std::vector<PageKey> path() {
    std::vector<PageKey> keys;
    PageKey key;
    const std::size_t length = random_.between(1, 12);
    for (std::size_t i = 0; i < length; ++i)
      keys.push_back(key = test::chain_key(key, random_.below(i % 4 == 0 ? 3 : 1)));
    return keys;
  }

  void insert() {
    const std::vector<PageKey> keys = path();
    const PrefixMatch found = tree_.match(keys);
    const auto rest = std::span(keys).subspan(found.device_pages);
    if (rest.empty()) return;
    std::vector<SlotId> slots;
    for (std::size_t i = 0; i < rest.size(); ++i) {
      const std::size_t depth = found.device_pages + i + 1;
      model_[rest[i]].path.assign(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(depth));
      slots.push_back(next_slot_++);
    }
    tree_.insert(found.end, rest, slots, slots, tree_.next_stamp(), 0);
  }

  std::vector<NodeId> nodes() const {
    std::vector<NodeId> all{tree_.root()};
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (NodeId id = tree_.node(all[i]).first_child; id != NodeId::none; id = tree_.node(id).next_sibling) {
        all.push_back(id);
      }
    }
    all.erase(all.begin());
    return all;
  }
  NodeId any_node() {
    const std::vector<NodeId> all = nodes();
    return all.empty() ? NodeId::none : all[random_.below(all.size())];
  }
  Tier any_tier() { return random_.chance(50) ? Tier::device : Tier::host; }
  static SlotId& window_of(Page& page, Tier tier) { return tier == Tier::device ? page.device : page.host; }
  static SlotId& state_of(Page& page, Tier tier) { return tier == Tier::device ? page.state : page.host_state; }

  void put() {
    const NodeId id = any_node();
    if (id == NodeId::none) return;
    const Tier tier = any_tier();
    const auto keys = tree_.node(id).keys();
    if (random_.chance(50)) {
      if (windows_.has(tier, id)) return;
      std::vector<SlotId> slots;
      for (const PageKey& key : keys) slots.push_back(window_of(model_.at(key), tier) = next_slot_++);
      windows_.put(tier, id, slots);
    } else if (!states_.has(tier, id)) {
      const SlotId slot = state_of(model_.at(keys.back()), tier) = next_slot_++;
      states_.put(tier, id, {&slot, 1});
    }
  }

  void take() {
    const NodeId id = any_node();
    if (id != NodeId::none) take(any_tier(), id);
  }
  void take(Tier tier, NodeId id) {
    const auto keys = tree_.node(id).keys();
    if (windows_.has(tier, id)) {
      const std::vector<SlotId> slots = windows_.take(tier, id);
      ASSERT_EQ(slots.size(), keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        EXPECT_EQ(std::exchange(window_of(model_.at(keys[i]), tier), kNoSlot), slots[i]);
      }
    }
    if (states_.has(tier, id)) {
      const std::vector<SlotId> slots = states_.take(tier, id);
      EXPECT_EQ(std::exchange(state_of(model_.at(keys.back()), tier), kNoSlot), slots.at(0));
    }
  }

  // The pages (from, depth of the last] of its path.
  void count(const Lease& lease, int by) {
    const std::vector<PageKey> path = model_.at(lease.last).path;
    for (std::size_t i = lease.window_from; i < path.size(); ++i) {
      model_.at(path[i]).window_leases += static_cast<std::uint32_t>(by);
    }
    model_.at(lease.last).state_leases += static_cast<std::uint32_t>(by);
  }

  void lease() {
    const NodeId id = any_node();
    if (id == NodeId::none) return;
    const Pages depth = tree_.node(id).facts.depth_pages;
    tree_.lease(Tier::device, id);
    const Lease lease{id, tree_.node(id).keys().back(), windows_.lease(Tier::device, id),
                      states_.lease(Tier::device, id)};
    // The lease begins where the node begins that has the first page of the window.
    EXPECT_LE(lease.window_from + std::min(tail_, depth), depth);
    NodeId top = id;
    while (tree_.node(top).facts.depth_pages - tree_.node(top).facts.pages > lease.window_from)
      top = tree_.node(top).parent;
    EXPECT_EQ(tree_.node(top).facts.depth_pages - tree_.node(top).facts.pages, lease.window_from);
    EXPECT_GT(tree_.node(top).facts.depth_pages + tail_, depth);
    count(lease, 1);
    leases_.push_back(lease);
  }

  void release() {
    if (leases_.empty()) return;
    const auto at = leases_.begin() + static_cast<std::ptrdiff_t>(random_.below(leases_.size()));
    tree_.release(Tier::device, at->node);
    windows_.release(Tier::device, at->node, at->window_from);
    states_.release(Tier::device, at->node, at->state_from);
    count(*at, -1);
    leases_.erase(at);
  }

  void use() {
    const NodeId id = any_node();
    if (id == NodeId::none) return;
    windows_.use(id);
    states_.use(id);
  }

  void remove_leaf() {
    for (const NodeId id : nodes()) {
      const Node& node = tree_.node(id);
      if (node.children > 0 || node.device.leases > 0) continue;
      take(Tier::device, id);
      take(Tier::host, id);
      for (const PageKey& key : tree_.node(id).keys()) model_.erase(key);
      std::vector<SlotId> device, host;
      tree_.remove_tail(id, tree_.node(id).facts.pages, device, host);
      return;
    }
  }

  bool has(const PageKey& key, bool host) const {
    const Page& page = model_.at(key);
    return page.device != kNoSlot || (host && page.host != kNoSlot);
  }

  void compare() {
    tree_.check_invariants();
    for (const NodeId id : nodes()) {
      const Node& node = tree_.node(id);
      for (const PageKey& key : node.keys()) {
        const Page& page = model_.at(key);
        EXPECT_EQ(windows_.leased(Tier::device, id), page.window_leases > 0);
        EXPECT_EQ(page.device != kNoSlot, windows_.has(Tier::device, id));
        EXPECT_EQ(page.host != kNoSlot, windows_.has(Tier::host, id));
        if (&key == &node.keys().back()) continue;
        EXPECT_EQ(page.state, kNoSlot) << "a state is at a node's end";
        EXPECT_EQ(page.state_leases, 0u);
      }
      EXPECT_EQ(states_.leased(Tier::device, id), model_.at(node.keys().back()).state_leases > 0);
      EXPECT_EQ(states_.has(Tier::device, id), model_.at(node.keys().back()).state != kNoSlot);
      compare_closures(id);
    }
    Pages held = 0, leased = 0;
    for (const auto& [key, page] : model_) {
      if (page.device == kNoSlot) continue;
      ++held;
      leased += page.window_leases > 0;
    }
    EXPECT_EQ(windows_.slots_held(Tier::device), held);
    EXPECT_EQ(windows_.slots_leased(Tier::device), leased);
    const NodeId oldest = windows_.oldest(Tier::device);
    EXPECT_EQ(oldest != NodeId::none, held > leased);
    if (oldest != NodeId::none) {
      EXPECT_TRUE(windows_.has(Tier::device, oldest) && !windows_.leased(Tier::device, oldest));
    }
  }

  void compare_closures(NodeId end) {
    std::vector<NodeId> path;
    for (NodeId id = end; id != tree_.root(); id = tree_.node(id).parent) path.insert(path.begin(), id);
    for (const bool host : {false, true}) {
      FurtherPool::Walk windows(windows_, host), states(states_, host);
      bool window = false, state = false;
      for (const NodeId id : path) {
        window = windows.accepts(id, tree_.node(id).facts.pages);
        state = states.accepts(id, tree_.node(id).facts.pages);
      }
      const Page& last = model_.at(tree_.node(end).keys().back());
      const std::size_t depth = last.path.size();
      bool wanted = true;
      for (std::size_t i = depth - std::min<std::size_t>(depth, tail_); i < depth; ++i)
        wanted &= has(last.path[i], host);
      EXPECT_EQ(window, wanted) << "depth " << depth << " tail " << tail_;
      EXPECT_EQ(state, last.state != kNoSlot || (host && last.host_state != kNoSlot));
      // A path that ends inside the node: its window counts, its state does not.
      FurtherPool::Walk part(states_, host);
      if (tree_.node(end).facts.pages > 1) {
        EXPECT_FALSE(part.accepts(end, 1));
      }
    }
  }

  test::Splitmix random_;
  const Pages tail_;
  RadixTree tree_;
  FurtherPool& windows_;
  FurtherPool& states_;
  std::map<PageKey, Page> model_;
  std::vector<Lease> leases_;
  SlotId next_slot_ = 0;
};

TEST(FurtherPool, agrees_with_single_pages) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Twin twin(seed);
    for (int i = 0; i < 250 && !testing::Test::HasFailure(); ++i) twin.step();
    twin.drain();
    if (testing::Test::HasFailure()) return;
  }
}

// The order of use is SGLang's: a request moves the nodes of its window to the front, the deepest first.
TEST(FurtherPool, a_use_keeps_the_deepest_node_longest) {
  RadixTree tree(make_eviction("lru"), nullptr);
  FurtherPool& windows = tree.add_pool(Closure::tail, 2);
  std::vector<NodeId> nodes;
  PageKey key;
  NodeId above = tree.root();
  for (SlotId slot = 0; slot < 5; ++slot) {
    key = test::chain_key(key, slot);
    above = tree.insert(above, {&key, 1}, {&slot, 1}, {}, tree.next_stamp(), 0);
    windows.put(Tier::device, above, {&slot, 1});
    nodes.push_back(above);
  }
  windows.use(nodes[2]);  // two pages, and one more
  std::vector<NodeId> order;
  while (windows.oldest(Tier::device) != NodeId::none) {
    order.push_back(windows.oldest(Tier::device));
    windows.take(Tier::device, order.back());
  }
  EXPECT_EQ(order, (std::vector<NodeId>{nodes[3], nodes[4], nodes[0], nodes[1], nodes[2]}));
}

// A lease begins at a position. A split within it, and one at its border, change nothing.
TEST(FurtherPool, a_lease_survives_splits) {
  RadixTree tree(make_eviction("lru"), nullptr);
  FurtherPool& windows = tree.add_pool(Closure::tail, 3);
  std::vector<PageKey> keys;
  std::vector<SlotId> slots;
  for (SlotId slot = 0; slot < 8; ++slot) {
    keys.push_back(test::chain_key(keys.empty() ? PageKey{} : keys.back(), slot));
    slots.push_back(slot);
  }
  const NodeId end = tree.insert(tree.root(), keys, slots, {}, tree.next_stamp(), 0);
  windows.put(Tier::device, end, slots);
  const Pages whole = windows.lease(Tier::device, end);
  EXPECT_EQ(whole, 0u);
  const NodeId upper = tree.split(end, 4);  // the first lease covers both
  const Pages short_one = windows.lease(Tier::device, end);
  EXPECT_EQ(short_one, 4u);
  EXPECT_EQ(windows.slots_leased(Tier::device), 8u);
  windows.release(Tier::device, end, whole);
  EXPECT_FALSE(windows.leased(Tier::device, upper));
  EXPECT_TRUE(windows.leased(Tier::device, end));
  windows.release(Tier::device, end, short_one);
  EXPECT_EQ(windows.slots_leased(Tier::device), 0u);
}

}  // namespace
}  // namespace kvtwin
