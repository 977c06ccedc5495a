// Workload-aware eviction (Wang et al., "KVCache in the Wild", 2025): categories of requests, each with an exponential
// distribution of the time until its pages are used again; the page goes that is used least likely within the time that
// a page stays, P = p (e^(-a/m) - e^(-(a + life)/m)), a its age, p the category's share of pages used again, m the mean
// time until then, life the mean age of what is evicted; among equals the deeper one. Returns of evicted pages count
// too, for 4 times as many as the tier holds. The paper's categories are request types and turns; traces have no types,
// so there are two: first turns, and later ones (turns.hpp). On the tree: a parent was visited no earlier than its
// child, so it goes no earlier unless its last visitor was a first turn; it then waits for the child.
#include <array>

#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/means.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/turns.hpp"

namespace kvtwin {
namespace {

using Wide = WindowedMean::Wide;

// e^(-i/64) in 1/2^31, by repeated multiplication in 1/2^62.
constexpr auto kDecay = [] {
  constexpr std::uint64_t kStep = 4540188453729421604ULL;  // e^(-1/64)
  std::array<std::uint32_t, 1408> table{};                 // to e^-22, the last above 0
  std::uint64_t value = std::uint64_t{1} << 62;
  for (std::uint32_t& entry : table) {
    entry = static_cast<std::uint32_t>(value >> 31);
    value = static_cast<std::uint64_t>(Wide{value} * kStep >> 62);
  }
  return table;
}();

std::uint64_t decay(Wide x) { return x < kDecay.size() ? kDecay[static_cast<std::size_t>(x)] : 0; }

class WorkloadAware final : public EvictionPolicy {
 public:
  explicit WorkloadAware(const EvictionSetup& setup)
      : visits_(4 * setup.capacity),
        life_(std::max<Pages>(1024, setup.capacity)),
        kinds_{Kind(setup.capacity), Kind(setup.capacity)} {}

  void visit(const Visit& visit) override {
    further_ = visit.further;
    now_ = std::max(now_, static_cast<std::uint64_t>(visit.time));
    turns_.visit(visit, visits_);
  }
  void entered(const PolicyNode& node) override {
    for (const PageKey& key : node.keys) {
      if (const std::uint64_t* const last = visits_.find(key)) returned(*last, 1);
    }
    visits_.recall(node.keys);
    visited(node);
  }
  void touched(const PolicyNode& node) override {
    if (further_) return;
    turns_.touched(node.facts);
    returned(node.marks.first, node.keys.size());
    visited(node);
  }
  void evicted(const PolicyNode& node, Pages pages) override {
    life_.add(now_ - node.marks.first / 2, pages);
    visits_.put_tail(node.keys, pages, node.marks.first);
  }
  // Returning pages may enter together whenever they left together; they needn't have been visited together.
  Pages alike(std::span<const PageKey> keys) const override { return keys.size(); }

  void offer(const PolicyNode& node) override {
    kinds_[1 - kind_of(node)].leaves.remove(node.id);
    kinds_[kind_of(node)].leaves.set(node.id, {node.marks.first / 2, ~node.facts.depth_pages, node.facts.inserted});
  }
  void withdraw(NodeId node) override {
    for (Kind& kind : kinds_) kind.leaves.remove(node);
  }
  NodeId victim() override {
    const RankedLeaves &first = kinds_[0].leaves, &later = kinds_[1].leaves;
    if (first.size() == 0 || later.size() == 0) return (first.size() == 0 ? later : first).smallest();
    const Wide if_first = chance(0), if_later = chance(1);
    if (if_first != if_later) return (if_first < if_later ? first : later).smallest();
    return (first.smallest_rank() < later.smallest_rank() ? first : later).smallest();
  }
  std::size_t offered() const override { return kinds_[0].leaves.size() + kinds_[1].leaves.size(); }
  bool is_offered(NodeId node) const override {
    return kinds_[0].leaves.contains(node) || kinds_[1].leaves.contains(node);
  }

 private:
  struct Kind {
    explicit Kind(Pages capacity) : visits(std::max<Pages>(4096, 2 * capacity)), times(visits) {}
    std::uint64_t visits;         // that are a window
    WindowedMean times;           // of pages visited in this category: until they are used again
    WindowedMean reuses{visits};  // 1 for each visit of a page that was followed by another, 0 for each that was made
    RankedLeaves leaves;
  };

  // Marks: the time of the last visit, doubled, plus 1 if that was a later turn.
  static unsigned kind_of(const PolicyNode& node) { return static_cast<unsigned>(node.marks.first % 2); }
  void visited(const PolicyNode& node) {
    node.marks.first = 2 * now_ + (turns_.later() ? 1 : 0);
    kinds_[kind_of(node)].reuses.add(0, node.keys.size());
  }
  void returned(std::uint64_t last, Pages pages) {
    kinds_[last % 2].times.add(now_ - last / 2, pages);
    kinds_[last % 2].reuses.add(1, pages);
  }

  // That the category's oldest leaf is used again while it would stay. The same for all ages before there are data.
  Wide chance(unsigned index) const {
    const Kind& kind = kinds_[index];
    if (kind.times.sum() == 0 || life_.sum() == 0) return 0;
    const Wide per = 64 * Wide{kind.times.count()};  // ages are counted in 1/64 of the mean
    const Wide age = (now_ - kind.leaves.smallest_rank().first) * per / kind.times.sum();
    const Wide life = life_.sum() * per / (kind.times.sum() * life_.count());
    const std::uint64_t reused = static_cast<std::uint64_t>(kind.reuses.sum());
    const std::uint64_t made = std::max<std::uint64_t>(1, kind.reuses.count() - reused);
    const std::uint64_t share = std::min<std::uint64_t>(1 << 16, (reused << 16) / made);
    return Wide{share} * decay(age) * (kDecay[0] - decay(life));
  }

  Ghosts visits_;
  Turns turns_;
  WindowedMean life_;
  std::array<Kind, 2> kinds_;
  std::uint64_t now_ = 0;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_wa(const EvictionSetup& setup) { return std::make_unique<WorkloadAware>(setup); }

}  // namespace kvtwin
