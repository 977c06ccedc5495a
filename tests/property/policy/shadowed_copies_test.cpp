// Compares ShadowedCopies with SGLang's own way: a list in order of registration, walked twice, from which the walk
// removes the nodes that have left.
#include "policy/index/shadowed_copies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

using State = ShadowedCopies::State;

class RegisteredNodes {
 public:
  void set(NodeId node, State state) {
    states_[node] = state;
    if (state == State::first || state == State::last || state == State::held) give_place(node);
    if (state == State::absent) std::erase(list_, node);
  }
  void give_place(NodeId node) {
    if (std::ranges::find(list_, node) == list_.end()) list_.push_back(node);
  }
  NodeId next() {
    NodeId found = NodeId::none;
    std::vector<NodeId> passed;
    for (const bool spares_last : {true, false}) {
      for (const NodeId node : list_) {
        if (found != NodeId::none) break;
        const State state = states_.at(node);
        if (state == State::left) passed.push_back(node);
        if (state == State::first || (state == State::last && !spares_last)) found = node;
      }
    }
    for (const NodeId node : passed) std::erase(list_, node);
    return found;
  }

 private:
  std::vector<NodeId> list_;
  std::map<NodeId, State> states_;
};

TEST(ShadowedCopies, HaveSglangsOrder) {
  std::size_t dropped = 0, last = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    test::Splitmix random(seed);
    ShadowedCopies tested;
    RegisteredNodes model;
    std::map<NodeId, State> states;
    const std::uint64_t nodes = random.between(1, 40);
    const auto set = [&](NodeId node, State state) {
      tested.set(node, state);
      model.set(node, state);
      states[node] = state;
    };
    for (int step = 0; step < 600; ++step) {
      const auto node = static_cast<NodeId>(random.below(nodes));
      const bool leaves = states.contains(node) && states[node] != State::absent && random.chance(30);
      if (leaves) {  // as a node that L1 gives up after a write
        tested.give_place(node);
        model.give_place(node);
      }
      set(node, leaves ? State::left : static_cast<State>(random.below(6)));
      ASSERT_TRUE(tested.agrees(node, states[node]));
      while (random.chance(20)) {
        const NodeId found = tested.next();
        ASSERT_EQ(found, model.next());
        if (found == NodeId::none) break;
        ++dropped;
        last += states[found] == State::last;
        set(found, State::absent);
      }
    }
  }
  EXPECT_GT(last, 100U);
  EXPECT_GT(dropped - last, 1000U);
}

}  // namespace
}  // namespace kvtwin
