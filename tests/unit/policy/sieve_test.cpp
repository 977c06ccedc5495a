// Tests the hand of SIEVE on a tree, in which only leaves can be evicted, through the interface of the policy.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "policy/eviction.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

class Leaves {
 public:
  // Adds a node that ends at `depth` pages from the root. Its last page was the nth inserted page.
  void enter(int id, std::uint64_t nth, std::uint32_t depth, std::uint32_t pages = 1) {
    Known& known = known_[id];
    known = {{nth, nth, 1, 0, pages, depth}, test::chain({static_cast<std::uint64_t>(id)}), {}};
    policy_.learner->visit({});
    policy_.learner->entered(node(id));
  }
  void use(int id) { policy_.learner->touched(node(id)); }
  void offer(int id) { policy_->offer(node(id)); }
  void withdraw(int id) { policy_->withdraw(static_cast<NodeId>(id)); }
  // Evicts the whole node.
  void evict(int id) {
    policy_.learner->evicted(node(id), known_.at(id).facts.pages);
    withdraw(id);
  }
  // Evicts the last page of the node.
  void evict_tail(int id, std::uint64_t nth) {
    policy_.learner->evicted(node(id), 1);
    NodeFacts& facts = known_.at(id).facts;
    --facts.pages;
    --facts.depth_pages;
    facts.inserted = nth;
    offer(id);
  }
  // Evicts the last page too, but the page also exists in another tier. So the node keeps its last page, and the other
  // pages become the node `upper`.
  void split_tail_off(int id, int upper, std::uint64_t nth) {
    policy_.learner->evicted(node(id), 1);
    known_[upper] = known_.at(id);
    NodeFacts& facts = known_.at(upper).facts;
    --facts.pages;
    --facts.depth_pages;
    facts.inserted = nth;
    known_.at(id).facts.pages = 1;
    policy_.learner->split(node(upper), node(id));
    withdraw(id);
    offer(upper);
  }
  int victim() { return static_cast<int>(policy_->victim()); }

 private:
  struct Known {
    NodeFacts facts;
    std::vector<PageKey> keys;
    PolicyMarks marks;
  };
  PolicyNode node(int id) {
    Known& known = known_.at(id);
    return {static_cast<NodeId>(id), known.facts, known.keys, known.marks};
  }

  InstalledPolicy policy_{make_eviction("sieve")};
  std::map<int, Known> known_;
};

// Node 2 is below node 1. Node 3, which was used, and node 4 are on other paths. The hand has passed 3 when it reaches
// 2.
Leaves with_a_path() {
  Leaves leaves;
  leaves.enter(1, 1, 1);
  leaves.enter(3, 2, 1);
  leaves.enter(2, 3, 2);
  leaves.enter(4, 4, 1);
  for (const int leaf : {2, 3, 4}) leaves.offer(leaf);
  leaves.use(3);
  return leaves;
}

TEST(Sieve, GoesUpAPathAndThenOnFromWhereItWas) {
  Leaves leaves = with_a_path();
  ASSERT_EQ(leaves.victim(), 2);
  leaves.evict(2);
  leaves.offer(1);
  ASSERT_EQ(leaves.victim(), 1);
  leaves.evict(1);
  leaves.withdraw(3);  // a lease holds the leaf for some time
  leaves.offer(3);
  EXPECT_EQ(leaves.victim(), 4);  // not 3, although 3 comes after 1
  leaves.evict(4);
  EXPECT_EQ(leaves.victim(), 3);  // the hand starts again
}

TEST(Sieve, PassesOverWhatLiesAboveIfThatWasUsed) {
  Leaves leaves = with_a_path();
  leaves.use(1);
  ASSERT_EQ(leaves.victim(), 2);
  leaves.evict(2);
  leaves.offer(1);
  EXPECT_EQ(leaves.victim(), 4);
}

TEST(Sieve, StaysWithALeafOfWhichATailHasGone) {
  Leaves leaves;
  leaves.enter(1, 3, 3, 3);
  leaves.enter(2, 4, 1);
  leaves.offer(1);
  leaves.offer(2);
  ASSERT_EQ(leaves.victim(), 1);
  leaves.evict_tail(1, 2);
  ASSERT_EQ(leaves.victim(), 1);
  // The other way: the remaining pages become a new node above.
  leaves.split_tail_off(1, 5, 1);
  EXPECT_EQ(leaves.victim(), 5);
}

// With write-back, a chosen leaf is not offered while it is written. So no leaf is ahead of the hand, and a leaf that
// enters in the meantime is the last one to be evicted.
TEST(Sieve, ComesRoundWhenTheLastOneAheadIsChosen) {
  Leaves leaves;
  for (const int leaf : {1, 2, 3}) {
    leaves.enter(leaf, static_cast<std::uint64_t>(leaf), 1);
    leaves.offer(leaf);
  }
  leaves.use(1);
  leaves.use(2);
  ASSERT_EQ(leaves.victim(), 3);
  leaves.withdraw(3);
  leaves.enter(4, 4, 1);
  leaves.offer(4);
  EXPECT_EQ(leaves.victim(), 1);
}

// When the chosen leaf leaves, the hand may have moved on. The hand does not return for the parent.
TEST(Sieve, GoesOnWhileWhatIsToGoIsWritten) {
  Leaves leaves = with_a_path();
  ASSERT_EQ(leaves.victim(), 2);
  leaves.withdraw(2);
  ASSERT_EQ(leaves.victim(), 4);
  leaves.evict(2);
  leaves.offer(1);
  EXPECT_EQ(leaves.victim(), 4);
}

// Depth 0 means that the depth of a storage page is unknown. Such a page is not the parent of a leaf.
TEST(Sieve, TakesNoLeafOfUnknownDepthForWhatLiesAbove) {
  Leaves leaves;
  leaves.enter(1, 1, 1);
  leaves.enter(2, 2, 1);
  leaves.enter(3, 3, 0);
  for (const int leaf : {1, 2, 3}) leaves.offer(leaf);
  ASSERT_EQ(leaves.victim(), 1);
  leaves.evict(1);
  leaves.offer(3);
  EXPECT_EQ(leaves.victim(), 2);
}

}  // namespace
}  // namespace kvtwin
