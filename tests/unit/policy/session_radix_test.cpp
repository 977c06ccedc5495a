// References of sessions (policy/cache/session_radix.hpp), under every eviction policy that orders leaves by them.
#include "policy/cache/session_radix.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "policy/eviction.hpp"
#include "session_rig.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

EngineConfig counting(Pages device, Pages host = 0) {
  EngineConfig config = small_config(device, host);
  config.session_radix = true;
  return config;
}

std::vector<std::string_view> policies_with_references() {
  std::vector<std::string_view> names;
  for (const std::string_view name : eviction_names()) {
    if (dynamic_cast<const OrdersReferences*>(make_eviction(name).get()) != nullptr) names.push_back(name);
  }
  return names;
}

using Rig = SessionRig;

TEST(SessionRadix, the_policies_of_sglang_order_leaves_by_references) {
  for (const char* name : {"lru", "fifo", "lfu", "mru", "filo", "priority", "slru", "tlru"}) {
    EXPECT_NE(dynamic_cast<const OrdersReferences*>(make_eviction(name).get()), nullptr) << name;
  }
}

TEST(SessionRadix, what_no_session_refers_to_is_evicted_first) {
  for (const std::string_view name : policies_with_references()) {
    for (const Pages host : {Pages{0}, Pages{12}}) {
      EngineConfig config = counting(13, host);
      config.eviction = name;
      Rig rig(config);
      rig.ask(1, 100);
      for (std::uint64_t i = 2; i < 12; ++i) {
        rig.ask(0, 100 * i);
        rig.ask(0, 100 * i);
      }
      EXPECT_EQ(rig.ask(1, 100), kWhole) << name << ", host " << host;
    }
  }
}

TEST(SessionRadix, a_prefill_part_that_is_handed_over_refers_to_its_pages) {
  EngineConfig config = counting(13);
  config.hand_over.role = EngineRole::prefill;
  config.hand_over.unit = HandOverUnit::whole;
  config.hand_over.from = config.hand_over.to = {config.shape, 1, Layout::layer_first};
  EngineRig rig(config);
  const auto serve = [&](RequestId request, std::uint64_t session, std::uint64_t first) {
    rig.session = session;
    rig.arrive_part(request, document({first, first + 1, first + 2, first + 3}), 16);
    Notice room;
    room.kind = NoticeKind::room;
    room.request = request;
    room.peer = 1;
    const std::vector<SlotId> slots{1, 2, 3, 4};
    room.slots = slots;
    rig.notice(room);
    const Tokens cached = kWhole - rig.world.passes.front().shape.prefill_tokens;
    rig.complete_pass();
    rig.complete_hand_over();
    return cached;
  };
  serve(0, 1, 100);
  for (RequestId i = 1; i < 8; ++i) serve(i, 0, 1000 * i);
  EXPECT_EQ(serve(8, 1, 100), 12U) << "the last page is computed";
}

TEST(SessionRadix, under_write_back_what_no_session_refers_to_leaves_first) {
  EngineConfig config = counting(13, 8);
  config.write_policy = "write_back";
  Rig rig(config);
  rig.ask(1, 100);
  for (std::uint64_t i = 2; i < 12; ++i) rig.ask(0, 100 * i);
  EXPECT_EQ(rig.ask(1, 100), kWhole);
  EXPECT_EQ(rig.events.records.back().hit[Tier::device], kWhole);
}

TEST(SessionRadix, the_fewest_references_are_evicted_first_and_then_the_policy_decides) {
  for (const std::string_view name : policies_with_references()) {
    EngineConfig config = counting(13);
    config.eviction = name;
    Rig rig(config);
    rig.ask(1, 100);
    rig.ask(2, 100);
    rig.ask(3, 200);
    rig.ask(3, 200);  // the same reference
    for (std::uint64_t i = 4; i < 9; ++i) rig.ask(i, 100 * i);
    EXPECT_EQ(rig.ask(1, 100), kWhole) << name << ": two sessions refer to it";
  }
  Rig rig(counting(13));
  for (std::uint64_t i = 1; i < 5; ++i) rig.ask(i, 100 * i);
  EXPECT_EQ(rig.ask(2, 200), kWhole);
  EXPECT_EQ(rig.ask(1, 100), 0U) << "lru, where all have one reference";
}

TEST(SessionRadix, a_session_that_ends_drops_its_references) {
  for (const HintRule rule : {HintRule::policy, HintRule::obey, HintRule::ignore}) {
    EngineConfig config = counting(13);
    config.hints = rule;
    Rig rig(config);
    rig.ask(2, 200);
    rig.ask(1, 100);
    rig.hint(HintKind::session_end, 1);
    rig.ask(3, 300);
    rig.ask(4, 400);
    const bool ended = rule != HintRule::ignore;
    EXPECT_EQ(rig.ask(1, 100), ended ? 0U : kWhole) << name_of(rule);
  }
}

TEST(SessionRadix, a_request_that_runs_when_its_session_ends_refers_to_nothing) {
  Rig rig(counting(13));
  rig.ask(1, 100);
  rig.session = 2;
  rig.arrive(100, document({200, 201, 202, 203}), 17, 3);
  rig.hint(HintKind::session_end, 2);
  rig.drain();
  rig.ask(3, 300);
  rig.ask(4, 400);
  EXPECT_EQ(rig.ask(1, 100), kWhole);
  EXPECT_EQ(rig.ask(0, 200), 0U) << "nothing refers to it";
}

TEST(SessionRadix, a_later_request_opens_its_session_again) {
  EngineConfig config = counting(20);
  config.max_running = 1;
  Rig rig(config);
  rig.session = 2;
  rig.arrive(100, document({200, 201, 202, 203}), 17, 3);
  rig.hint(HintKind::session_end, 2);                      // in one step with the next arrival
  rig.arrive(101, document({300, 301, 302, 303}), 17, 3);  // waits for the first one
  rig.drain();
  for (std::uint64_t i = 4; i < 9; ++i) rig.ask(0, 100 * i);
  EXPECT_EQ(rig.ask(0, 300), kWhole) << "of the session that is open again";
  EXPECT_EQ(rig.ask(0, 200), 0U) << "of the session that had ended";
}

TEST(SessionRadix, a_request_that_is_aborted_refers_to_nothing) {
  Rig rig(counting(13));
  rig.session = 1;
  rig.arrive(100, document({100, 101, 102, 103}), 17, 12);
  rig.hint(HintKind::abort, 100);
  rig.drain();
  rig.ask(2, 200);
  for (std::uint64_t i = 3; i < 6; ++i) rig.ask(0, 100 * i);
  EXPECT_EQ(rig.ask(0, 100), 0U);
}

// The tree's part, by nodes.
struct References : testing::Test {
  NodeId insert(NodeId parent, std::span<const PageKey> keys) {
    const std::vector<SlotId> slots(keys.size(), SlotId{0});
    return tree.insert(parent, keys, slots, {}, tree.next_stamp(), 0);
  }
  std::uint32_t of(NodeId node) const { return tree.node(node).references; }

  const test::ThrowingChecks checks;
  RadixTree tree{make_eviction("lru"), nullptr};
  std::vector<PageKey> left = test::chain({1, 2, 3, 4}), right = test::chain({1, 2, 13, 14});
};

TEST_F(References, a_branch_counts_again_and_a_longer_path_does_not) {
  const NodeId top = insert(tree.root(), std::span(left).first(2));
  tree.refer(1, top);
  EXPECT_EQ(of(top), 1U);
  const NodeId below = insert(top, std::span(left).subspan(2));
  tree.refer(1, below);
  EXPECT_EQ(of(top), 1U) << "the reference has moved";
  EXPECT_EQ(of(below), 1U);
  const NodeId branch = insert(top, std::span(right).subspan(2));
  tree.refer(1, branch);
  EXPECT_EQ(of(top), 2U) << "a reference for each branch";
  tree.refer(1, top);
  EXPECT_EQ(of(top), 3U) << "the request ended there";
  tree.check_invariants();
  tree.drop_references(1);
  EXPECT_EQ(of(top) + of(below) + of(branch), 0U);
  tree.check_invariants();
}

TEST_F(References, a_node_that_goes_hands_its_references_up_once) {
  const NodeId top = insert(tree.root(), std::span(left).first(2));
  const NodeId below = insert(top, std::span(left).subspan(2));
  const NodeId branch = insert(top, std::span(right).subspan(2));
  tree.refer(1, below);
  tree.refer(1, branch);
  tree.refer(2, below);
  EXPECT_EQ(of(top), 3U);
  std::vector<SlotId> freed;
  tree.remove_tail(below, 2, freed, freed);
  tree.check_invariants();
  EXPECT_EQ(of(top), 3U) << "sessions 1 and 2 end there, and 1 at the branch";
  tree.remove_tail(branch, 2, freed, freed);
  tree.check_invariants();
  EXPECT_EQ(of(top), 2U) << "session 1 ended there already";
  tree.remove_tail(top, 2, freed, freed);
  tree.check_invariants();
  tree.drop_references(1);
}

TEST_F(References, a_split_keeps_the_end_at_the_lower_part) {
  const NodeId whole = insert(tree.root(), left);
  tree.refer(1, whole);
  const NodeId top = tree.split(whole, 1);
  EXPECT_EQ(of(top), 1U);
  EXPECT_EQ(of(whole), 1U);
  tree.check_invariants();
  std::vector<SlotId> freed;
  tree.remove_tail(whole, 3, freed, freed);
  EXPECT_EQ(of(top), 1U);
  tree.check_invariants();
}

// Windows and states beside the pages.
struct ReferencesBeside : References {
  FurtherPool& windows = tree.add_pool(Closure::tail, 2);
  FurtherPool& states = tree.add_pool(Closure::point, 0);
  SlotId next = 0;

  NodeId insert_whole(NodeId parent, std::span<const PageKey> keys) {
    const NodeId id = insert(parent, keys);
    put_window(id);
    put_state(id);
    return id;
  }
  void put_window(NodeId id) {
    std::vector<SlotId> slots(tree.node(id).facts.pages);
    for (SlotId& slot : slots) slot = next++;
    windows.put(Tier::device, id, slots);
  }
  void put_state(NodeId id) {
    const SlotId slot = next++;
    states.put(Tier::device, id, {&slot, 1});
  }
  void remove(NodeId id) {
    for (FurtherPool* const pool : {&windows, &states}) {
      if (pool->has(Tier::device, id)) static_cast<void>(pool->take(Tier::device, id));
    }
    std::vector<SlotId> freed;
    tree.remove_tail(id, tree.node(id).facts.pages, freed, freed);
  }
  bool window_of(NodeId id) const { return windows.is_kept(Keeper::reference, id); }
  bool state_of(NodeId id) const { return states.is_kept(Keeper::reference, id); }
};

TEST_F(ReferencesBeside, are_to_the_window_and_a_page_and_to_one_state) {
  const NodeId first = insert_whole(tree.root(), std::span(left).first(1));
  const NodeId second = insert_whole(first, std::span(left).subspan(1, 1));
  const NodeId third = insert_whole(second, std::span(left).subspan(2, 1));
  const NodeId last = insert_whole(third, std::span(left).subspan(3, 1));
  tree.refer(1, last);
  EXPECT_EQ(of(first), 1U);
  EXPECT_FALSE(window_of(first));
  EXPECT_TRUE(window_of(second)) << "a page in front of the window";
  EXPECT_TRUE(window_of(third) && window_of(last));
  EXPECT_TRUE(state_of(last));
  EXPECT_FALSE(state_of(third));
  EXPECT_EQ(windows.oldest(Tier::device), first);
  EXPECT_EQ(states.oldest(Tier::device, EvictionTurn::referenced), last);
  tree.check_invariants();
}

TEST_F(ReferencesBeside, go_to_the_last_node_behind_which_a_pool_lets_a_request_continue) {
  const NodeId top = insert_whole(tree.root(), std::span(left).first(2));
  const NodeId below = insert(top, std::span(left).subspan(2));
  put_window(below);
  tree.refer(1, below);
  EXPECT_TRUE(state_of(top) && window_of(below) && !state_of(below));
  put_state(below);
  EXPECT_EQ(states.oldest(Tier::device), below) << "the session refers to the one above";
  tree.refer(1, below);
  EXPECT_TRUE(state_of(below) && !state_of(top)) << "the reference has moved";
  EXPECT_EQ(states.oldest(Tier::device), top);
  tree.check_invariants();
}

TEST_F(ReferencesBeside, order_windows_and_states_by_whether_there_are_any) {
  const NodeId a = insert_whole(tree.root(), test::chain({1, 2}));
  const NodeId b = insert_whole(tree.root(), test::chain({3, 4}));
  const NodeId c = insert_whole(tree.root(), test::chain({5, 6}));
  tree.refer(1, a);
  tree.refer(2, a);
  tree.refer(1, b);
  for (const FurtherPool* const pool : {&windows, &states}) {
    EXPECT_EQ(pool->oldest(Tier::device), c);
    EXPECT_EQ(pool->next_oldest(Tier::device, c), NodeId::none) << "the end of its turn";
    EXPECT_EQ(pool->oldest(Tier::device, EvictionTurn::referenced), a) << "two references are no more than one";
    EXPECT_EQ(pool->next_oldest(Tier::device, a), b);
  }
  tree.drop_references(1);
  EXPECT_EQ(states.oldest(Tier::device), c);
  EXPECT_EQ(states.next_oldest(Tier::device, c), b) << "it has just been let go";
  tree.drop_references(2);
  EXPECT_EQ(states.next_oldest(Tier::device, b), a);
  tree.check_invariants();
}

TEST_F(ReferencesBeside, let_a_leaf_go_as_a_whole_only_for_what_the_session_refers_to) {
  const NodeId top = insert_whole(tree.root(), std::span(left).first(2));
  const NodeId leaf = insert_whole(top, std::span(left).subspan(2));
  EXPECT_TRUE(goes_whole(tree, states, Tier::device, leaf));
  EXPECT_FALSE(goes_whole(tree, states, Tier::device, top)) << "no leaf";
  tree.refer(1, leaf);
  EXPECT_TRUE(goes_whole(tree, states, Tier::device, leaf));
  EXPECT_FALSE(goes_with(states, windows, Tier::device, top, false));
  EXPECT_TRUE(goes_with(windows, states, Tier::device, top, false));
  // A leaf whose state came after the request: the session refers to the pages and the window.
  const NodeId other = insert(tree.root(), test::chain({7, 8}));
  put_window(other);
  tree.refer(2, other);
  put_state(other);
  EXPECT_FALSE(goes_whole(tree, states, Tier::device, other));
  EXPECT_TRUE(goes_whole(tree, windows, Tier::device, other));
  EXPECT_FALSE(goes_with(states, windows, Tier::device, other, true)) << "the session refers to the window";
  // And to the pages only.
  const NodeId bare = insert(tree.root(), test::chain({9, 10}));
  tree.refer(3, bare);
  put_window(bare);
  put_state(bare);
  EXPECT_FALSE(goes_whole(tree, windows, Tier::device, bare));
  EXPECT_TRUE(goes_with(states, windows, Tier::device, bare, true));
  EXPECT_FALSE(goes_with(states, windows, Tier::device, bare, false));
  tree.check_invariants();
}

TEST_F(ReferencesBeside, survive_a_split_and_move_up_when_their_node_goes) {
  const NodeId top = insert_whole(tree.root(), std::span(left).first(1));
  const NodeId leaf = insert_whole(top, std::span(left).subspan(1));
  tree.refer(1, leaf);
  const NodeId upper = tree.split(leaf, 2);
  EXPECT_TRUE(window_of(upper) && window_of(leaf) && state_of(leaf));
  EXPECT_FALSE(window_of(top) || state_of(upper));
  tree.check_invariants();
  remove(leaf);
  EXPECT_TRUE(window_of(upper) && window_of(top)) << "two pages and one";
  EXPECT_TRUE(state_of(top)) << "the next state above";
  tree.check_invariants();
  tree.drop_references(1);
  EXPECT_FALSE(window_of(upper) || window_of(top) || state_of(top));
  tree.check_invariants();
}

// As many leaves as have a list of their own, and more, each with one reference more than the one before.
TEST_F(References, leaves_are_ordered_by_any_number_of_references) {
  constexpr std::uint64_t kLeaves = 300;
  std::vector<NodeId> leaves;
  std::vector<std::vector<PageKey>> keys;
  for (std::uint64_t leaf = 0; leaf < kLeaves; ++leaf) {
    keys.push_back(test::chain({1000 + leaf}));
    leaves.push_back(insert(tree.root(), keys.back()));
    for (std::uint64_t session = 0; session < kLeaves - leaf; ++session) tree.refer(session + 1, leaves.back());
  }
  std::vector<SlotId> freed;
  for (std::uint64_t left_over = kLeaves; left_over-- > 0;) {
    ASSERT_EQ(tree.device_victim(), leaves[left_over]);
    tree.remove_tail(leaves[left_over], 1, freed, freed);
  }
  EXPECT_EQ(tree.device_victim(), NodeId::none);
}

}  // namespace
}  // namespace kvtwin
