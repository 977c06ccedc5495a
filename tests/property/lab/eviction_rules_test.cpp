// The rules of lab/check/eviction_rules.hpp: every policy of the build keeps them, and a policy that breaks one is
// found.
#include "lab/check/eviction_rules.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/eviction.hpp"

namespace kvtwin {
namespace {

class EveryPolicy : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryPolicy, KeepsTheRules) {
  EvictionRules rules;
  rules.traces = 100;
  rules.order = GetParam() != "sieve";
  rules.times = GetParam() != "tide";
  const RulesKept kept =
      test_eviction_rules([](const EvictionSetup& setup) { return make_eviction(GetParam(), setup); }, rules);
  EXPECT_EQ(kept.broken, std::vector<std::string>{});
  EXPECT_EQ(kept.requests, 30'000U);
  EXPECT_GT(kept.evicted_pages, 10'000U);
}

std::vector<std::string_view> all_policies() {
  const auto names = eviction_names();
  return {names.begin(), names.end()};
}
INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(all_policies()),
                         [](const auto& tested) { return "of_" + std::string(tested.param); });

// Evicts the leaf with the smallest rank. The rank is computed at the offer.
class ByRank final : public EvictionPolicy, public LearnsFromVisits {
 public:
  using Rank = std::function<std::uint64_t(const PolicyNode& node, std::uint64_t offers, TimeNs now)>;
  explicit ByRank(Rank rank) : rank_(std::move(rank)) {}

  void offer(const PolicyNode& node) override {
    offered_[node.id] = {rank_(node, ++offers_, now_), node.facts.inserted};
  }
  void withdraw(NodeId node) override { offered_.erase(node); }
  NodeId victim() override {
    NodeId found = NodeId::none;
    for (const auto& [node, rank] : offered_) {
      if (found == NodeId::none || rank < offered_.at(found)) found = node;
    }
    return found;
  }
  std::size_t offered() const override { return offered_.size(); }
  bool is_offered(NodeId node) const override { return offered_.contains(node); }
  void visit(const Visit& visit) override { now_ = visit.time; }

 private:
  Rank rank_;
  std::map<NodeId, std::pair<std::uint64_t, std::uint64_t>> offered_;
  std::uint64_t offers_ = 0;
  TimeNs now_ = 0;
};

std::vector<std::string> broken_by(const ByRank::Rank& rank) {
  return test_eviction_rules([&](const EvictionSetup&) { return std::make_unique<ByRank>(rank); }).broken;
}

TEST(EvictionRules, name_the_rule_that_is_broken) {
  const auto begins_with = [](const std::vector<std::string>& broken, std::string_view sentence) {
    return broken.size() == 1 && broken.front().starts_with(sentence);
  };
  EXPECT_TRUE(broken_by([](const PolicyNode& node, std::uint64_t, TimeNs) { return node.facts.last_access; }).empty());
  const std::vector<std::string> numbers =
      broken_by([](const PolicyNode& node, std::uint64_t, TimeNs) { return static_cast<std::uint64_t>(node.id); });
  ASSERT_FALSE(numbers.empty());
  EXPECT_TRUE(numbers.front().starts_with("decisions depend on the numbers of nodes (trace ")) << numbers.front();
  EXPECT_TRUE(begins_with(broken_by([](const PolicyNode&, std::uint64_t offers, TimeNs) { return offers; }),
                          "decisions depend on the order of the offers (trace "));
  // Leaves that are offered at a late time go first.
  EXPECT_TRUE(begins_with(broken_by([](const PolicyNode&, std::uint64_t, TimeNs now) -> std::uint64_t {
                            return now > 100'000'000'000 ? 0 : 1;
                          }),
                          "decisions change if all times are ten times as long (trace "));
  std::uint64_t calls = 0;
  const std::vector<std::string> other =
      broken_by([&](const PolicyNode&, std::uint64_t, TimeNs) { return ++calls * 7 % 5; });
  ASSERT_FALSE(other.empty());
  EXPECT_TRUE(other.back().starts_with("the same calls lead to other decisions (trace ")) << other.back();
}

// Has no victim while leaves are on offer.
class Idle final : public EvictionPolicy {
 public:
  void offer(const PolicyNode& node) override { nodes_[node.id] = true; }
  void withdraw(NodeId node) override { nodes_.erase(node); }
  NodeId victim() override { return NodeId::none; }
  std::size_t offered() const override { return nodes_.size(); }
  bool is_offered(NodeId node) const override { return nodes_.contains(node); }

 private:
  std::map<NodeId, bool> nodes_;
};

TEST(EvictionRules, want_a_victim) {
  const RulesKept kept = test_eviction_rules([](const EvictionSetup&) { return std::make_unique<Idle>(); });
  ASSERT_EQ(kept.broken.size(), 1U);
  EXPECT_TRUE(kept.broken.front().starts_with("victim() is not a leaf on offer")) << kept.broken.front();
}

}  // namespace
}  // namespace kvtwin
