// Evicts the page with the largest product of age and weight. The age is the time since the last use. The weight
// depends on what the page holds: with the default weights, a page of an answer leaves after a quarter of the time that
// a page of a system prompt stays.
#include "policy/base/wide.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

class RoleAge final : public EvictionPolicy, public LearnsFromVisits {
 public:
  explicit RoleAge(const Parameters& parameters)
      : weights_{weight(parameters, "unknown", 2, "weight of a page of which nothing is known"),
                 weight(parameters, "system", 1, "weight of a page of a system prompt"),
                 weight(parameters, "user", 2, "weight of another page of a prompt"),
                 weight(parameters, "output", 4, "weight of a page with generated tokens")} {}

  // One list for each role, the page of the largest age first. Of two requests at one time, `last_access` has the
  // order.
  void offer(const PolicyNode& node) override {
    const NodeFacts& facts = node.facts;
    leaves_.set(node.id, static_cast<std::size_t>(facts.role()),
                {static_cast<std::uint64_t>(facts.used_at), facts.last_access, facts.inserted});
  }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override {
    NodeId found = NodeId::none;
    UnsignedWide largest = 0;
    for (std::size_t role = 0; role < kPromptRoles; ++role) {
      if (leaves_.size(role) == 0) continue;
      const UnsignedWide product = UnsignedWide{now_ - leaves_.smallest_rank(role).first} * weights_[role];
      if (found != NodeId::none && product <= largest) continue;
      found = leaves_.smallest(role);
      largest = product;
    }
    return found;
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

  void visit(const Visit& visit) override { now_ = static_cast<std::uint64_t>(visit.time); }

 private:
  static std::uint64_t weight(const Parameters& parameters, const char* role, std::uint64_t fallback,
                              const char* help) {
    return parameters.whole(role, {.fallback = fallback, .least = 1, .most = 1'000, .help = help});
  }

  const std::uint64_t weights_[kPromptRoles];
  LeafLists leaves_{kPromptRoles};
  std::uint64_t now_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_role_age(const EvictionSetup& setup) {
  return std::make_unique<RoleAge>(setup.parameters);
}

}  // namespace kvtwin
