#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

// A node with at least so many touches as the parameter `protected` says is protected. The insertion counts as a touch.
// The protected part has no size limit. Within each part as lru.
class Slru final : public EvictionPolicy, public OrdersReferences {
 public:
  explicit Slru(const EvictionSetup& setup)
      : protected_touches_(setup.parameters.whole(
            "protected", {.fallback = 2,
                          .least = 1,
                          .most = 1'000'000'000,
                          .help = "touches from which a page is protected; the insertion counts as a touch"})) {}

  void offer(const PolicyNode& node) override {
    const bool is_protected = node.facts.hits >= protected_touches_;
    leaves_.set(node, {is_protected ? 1U : 0U, node.facts.last_access, node.facts.inserted});
  }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override { return leaves_.smallest(); }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  const std::uint64_t protected_touches_;
  LeavesByReferences leaves_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_slru(const EvictionSetup& setup) { return std::make_unique<Slru>(setup); }

}  // namespace kvtwin
