#include "lab/check/eviction_rules.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "policy/base/mix.hpp"
#include "policy/index/radix_tree.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kTrialPageTokens = 64;
constexpr std::size_t kTrialRequests = 300, kTrialDepth = 14;

class RuleDraws {
 public:
  explicit RuleDraws(std::uint64_t seed) : state_(mixed_bits(seed)) {}
  std::uint64_t below(std::uint64_t bound) {
    state_ += kGoldenRatio64;
    return mixed_bits(state_) % bound;
  }
  bool chance(std::uint64_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

struct TrialRequest {
  std::vector<PageKey> keys;
  TimeNs time = 0;
  Tokens prompt = 0, output = 0;
  std::int32_t priority = 0;
  PromptParts parts;
};

// Paths of a tree with few branches. Some requests come at equal times, and some know their system prompt.
std::vector<TrialRequest> drawn_requests(std::uint64_t seed) {
  RuleDraws draws(seed);
  std::vector<TrialRequest> requests(kTrialRequests);
  TimeNs now = 0;
  for (TrialRequest& request : requests) {
    request.keys.resize(1 + draws.below(kTrialDepth));
    std::uint64_t chain = 0;
    for (PageKey& key : request.keys) {
      chain = mixed_bits(chain * 4 + (draws.chance(70) ? 1 : 1 + draws.below(3)));
      key.words[0] = chain;
    }
    if (draws.chance(70)) now += static_cast<TimeNs>(draws.below(5'000'000'000));
    request.time = now;
    const Tokens path = request.keys.size() * kTrialPageTokens;
    request.output = draws.below(path);
    request.prompt = path - request.output;
    request.priority = static_cast<std::int32_t>(draws.below(5)) - 2;
    const Tokens system = draws.chance(50) ? draws.below(request.prompt) : 0;
    request.parts = PromptParts::of(system, request.prompt, kTrialPageTokens);
  }
  return requests;
}

// A tier that serves one request after another.
class TrialTier {
 public:
  TrialTier(std::unique_ptr<EvictionPolicy> policy, Pages capacity)
      : policy_(*policy), capacity_(capacity), tree_(std::move(policy), nullptr) {}

  // Returns the evicted pages, by the keys at the ends of their nodes.
  const std::vector<PageKey>& serve(const TrialRequest& request) {
    evicted_.clear();
    const PrefixMatch match = tree_.match(request.keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.visit({.request = requests_++,
                 .time = request.time,
                 .prompt_tokens = request.prompt,
                 .output_tokens = request.output,
                 .keys = request.keys,
                 .parts = request.parts});
    tree_.raise_priority(match.end, request.priority);
    tree_.touch(match.end, stamp);
    tree_.lease(Tier::device, match.end);
    const Pages missing = request.keys.size() - match.device_pages;
    while (capacity_ - tree_.pages(Tier::device) < missing && evict()) {
    }
    tree_.release(Tier::device, match.end);
    const Pages room = std::min(missing, capacity_ - tree_.pages(Tier::device));
    NodeId end = match.end;
    for (Pages at = match.device_pages; at < match.device_pages + room;) {
      const auto rest = std::span(request.keys).subspan(at, match.device_pages + room - at);
      const Pages pages = tree_.shared_history_prefix(rest);
      end = tree_.insert(end, rest.first(pages), std::vector<SlotId>(pages), {}, stamp, request.priority);
      at += pages;
    }
    return evicted_;
  }
  // Splits the node where no request would.
  void split(std::uint64_t drawn) {
    const auto id = static_cast<NodeId>(drawn % (tree_.nodes() + 1));
    const Node& node = tree_.node(id);
    if (node.alive && node.facts.pages > 1) tree_.split(id, 1 + drawn % (node.facts.pages - 1));
  }
  bool victims_right() const { return victims_right_; }

 private:
  bool evict() {
    const NodeId victim = tree_.device_victim();
    victims_right_ &= victim == tree_.device_victim();
    victims_right_ &= (victim == NodeId::none) == (policy_.offered() == 0);
    if (victim == NodeId::none) return false;
    if (!tree_.has(victim) || !tree_.is_offered(victim, PolicyRole::device)) {
      victims_right_ = false;
      return false;
    }
    victims_right_ &= policy_.is_offered(victim);
    evicted_.push_back(tree_.node(victim).keys().back());
    tree_.notify_evicted(PolicyRole::device, victim, 1);
    tree_.remove_tail(victim, 1, freed_, freed_);
    return true;
  }

  EvictionPolicy& policy_;
  const Pages capacity_;
  RadixTree tree_;
  RequestId requests_ = 0;
  std::vector<PageKey> evicted_;
  std::vector<SlotId> freed_;
  bool victims_right_ = true;
};

// Passes all nodes to the policy with other numbers, and (`late`) offers leaves later and in another order.
class RenamedNodes final : public EvictionPolicy, public LearnsFromVisits {
 public:
  RenamedNodes(std::unique_ptr<EvictionPolicy> policy, bool late) : policy_(std::move(policy)), late_(late) {}

  void offer(const PolicyNode& node) override {
    if (!late_) return policy_->offer(renamed(node));
    waiting_[node.id] = {node.facts, {node.keys.begin(), node.keys.end()}, node.marks};
  }
  void withdraw(NodeId node) override {
    waiting_.erase(node);
    policy_->withdraw(other(node));
  }
  NodeId victim() override {
    flush();
    const NodeId node = policy_->victim();
    return node == NodeId::none ? node : static_cast<NodeId>(static_cast<std::uint32_t>(node) * kBack % kNames);
  }
  std::size_t offered() const override { return policy_->offered() + waiting_.size(); }
  bool is_offered(NodeId node) const override { return waiting_.contains(node) || policy_->is_offered(other(node)); }

  void visit(const Visit& visit) override {
    flush();
    if (policy_.learner != nullptr) policy_.learner->visit(visit);
  }
  void entered(const PolicyNode& node) override {
    if (policy_.learner != nullptr) policy_.learner->entered(renamed(node));
  }
  void copied(const PolicyNode& node, const PolicyMarks& elsewhere) override {
    if (policy_.learner != nullptr) policy_.learner->copied(renamed(node), elsewhere);
  }
  void touched(const PolicyNode& node) override {
    if (policy_.learner != nullptr) policy_.learner->touched(renamed(node));
  }
  void split(const PolicyNode& upper, const PolicyNode& lower) override {
    if (policy_.learner != nullptr) policy_.learner->split(renamed(upper), renamed(lower));
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    if (policy_.learner != nullptr) policy_.learner->evicted(renamed(node), pages);
  }
  Pages shared_history_prefix(std::span<const PageKey> keys) const override {
    return policy_.learner == nullptr ? keys.size() : policy_.learner->shared_history_prefix(keys);
  }

 private:
  static constexpr std::uint32_t kNames = 4096, kThere = 1'365, kBack = 4'093;  // factors that are inverse mod kNames
  static_assert(kThere * kBack % kNames == 1);

  struct Waiting {
    NodeFacts facts;
    std::vector<PageKey> keys;
    PolicyMarks marks;
  };
  static NodeId other(NodeId node) { return static_cast<NodeId>(static_cast<std::uint32_t>(node) * kThere % kNames); }
  static PolicyNode renamed(const PolicyNode& node) { return {other(node.id), node.facts, node.keys, node.marks}; }
  void flush() {
    for (auto it = waiting_.rbegin(); it != waiting_.rend(); ++it) {
      policy_->offer({other(it->first), it->second.facts, it->second.keys, it->second.marks});
    }
    waiting_.clear();
  }

  InstalledPolicy policy_;
  bool late_;
  std::map<NodeId, Waiting> waiting_;
};

struct TrialRule {
  const char* sentence;
  std::unique_ptr<TrialTier> tier;
  TimeNs times = 1;  // its requests' times are so many times as long
};

}  // namespace

RulesKept test_eviction_rules(const std::function<std::unique_ptr<EvictionPolicy>(const EvictionSetup&)>& make,
                              const EvictionRules& rules) {
  RulesKept kept;
  std::map<std::string, std::string> broken;  // by rule: where first
  for (std::uint64_t seed = 0; seed < rules.traces; ++seed) {
    const Pages capacity = 1 + mixed_bits(seed) % 60;
    const EvictionSetup setup{
        .capacity = capacity, .page_tokens = kTrialPageTokens, .prefix_closed = capacity % 2 == 0};
    const auto tier = [&] { return std::make_unique<TrialTier>(make(setup), capacity); };
    const auto renamed = [&](bool late) {
      return std::make_unique<TrialTier>(std::make_unique<RenamedNodes>(make(setup), late), capacity);
    };
    const std::unique_ptr<TrialTier> one = tier();
    std::vector<TrialRule> others;
    others.push_back({"the same calls lead to other decisions", tier()});
    others.push_back({"decisions depend on the numbers of nodes", renamed(false)});
    if (rules.order) others.push_back({"decisions depend on the order of the offers", renamed(true)});
    if (rules.times) others.push_back({"decisions change if all times are ten times as long", tier(), 10});
    RuleDraws draws(seed + 1'000'003);
    std::uint64_t number = 0;
    for (const TrialRequest& request : drawn_requests(seed)) {
      const std::string where = " (trace " + std::to_string(seed) + ", request " + std::to_string(number++) + ")";
      const std::vector<PageKey>& evicted = one->serve(request);
      kept.evicted_pages += evicted.size();
      ++kept.requests;
      if (!one->victims_right()) {
        broken.try_emplace("victim() is not a leaf on offer, or there is none, or it changes", where);
      }
      std::erase_if(others, [&](const TrialRule& rule) {
        TrialRequest own = request;
        own.time *= rule.times;
        if (rule.tier->serve(own) == evicted) return false;
        broken.try_emplace(rule.sentence, where);
        return true;
      });
      if (!draws.chance(20)) continue;
      const std::uint64_t drawn = draws.below(1 << 20);
      one->split(drawn);
      for (const TrialRule& rule : others) rule.tier->split(drawn);
    }
    ++kept.traces;
  }
  for (const auto& [rule, where] : broken) kept.broken.push_back(rule + where);
  return kept;
}

}  // namespace kvtwin
