// Workload-aware eviction (Wang et al., "KVCache in the Wild", 2025): categories of requests, each with an exponential
// distribution of the time until its pages are used again; the page goes that is used least likely within the time that
// a page stays, P = p (e^(-a/m) - e^(-(a + life)/m)), a its age, p the category's share of pages used again, m the mean
// time until then, life the mean age of what is evicted; among equals the deeper one. Returns of evicted pages count
// too, for 4 times as many as the tier holds. The paper's categories are request types and turns; traces have no types,
// so there are two: first turns, and later ones (turns.hpp). On the tree: a parent was visited no earlier than its
// child, so it goes no earlier unless its last visitor was a first turn; it then waits for the child.
#include <array>

#include "policy/base/wide.hpp"
#include "policy/eviction/means.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/timed_visits.hpp"

namespace kvtwin {
namespace {

// e^(-i/64) in 1/2^31, by repeated multiplication in 1/2^62.
constexpr auto kDecay = [] {
  constexpr std::uint64_t kStep = 4540188453729421604ULL;  // e^(-1/64)
  std::array<std::uint32_t, 1408> table{};                 // to e^-22, the last above 0
  std::uint64_t value = std::uint64_t{1} << 62;
  for (std::uint32_t& entry : table) {
    entry = static_cast<std::uint32_t>(value >> 31);
    value = static_cast<std::uint64_t>(UnsignedWide{value} * kStep >> 62);
  }
  return table;
}();

std::uint64_t decay(UnsignedWide x) { return x < kDecay.size() ? kDecay[static_cast<std::size_t>(x)] : 0; }

class WorkloadAware final : public TimedVisits {
 public:
  explicit WorkloadAware(const EvictionSetup& setup)
      : TimedVisits(setup),
        life_(std::max<Pages>(1024, setup.capacity)),
        kinds_{Kind(setup.capacity), Kind(setup.capacity)} {}

  void offer(const PolicyNode& node) override {
    const Last last = last_visit(node);
    leaves_.set(node.id, last.kind(), {last.time(), ~node.facts.depth_pages, node.facts.inserted});
  }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override {
    gives_ = giving_kind();
    return leaves_.smallest(gives_);
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  struct Kind {
    explicit Kind(Pages capacity) : visits(std::max<Pages>(4096, 2 * capacity)), times(visits) {}
    std::uint64_t visits;         // that are a window
    WindowedMean times;           // of pages visited in this category: until they are used again
    WindowedMean reuses{visits};  // 1 for each visit of a page that was followed by another, 0 for each that was made
  };

  void visited(const PolicyNode& node) override { kinds_[last_visit(node).kind()].reuses.add(0, node.keys.size()); }
  void returned(Last last, Pages pages, bool) override {
    kinds_[last.kind()].times.add(now() - last.time(), pages);
    kinds_[last.kind()].reuses.add(1, pages);
  }
  void left(Last last, Pages pages) override { life_.add(now() - last.time(), pages); }

  std::size_t giving_kind() const {
    if (leaves_.size(0) == 0 || leaves_.size(1) == 0) return leaves_.size(0) == 0 ? 1 : 0;
    const UnsignedWide if_first = chance(0), if_later = chance(1);
    if (if_first != if_later) return if_first < if_later ? 0 : 1;
    return leaves_.smallest_rank(0) < leaves_.smallest_rank(1) ? 0 : 1;
  }

  // That the category's oldest leaf is used again while it would stay. The same for all ages before there are data.
  UnsignedWide chance(std::size_t index) const {
    const Kind& kind = kinds_[index];
    if (kind.times.sum() == 0 || life_.sum() == 0) return 0;
    const UnsignedWide per = 64 * UnsignedWide{kind.times.count()};  // ages are counted in 1/64 of the mean
    const UnsignedWide age = (now() - leaves_.smallest_rank(index).first) * per / kind.times.sum();
    const UnsignedWide life = life_.sum() * per / (kind.times.sum() * life_.count());
    const std::uint64_t reused = static_cast<std::uint64_t>(kind.reuses.sum());
    const std::uint64_t made = std::max<std::uint64_t>(1, kind.reuses.count() - reused);
    const std::uint64_t share = std::min<std::uint64_t>(1 << 16, (reused << 16) / made);
    return UnsignedWide{share} * decay(age) * (kDecay[0] - decay(life));
  }

  WindowedMean life_;
  std::array<Kind, 2> kinds_;
  LeafLists leaves_{2};    // by kind
  std::size_t gives_ = 0;  // the last victim's
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_wa(const EvictionSetup& setup) { return std::make_unique<WorkloadAware>(setup); }

}  // namespace kvtwin
