#include "policy/index/radix_tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

using test::BrokenPromise;
using test::chain;
using test::slots;
using Slots = std::vector<SlotId>;

class RadixTreeTest : public testing::Test {
 protected:
  // Inserts all of `tokens` on the device below the root.
  NodeId insert(const std::vector<std::uint64_t>& tokens, SlotId first) {
    const std::vector<PageKey> keys = chain(tokens);
    const PrefixMatch match = tree_.match(keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.touch(match.end, stamp);
    const auto rest = std::span(keys).subspan(match.device_pages);
    return tree_.insert(match.end, rest, slots(first, rest.size()), {}, stamp, 0);
  }

  const test::ThrowingChecks checks_;
  RadixTree tree_{make_eviction("lru"), make_eviction("lru")};
};

TEST_F(RadixTreeTest, PeekChangesNothingAndMatchSplits) {
  const NodeId leaf = insert({1, 2, 3, 4}, 0);
  const PrefixMatch peeked = tree_.peek(chain({1, 2, 9}));
  EXPECT_EQ(peeked.device_pages, 2u);
  EXPECT_EQ(peeked.end, leaf);
  EXPECT_EQ(tree_.nodes(), 1u);
  const PrefixMatch match = tree_.match(chain({1, 2, 9}));
  EXPECT_EQ(match.device_pages, 2u);
  EXPECT_EQ(tree_.nodes(), 2u);
  EXPECT_EQ(tree_.node(leaf).parent, match.end);
  EXPECT_EQ(match.device_end, match.end);
  EXPECT_EQ(tree_.node(match.end).device.slots, (Slots{0, 1}));
  EXPECT_EQ(tree_.node(leaf).device.slots, (Slots{2, 3}));
  EXPECT_EQ(tree_.node(match.end).facts.inserted, 2u);
  EXPECT_EQ(tree_.node(leaf).facts.inserted, 4u);
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, PagesAboveOneThatWaitsForItsWriteAreNotClean) {
  tree_.set_counts_clean(true);
  const std::vector<PageKey> keys = chain({1, 2, 3, 4});
  const NodeId upper = tree_.insert(tree_.root(), std::span(keys).first(2), {}, slots(0, 2), tree_.next_stamp(), 0);
  const NodeId lower = tree_.insert(upper, std::span(keys).subspan(2), {}, slots(2, 2), tree_.next_stamp(), 0);
  EXPECT_EQ(tree_.clean_host_pages(), 4U);
  tree_.set_queued(lower, true);
  EXPECT_EQ(tree_.clean_host_pages(), 0U);
  const NodeId middle = tree_.split(lower, 1);
  tree_.set_queued(lower, false);
  EXPECT_EQ(tree_.clean_host_pages(), 1U);
  tree_.set_queued(middle, false);
  EXPECT_EQ(tree_.clean_host_pages(), 4U);
  tree_.mark(RadixTree::Mark::hold, upper);
  EXPECT_EQ(tree_.clean_host_pages(), 2U);
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, MatchThatSplitsRefreshesTheRestIfSet) {
  for (const bool refreshes : {false, true}) {
    RadixTree tree{make_eviction("lru"), nullptr};
    tree.set_split_refreshes(refreshes);
    const NodeId older = tree.insert(tree.root(), chain({1, 2, 3, 4}), slots(0, 4), {}, tree.next_stamp(), 0);
    const NodeId newer = tree.insert(tree.root(), chain({5, 6}), slots(4, 2), {}, tree.next_stamp(), 0);
    EXPECT_EQ(tree.device_victim(), older);
    const PrefixMatch match = tree.match(chain({1, 2, 9}));
    EXPECT_EQ(tree.device_victim(), refreshes ? newer : older);
    const std::uint64_t rest = tree.node(older).facts.last_access;
    EXPECT_EQ(rest > tree.node(newer).facts.last_access, refreshes);
    const std::uint64_t stamp = tree.next_stamp();
    tree.touch(match.end, stamp);
    EXPECT_LT(rest, stamp) << "the pages that the match uses are newer than the rest";
    tree.check_invariants();
  }
}

TEST_F(RadixTreeTest, CountedTouchEndsAtThePagesThatWereCounted) {
  RadixTree tree{make_eviction("lfu"), nullptr};
  tree.set_first_hits(0);
  const std::vector<PageKey> keys = chain({1, 2, 3});
  const NodeId upper = tree.insert(tree.root(), std::span(keys).first(2), slots(0, 2), {}, tree.next_stamp(), 0);
  const NodeId lower = tree.insert(upper, std::span(keys).last(1), slots(2, 1), {}, tree.next_stamp(), 0);
  const NodeId other = tree.insert(tree.root(), chain({5}), slots(3, 1), {}, tree.next_stamp(), 0);
  EXPECT_EQ(tree.device_victim(), lower);
  tree.count_touch(lower, 2);
  EXPECT_EQ(tree.node(upper).facts.hits, 0U);
  EXPECT_EQ(tree.node(lower).facts.hits, 1U);
  EXPECT_EQ(tree.device_victim(), other);
  tree.count_touch(lower, 1);  // a node counts whole
  EXPECT_EQ(tree.node(upper).facts.hits, 1U);
  EXPECT_EQ(tree.node(lower).facts.hits, 2U);
  tree.check_invariants();
}

// Four nodes of one page each, of which the last is below the third.
class ShadowedOrderTest : public testing::Test {
 protected:
  ShadowedOrderTest() {
    tree_.order_shadowed_copies();
    for (std::uint64_t i = 0; i < 3; ++i) nodes_.push_back(insert(tree_.root(), {10 + i}));
    nodes_.push_back(insert(nodes_[2], {12, 7}));
  }
  NodeId insert(NodeId parent, const std::vector<std::uint64_t>& tokens) {
    const std::vector<PageKey> keys = chain(tokens);
    return tree_.insert(parent, std::span(keys).last(1), slots(next_slot_++, 1), {}, tree_.next_stamp(), 0);
  }
  void copy(std::size_t i) { tree_.set_slots(Tier::host, nodes_[i], slots(next_slot_++, 1)); }
  // Drops copies until there is none. Returns the numbers of the nodes.
  std::vector<std::size_t> order() {
    std::vector<std::size_t> numbers;
    for (NodeId id = tree_.shadowed_victim(); id != NodeId::none; id = tree_.shadowed_victim()) {
      numbers.push_back(static_cast<std::size_t>(std::ranges::find(nodes_, id) - nodes_.begin()));
      tree_.clear(Tier::host, id);
      tree_.check_invariants();
    }
    return numbers;
  }

  const test::ThrowingChecks checks_;
  RadixTree tree_{make_eviction("lru"), make_eviction("lru"), make_eviction("lru")};
  std::vector<NodeId> nodes_;
  SlotId next_slot_ = 0;
};

using Numbers = std::vector<std::size_t>;

TEST_F(ShadowedOrderTest, FirstOnBothTiersFirstAndLeavesThatMayGoLast) {
  for (const std::size_t i : {3U, 2U, 1U, 0U}) copy(i);
  tree_.lease(Tier::device, nodes_[0]);
  EXPECT_EQ(order(), (Numbers{2, 0, 3, 1})) << "2 has a child on L1, 0 is leased";
}

TEST_F(ShadowedOrderTest, APinKeepsTheCopyOfOneNode) {
  for (const std::size_t i : {2U, 3U}) copy(i);
  tree_.pin_host_copy(nodes_[2]);
  tree_.check_invariants();
  EXPECT_EQ(order(), Numbers{3});
  tree_.unpin_host_copy(nodes_[2]);
  EXPECT_EQ(order(), Numbers{2});
}

TEST(ShadowedCopiesOfATree, AreAboveOthersIfThePrefixesNeedNotStay) {
  for (const bool closed : {true, false}) {
    RadixTree tree(make_eviction("lru"), make_eviction("lru"));
    tree.order_shadowed_copies();
    tree.set_host_prefix_closed(closed);
    const std::vector<PageKey> keys = chain({1, 2});
    const NodeId upper = tree.insert(tree.root(), std::span(keys).first(1), slots(0, 1), slots(0, 1), 1, 0);
    const NodeId lower = tree.insert(upper, std::span(keys).last(1), slots(1, 1), slots(1, 1), 1, 0);
    EXPECT_EQ(tree.shadowed_victim(), closed ? lower : upper);
    tree.check_invariants();
  }
}

TEST_F(ShadowedOrderTest, WaitsForTransfersAndForLeasesOfTheCopy) {
  for (const std::size_t i : {0U, 1U, 2U, 3U}) copy(i);
  tree_.set_arriving(Tier::device, nodes_[0], OperationId{1});
  tree_.set_arriving(Tier::host, nodes_[1], OperationId{2});
  tree_.lease(Tier::host, nodes_[3]);
  EXPECT_EQ(order(), Numbers{});
  tree_.release(Tier::host, nodes_[3]);
  tree_.set_arriving(Tier::host, nodes_[1], OperationId::none);
  tree_.set_arriving(Tier::device, nodes_[0], OperationId::none);
  EXPECT_EQ(order(), (Numbers{2, 0, 1, 3})) << "a place is that of the first time, not of the acknowledgement";
}

TEST_F(ShadowedOrderTest, NodeThatComesBackHasItsOldPlaceUntilTheOrderHasPassedIt) {
  for (const bool passed : {false, true}) {
    copy(0);
    tree_.set_leaving(nodes_[0]);
    tree_.clear(Tier::device, nodes_[0]);
    copy(1);
    if (passed) {
      EXPECT_EQ(order(), Numbers{1});
      copy(1);
    }
    tree_.set_slots(Tier::device, nodes_[0], slots(next_slot_++, 1));
    EXPECT_EQ(order(), passed ? (Numbers{1, 0}) : (Numbers{0, 1}));
  }
}

TEST_F(ShadowedOrderTest, SplitGivesTheUpperPartTheLastPlace) {
  const std::vector<PageKey> keys = chain({20, 21});
  nodes_.push_back(tree_.insert(tree_.root(), keys, slots(50, 2), slots(60, 2), tree_.next_stamp(), 0));
  copy(0);
  nodes_.push_back(tree_.split(nodes_[4], 1));
  tree_.lease(Tier::device, nodes_[4]);
  tree_.lease(Tier::device, nodes_[0]);
  EXPECT_EQ(order(), (Numbers{4, 0, 5}));
}

TEST_F(RadixTreeTest, MatchOfNothing) {
  insert({1, 2}, 0);
  for (const auto& keys : {chain({}), chain({2, 1})}) {
    const PrefixMatch match = tree_.match(keys);
    EXPECT_EQ(match.device_pages + match.host_pages, 0u);
    EXPECT_EQ(match.end, tree_.root());
    EXPECT_EQ(match.device_end, tree_.root());
  }
}

TEST_F(RadixTreeTest, DevicePagesThenHostPages) {
  const NodeId leaf = insert({1, 2, 3, 4}, 0);
  tree_.set_slots(Tier::host, leaf, slots(100, 4));
  const NodeId upper = tree_.split(leaf, 1);
  EXPECT_EQ(tree_.clear(Tier::device, leaf), (Slots{1, 2, 3}));
  const PrefixMatch match = tree_.match(chain({1, 2, 3, 9}));
  EXPECT_EQ(match.device_pages, 1u);
  EXPECT_EQ(match.host_pages, 2u);
  EXPECT_EQ(match.device_end, upper);
  EXPECT_EQ(tree_.node(match.end).parent, upper);
  EXPECT_EQ(tree_.host_victim(), leaf);
  EXPECT_EQ(tree_.device_victim(), upper);
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, RemovingAWholeNodeMakesItsParentALeaf) {
  const NodeId first = insert({1, 2, 3}, 0);
  const NodeId second = insert({1, 2, 4}, 10);
  const NodeId parent = tree_.node(first).parent;
  EXPECT_EQ(tree_.device_victim(), first);
  Slots device, host;
  tree_.remove_tail(first, 1, device, host);
  EXPECT_EQ(tree_.device_victim(), second);
  tree_.remove_tail(second, 1, device, host);
  EXPECT_EQ(tree_.device_victim(), parent);
  EXPECT_EQ(device, (Slots{2, 10}));
  EXPECT_TRUE(host.empty());
  tree_.remove_tail(parent, 1, device, host);
  EXPECT_EQ(tree_.node(parent).facts.inserted, 1u);
  tree_.remove_tail(parent, 1, device, host);
  EXPECT_EQ(tree_.nodes(), 0u);
  EXPECT_EQ(tree_.device_victim(), NodeId::none);
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, LeasesCoverThePathAndSurviveSplits) {
  const NodeId leaf = insert({1, 2, 3, 4}, 0);
  tree_.lease(Tier::device, leaf);
  tree_.lease(Tier::host, leaf);
  EXPECT_EQ(tree_.evictable_device_pages(), 0u);
  EXPECT_EQ(tree_.device_victim(), NodeId::none);
  const NodeId upper = tree_.split(leaf, 3);
  EXPECT_EQ(tree_.node(upper).device.leases, 1u);
  const NodeId top = tree_.split(upper, 1);
  insert({1, 9}, 10);
  EXPECT_EQ(tree_.evictable_device_pages(), 1u);
  tree_.release(Tier::device, leaf);
  tree_.release(Tier::host, leaf);
  EXPECT_EQ(tree_.evictable_device_pages(), 5u);
  EXPECT_EQ(tree_.node(top).device.leases, 0u);
  EXPECT_EQ(tree_.device_victim(), leaf);
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, BothPartsOfASplitAreUnderTheTransfer) {
  const NodeId leaf = insert({1, 2, 3, 4}, 0);
  tree_.set_slots(Tier::host, leaf, slots(50, 4));
  tree_.set_arriving(Tier::host, leaf, OperationId{7});
  tree_.set_arriving(Tier::device, leaf, OperationId{8});
  tree_.count_backup_hit(leaf);
  tree_.raise_priority(leaf, 5);
  const NodeId upper = tree_.split(leaf, 3);
  for (const NodeId id : {leaf, upper}) {
    EXPECT_EQ(tree_.node(id).host.arriving, OperationId{7});
    EXPECT_EQ(tree_.node(id).device.arriving, OperationId{8});
    EXPECT_EQ(tree_.node(id).backup_hits, 1u);
    EXPECT_EQ(tree_.node(id).facts.priority, 5);
    EXPECT_EQ(tree_.node(id).facts.hits, 1u);
  }
  EXPECT_EQ(tree_.node(upper).host.slots, (Slots{50, 51, 52}));
  EXPECT_EQ(tree_.node(leaf).host.slots, (Slots{53}));
}

TEST_F(RadixTreeTest, DemotionPageByPageLeavesOneNode) {
  const NodeId leaf = insert({1, 2, 3, 4, 5}, 0);
  tree_.set_slots(Tier::host, leaf, slots(50, 5));
  for (int i = 0; i < 5; ++i) {
    const NodeId victim = tree_.device_victim();
    if (tree_.node(victim).facts.pages > 1) tree_.split(victim, tree_.node(victim).facts.pages - 1);
    EXPECT_EQ(tree_.clear(Tier::device, victim), (Slots{static_cast<SlotId>(4 - i)}));
    EXPECT_EQ(tree_.nodes(), i < 4 ? 2u : 1u);
    tree_.check_invariants();
  }
  const PrefixMatch match = tree_.match(chain({1, 2, 3, 4, 5}));
  EXPECT_EQ(match.host_pages, 5u);
  EXPECT_EQ(tree_.node(match.end).host.slots, slots(50, 5));
  EXPECT_EQ(tree_.host_victim(), match.end);
}

TEST_F(RadixTreeTest, DemotionJoinsNothingThatDiffersOrIsHeld) {
  const NodeId leaf = insert({1, 2, 3, 4}, 0);
  tree_.set_slots(Tier::host, leaf, slots(50, 4));
  const NodeId middle = tree_.split(leaf, 3);
  const NodeId top = tree_.split(middle, 2);
  tree_.clear(Tier::device, leaf);
  tree_.lease(Tier::host, leaf);
  tree_.clear(Tier::device, middle);
  EXPECT_EQ(tree_.nodes(), 3u);  // the lease names `leaf`
  tree_.release(Tier::host, leaf);
  tree_.touch(top, tree_.next_stamp());
  tree_.clear(Tier::device, top);
  EXPECT_EQ(tree_.nodes(), 3u);  // `top` is younger
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, DemotionJoinsOnlyWhatWasInsertedTogether) {
  const auto add = [&](NodeId parent, const std::vector<std::uint64_t>& tokens, SlotId slot) {
    const std::vector<PageKey> keys = chain(tokens);
    return tree_.insert(parent, std::span(keys).last(1), Slots{slot}, Slots{slot}, tree_.next_stamp(), 0);
  };
  const NodeId parent = add(tree_.root(), {1}, 0);
  const NodeId next = add(parent, {1, 2}, 1);  // pages 1 and 2, but of two requests
  add(tree_.root(), {9}, 2);
  const NodeId later = add(next, {1, 2, 3}, 3);
  tree_.touch(later, tree_.next_stamp());  // now all three are as young and as often used
  for (const NodeId id : {later, next}) tree_.clear(Tier::device, id);
  EXPECT_EQ(tree_.nodes(), 4u);  // pages 2 and 4
  const NodeId other = add(tree_.root(), {5}, 4);
  const NodeId below = add(other, {5, 6}, 5);
  for (const NodeId id : {below, other}) tree_.clear(Tier::device, id);
  EXPECT_EQ(tree_.nodes(), 6u);  // pages 5 and 6 in sequence, but not equally young
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, DemotionJoinsNoOneOfSeveralChildren) {
  const NodeId leaf = insert({1, 2, 3}, 0);
  tree_.set_slots(Tier::host, leaf, slots(50, 3));
  const NodeId top = tree_.split(leaf, 1);
  const auto side = chain({1, 9});
  const NodeId branch = tree_.insert(top, std::span(side).last(1), Slots{7}, Slots{57}, tree_.next_stamp(), 0);
  tree_.split(leaf, 1);  // makes its upper part the first child
  const NodeId middle = tree_.node(leaf).parent;
  for (const NodeId id : {branch, leaf, middle, top}) tree_.clear(Tier::device, id);
  EXPECT_EQ(tree_.node(top).children, 2u);
  EXPECT_EQ(tree_.nodes(), 3u);  // only `leaf` went back into `middle`
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, LeaseAheadOfALoadIsCountedOnceTheNodeArrives) {
  const NodeId leaf = insert({1, 2}, 0);
  tree_.set_slots(Tier::host, leaf, slots(50, 2));
  tree_.clear(Tier::device, leaf);
  EXPECT_EQ(tree_.pages(Tier::device), 0u);
  tree_.lease(Tier::device, leaf);
  tree_.set_slots(Tier::device, leaf, slots(60, 2));
  EXPECT_EQ(tree_.pages(Tier::device), 2u);
  EXPECT_EQ(tree_.evictable_device_pages(), 0u);
  tree_.release(Tier::device, leaf);
  EXPECT_EQ(tree_.evictable_device_pages(), 2u);
  EXPECT_EQ(tree_.host_victim(), NodeId::none);  // a host copy behind a device copy is no leaf
  tree_.check_invariants();
}

TEST_F(RadixTreeTest, TouchMakesALeafYoung) {
  const NodeId first = insert({1}, 0);
  const NodeId second = insert({2}, 1);
  EXPECT_EQ(tree_.device_victim(), first);
  tree_.touch(first, tree_.next_stamp());
  EXPECT_EQ(tree_.device_victim(), second);
  EXPECT_EQ(tree_.node(first).facts.hits, 2u);
}

TEST_F(RadixTreeTest, WorksWithoutAHostTier) {
  RadixTree tree(make_eviction("fifo"), nullptr);
  const auto keys = chain({1, 2, 3});
  const NodeId leaf = tree.insert(tree.root(), keys, slots(0, 3), {}, tree.next_stamp(), 0);
  EXPECT_EQ(tree.host_victim(), NodeId::none);
  Slots device, host;
  tree.remove_tail(leaf, 3, device, host);
  EXPECT_EQ(device, slots(0, 3));
  tree.check_invariants();
}

TEST_F(RadixTreeTest, RefusesBrokenPromises) {
  const NodeId leaf = insert({1, 2, 3}, 0);
  Slots device, host;
  EXPECT_THROW(tree_.clear(Tier::device, leaf), BrokenPromise);  // on no tier then
  EXPECT_THROW(tree_.split(leaf, 0), BrokenPromise);
  EXPECT_THROW(tree_.split(leaf, 3), BrokenPromise);
  EXPECT_THROW(tree_.set_slots(Tier::device, leaf, slots(9, 3)), BrokenPromise);
  EXPECT_THROW(tree_.set_slots(Tier::host, leaf, slots(9, 2)), BrokenPromise);
  EXPECT_THROW(tree_.remove_tail(leaf, 4, device, host), BrokenPromise);
  EXPECT_THROW(tree_.release(Tier::device, leaf), BrokenPromise);
  tree_.lease(Tier::device, leaf);
  EXPECT_THROW(tree_.remove_tail(leaf, 1, device, host), BrokenPromise);
  tree_.release(Tier::device, leaf);
  tree_.set_arriving(Tier::host, leaf, OperationId{1});
  EXPECT_THROW(tree_.remove_tail(leaf, 1, device, host), BrokenPromise);
  const auto keys = chain({1, 2, 3});
  EXPECT_THROW(tree_.insert(tree_.root(), keys, slots(5, 3), {}, 1, 0), BrokenPromise);  // it is there
}

TEST(Eviction, Names) {
  EXPECT_TRUE(std::ranges::is_sorted(eviction_names()));
  EXPECT_NE(make_eviction("lru"), nullptr);
  for (const std::string_view name : eviction_names()) EXPECT_NE(make_eviction(name), nullptr);
  EXPECT_EQ(make_eviction("LRU"), nullptr);
}

// Neither on node numbers nor on the order of the offers.
TEST(Eviction, OrderDependsOnFactsOnly) {
  constexpr std::size_t kLeaves = 200;
  for (const std::string_view name : eviction_names()) {
    test::Splitmix random(3);
    std::vector<NodeFacts> facts(kLeaves);
    for (std::size_t i = 0; i < kLeaves; ++i) {
      facts[i].inserted = i + 1;
      facts[i].last_access = random.below(5);
      facts[i].hits = static_cast<std::uint32_t>(random.between(1, 4));
      facts[i].priority = static_cast<std::int32_t>(random.below(3)) - 1;
      facts[i].pages = 1;
      facts[i].depth_pages = 1;
    }
    std::vector<std::vector<std::uint64_t>> sequences;
    for (int order = 0; order < 2; ++order) {
      auto policy = make_eviction(name);
      std::vector<std::size_t> leaf_of(kLeaves);  // by node
      for (std::size_t i = 0; i < kLeaves; ++i) leaf_of[i] = i;
      for (std::size_t i = kLeaves; i > 1; --i) std::swap(leaf_of[i - 1], leaf_of[random.below(i)]);
      std::vector<PolicyMarks> marks(kLeaves);
      std::vector<PageKey> keys(kLeaves);
      for (std::size_t i = 0; i < kLeaves; ++i) keys[i].words[0] = leaf_of[i] + 1;
      for (std::size_t i = 0; i < kLeaves; ++i) {
        policy->offer({static_cast<NodeId>(i), facts[leaf_of[i]], {&keys[i], 1}, marks[i]});
      }
      policy->withdraw(NodeId{5000});  // never heard of
      EXPECT_EQ(policy->offered(), kLeaves);
      std::vector<std::uint64_t>& sequence = sequences.emplace_back();
      while (policy->offered() > 0) {
        const NodeId id = policy->victim();
        ASSERT_TRUE(policy->is_offered(id)) << name;
        sequence.push_back(facts[leaf_of[static_cast<std::size_t>(id)]].inserted);
        policy->withdraw(id);
        ASSERT_FALSE(policy->is_offered(id)) << name;
      }
      EXPECT_EQ(policy->victim(), NodeId::none);
    }
    EXPECT_EQ(sequences[0], sequences[1]) << name;
  }
}

}  // namespace
}  // namespace kvtwin
