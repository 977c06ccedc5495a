// SIEVE's hand on a tree, where only leaves can go: through the policy's own interface.
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
  // A node that ends `depth` pages from the root, the last of which was the nth to be inserted; one page if not told.
  void enter(int id, std::uint64_t nth, std::uint32_t depth, std::uint32_t pages = 1) {
    Known& known = known_[id];
    known = {{nth, nth, 1, 0, pages, depth}, test::chain({static_cast<std::uint64_t>(id)}), {}};
    policy_.learner->visit({});
    policy_.learner->entered(node(id));
  }
  void use(int id) { policy_.learner->touched(node(id)); }
  void offer(int id) { policy_->offer(node(id)); }
  void withdraw(int id) { policy_->withdraw(static_cast<NodeId>(id)); }
  // It leaves, as a whole.
  void evict(int id) {
    policy_.learner->evicted(node(id), known_.at(id).facts.pages);
    withdraw(id);
  }
  // Its last page leaves.
  void evict_tail(int id, std::uint64_t nth) {
    policy_.learner->evicted(node(id), 1);
    NodeFacts& facts = known_.at(id).facts;
    --facts.pages;
    --facts.depth_pages;
    facts.inserted = nth;
    offer(id);
  }
  // The same, where the node keeps its last page, which is elsewhere too, and the others become the node `upper`.
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

// 2 lies below 1, on a path of its own lies 3, which was used, and 4. The hand has passed 3 when it comes to 2.
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
  leaves.withdraw(3);  // held for a while
  leaves.offer(3);
  EXPECT_EQ(leaves.victim(), 4);  // not 3, though that lies behind 1
  leaves.evict(4);
  EXPECT_EQ(leaves.victim(), 3);  // the hand has come round
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
  // Another way: what stays is split off, as a node above.
  leaves.split_tail_off(1, 5, 1);
  EXPECT_EQ(leaves.victim(), 5);
}

// Under write-back a leaf that is to go is on offer no longer while it is written: nothing is left ahead of the hand,
// and what enters meanwhile is the last that is to go.
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

// The hand may have gone on by the time that it leaves: it doesn't come back for what lies above.
TEST(Sieve, GoesOnWhileWhatIsToGoIsWritten) {
  Leaves leaves = with_a_path();
  ASSERT_EQ(leaves.victim(), 2);
  leaves.withdraw(2);
  ASSERT_EQ(leaves.victim(), 4);
  leaves.evict(2);
  leaves.offer(1);
  EXPECT_EQ(leaves.victim(), 4);
}

// Depth 0: of storage pages it may not be known. They lie above nothing.
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
