// Workload-aware eviction (Wang et al., "KVCache in the Wild", 2025). Each category of requests has an exponential
// distribution of the time until its pages are used again. The victim is the page with the least probability of use
// within the time that a page stays: P = p (e^(-a/m) - e^(-(a + life)/m)). a is the page's age, p the category's share
// of pages used again, m the mean time until then, life the mean age of evicted pages. Among equals, the deeper page is
// evicted. Returns of evicted pages count too, for 4 times as many pages as the tier holds. The paper's categories are
// request types and turns. Traces have no types, so there are two categories: first turns and later turns (turns.hpp).
//
// On the tree: a parent was visited no earlier than its child, so it is evicted no earlier, unless its last visitor was
// a first turn. In that case the parent waits for the child.
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
  std::array<std::uint32_t, 1408> table{};                 // to e^-22, the last value above 0
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
        categories_{Category(setup.capacity), Category(setup.capacity)} {}

  void offer(const PolicyNode& node) override {
    const LastVisit last = last_visit(node);
    leaves_.set(node.id, last.category(), {last.time(), ~node.facts.depth_pages, node.facts.inserted});
  }
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override {
    victim_category_ = category_to_evict_from();
    return leaves_.smallest(victim_category_);
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  struct Category {
    explicit Category(Pages capacity) : visits(std::max<Pages>(4096, 2 * capacity)), times(visits) {}
    std::uint64_t visits;         // size of the window
    WindowedMean times;           // of pages visited in this category: time until the next use
    WindowedMean reuses{visits};  // 1 for each page visit that another visit followed, 0 for each page visit
  };

  void on_visit(const PolicyNode& node) override {
    categories_[last_visit(node).category()].reuses.add(0, node.keys.size());
  }
  void on_reuse(LastVisit last, Pages pages, bool) override {
    categories_[last.category()].times.add(now() - last.time(), pages);
    categories_[last.category()].reuses.add(1, pages);
  }
  void on_eviction(LastVisit last, Pages pages) override { life_.add(now() - last.time(), pages); }

  std::size_t category_to_evict_from() const {
    if (leaves_.size(0) == 0 || leaves_.size(1) == 0) return leaves_.size(0) == 0 ? 1 : 0;
    const UnsignedWide if_first = chance(0), if_later = chance(1);
    if (if_first != if_later) return if_first < if_later ? 0 : 1;
    return leaves_.smallest_rank(0) < leaves_.smallest_rank(1) ? 0 : 1;
  }

  // Returns the probability that the category's oldest leaf is used while it would stay. Without data: 0 for all ages.
  UnsignedWide chance(std::size_t index) const {
    const Category& category = categories_[index];
    if (category.times.sum() == 0 || life_.sum() == 0) return 0;
    const UnsignedWide per = 64 * UnsignedWide{category.times.count()};  // the unit of ages is 1/64 of the mean
    const UnsignedWide age = (now() - leaves_.smallest_rank(index).first) * per / category.times.sum();
    const UnsignedWide life = life_.sum() * per / (category.times.sum() * life_.count());
    const std::uint64_t reused = static_cast<std::uint64_t>(category.reuses.sum());
    const std::uint64_t made = std::max<std::uint64_t>(1, category.reuses.count() - reused);
    const std::uint64_t share = std::min<std::uint64_t>(1 << 16, (reused << 16) / made);
    return UnsignedWide{share} * decay(age) * (kDecay[0] - decay(life));
  }

  WindowedMean life_;
  std::array<Category, 2> categories_;
  LeafLists leaves_{2};              // by category
  std::size_t victim_category_ = 0;  // category of the last victim
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_wa(const EvictionSetup& setup) { return std::make_unique<WorkloadAware>(setup); }

}  // namespace kvtwin
