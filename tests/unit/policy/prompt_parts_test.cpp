// What a policy is told of a node's last use and of the part of the prompt that it holds.
#include <gtest/gtest.h>

#include <vector>

#include "policy/eviction.hpp"
#include "policy/hosted/hosted_tree.hpp"
#include "policy/index/radix_tree.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

std::vector<PromptRole> roles(const PromptParts& parts, std::uint32_t pages) {
  std::vector<PromptRole> found;
  for (std::uint32_t depth = 1; depth <= pages; ++depth) found.push_back(parts.role_at(depth));
  return found;
}

TEST(PromptParts, count_whole_pages) {
  constexpr PromptRole kSystem = PromptRole::system, kUser = PromptRole::user, kOutput = PromptRole::output,
                       kUnknown = PromptRole::unknown;
  using Roles = std::vector<PromptRole>;
  EXPECT_EQ(roles(PromptParts::of(32, 64, 16), 5), (Roles{kSystem, kSystem, kUser, kUser, kOutput}));
  // A page with tokens of two parts belongs to the later part.
  EXPECT_EQ(roles(PromptParts::of(33, 63, 16), 4), (Roles{kSystem, kSystem, kUser, kOutput}));
  EXPECT_EQ(roles(PromptParts::of(15, 40, 16), 3), (Roles{kUser, kUser, kOutput}));
  EXPECT_EQ(roles(PromptParts::of(0, 40, 16), 3), (Roles{kUnknown, kUnknown, kOutput}));
  EXPECT_EQ(roles(PromptParts::of(16, 0, 16), 3), (Roles{kSystem, kUser, kUser}));
  EXPECT_EQ(roles(PromptParts::of(0, 15, 16), 1), (Roles{kOutput}));
  EXPECT_EQ(roles({}, 2), (Roles{kUnknown, kUnknown}));
  EXPECT_FALSE(PromptParts{}.known());
  for (const PromptRole role : {kUnknown, kSystem, kUser, kOutput}) {
    for (const std::uint32_t depth : {0U, 1U, 1'000'000'000U}) {
      EXPECT_EQ(PromptParts::of(role).role_at(depth), role) << name_of(role) << depth;
    }
  }
}

TEST(NodeFacts, have_the_time_of_the_last_use_and_the_role_of_the_last_page) {
  RadixTree tree(make_eviction("lru"), make_eviction("lru"));
  const std::vector<PageKey> keys = test::chain({1, 2, 3, 4, 5});
  const auto visit = [&](RequestId request, TimeNs time, const PromptParts& parts) {
    tree.visit({request, time, 0, 64, 16, keys, false, parts});
  };
  visit(0, 100, PromptParts::of(32, 64, 16));
  const NodeId end = tree.insert(tree.root(), keys, test::slots(0, 5), {}, tree.next_stamp(), 0);
  EXPECT_EQ(tree.node(end).facts.role(), PromptRole::output);
  EXPECT_EQ(tree.node(end).facts.age(150), 50);
  // Each part of a split node has its own role. The parts of a request that only uses the nodes do not count.
  const NodeId upper = tree.split(end, 3);
  visit(1, 700, PromptParts::of(0, 32, 16));
  tree.touch(upper, tree.next_stamp());
  EXPECT_EQ(tree.node(upper).facts.role(), PromptRole::user);
  EXPECT_EQ(tree.node(tree.split(upper, 2)).facts.role(), PromptRole::system);
  EXPECT_EQ(tree.node(upper).facts.used_at, 700);
  EXPECT_EQ(tree.node(end).facts.used_at, 100);
  // The tail is evicted: the page before it is a page of the prompt.
  std::vector<SlotId> freed;
  tree.remove_tail(end, 1, freed, freed);
  EXPECT_EQ(tree.node(end).facts.role(), PromptRole::user);
}

// An engine that keeps its own cache names no system prompt.
TEST(NodeFacts, of_a_hosted_tree_know_answers) {
  HostedTree hosted({.eviction = "lru", .device_pages = 10, .host_pages = 0, .page_tokens = 16});
  const std::vector<PageKey> keys = test::chain({1, 2, 3});
  Answer answer;
  const auto visit = [&](RequestId request, TimeNs time, Tokens prompt) {
    Call call;
    call.verb = CallVerb::visit;
    call.request = request;
    call.time = time;
    call.prompt_tokens = prompt;
    call.keys = keys;
    ASSERT_EQ(hosted.call(call, answer), nullptr);
  };
  visit(1, 9, 40);
  Call insert;
  insert.verb = CallVerb::insert;
  insert.keys = keys;
  ASSERT_EQ(hosted.call(insert, answer), nullptr);
  const NodeId end = answer.node;
  const auto facts = [&] { return hosted.tree().node(end).facts; };
  EXPECT_EQ(facts().role(), PromptRole::output);
  EXPECT_EQ(facts().used_at, 9);
  visit(2, 20, 0);
  Call touch;
  touch.verb = CallVerb::touch;
  touch.node = end;
  ASSERT_EQ(hosted.call(touch, answer), nullptr);
  EXPECT_EQ(facts().age(25), 5);
  Call evict;
  evict.verb = CallVerb::evict;
  evict.node = end;
  evict.pages = 1;
  ASSERT_EQ(hosted.call(evict, answer), nullptr);
  EXPECT_EQ(facts().role(), PromptRole::unknown);  // page 2 of 40 tokens
}

TEST(NodeFacts, learn_the_role_from_the_first_visit_if_the_pages_came_before_it) {
  RadixTree tree(make_eviction("lru"), make_eviction("lru"));
  const std::vector<PageKey> keys = test::chain({1, 2});
  const NodeId end = tree.insert(tree.root(), keys, {}, test::slots(0, 2), tree.next_stamp(), 0);  // by a prefetch
  EXPECT_EQ(tree.node(end).facts.role(), PromptRole::unknown);
  tree.visit({0, 5, 0, 40, 1, keys, false, PromptParts::of(16, 40, 16)});
  tree.touch(end, tree.next_stamp());
  EXPECT_EQ(tree.node(end).facts.role(), PromptRole::user);
}

}  // namespace
}  // namespace kvtwin
