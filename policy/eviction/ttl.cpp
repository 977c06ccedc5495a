// Pins with a time to live (after Continuum, 2025). After a visit, a page is pinned for the time tau that maximises P(T
// <= tau) - E[min(T, tau)] * rent. T is the time until the next use, which ends the pin. The rent is the value of the
// room elsewhere: the tier's hits per page and second. Pages with expired pins are evicted first, least recently used
// first; then the others in the same order. There is one histogram of T, in quarter octaves, for first turns and one
// for later turns (turns.hpp). Returns of evicted pages count too, for 4 times as many pages as the tier holds. tau is
// computed every 64 requests and holds for later visits.
//
// On the tree: a parent's pin ends no earlier than its child's, unless tau has fallen meanwhile. In that
// case the parent waits for the child.
#include <array>

#include "policy/base/wide.hpp"
#include "policy/eviction/means.hpp"
#include "policy/eviction/quarter_octaves.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/timed_visits.hpp"

namespace kvtwin {
namespace {

// Bins of times, in quarter octaves. The unit is 1/16 of the first time seen, so that no result depends on the unit of
// time.
constexpr std::size_t kTimeBins = 160;
std::size_t bin_of(UnsignedWide time) {
  constexpr UnsignedWide kMaxTime = UnsignedWide{1} << 40;
  return quarter_octave_of(static_cast<std::uint64_t>(std::min(time, kMaxTime)));
}
std::uint64_t end_of_bin(std::size_t bin) { return quarter_octave_start(bin + 1); }

class TimeToLive final : public TimedVisits {
 public:
  explicit TimeToLive(const EvictionSetup& setup) : TimedVisits(setup), capacity_(std::max<Pages>(1, setup.capacity)) {}

  void offer(const PolicyNode& node) override {
    const LeafRank lru{node.facts.last_access, node.facts.inserted, 0};
    if (node.marks.second <= 16 * now()) {
      ends_.remove(node.id);
      leaves_.set(node.id, kExpired, lru);
    } else {
      leaves_.set(node.id, kPinned, lru);
      ends_.set(node.id, 0, {node.marks.second, lru.first, lru.second});
    }
  }
  void withdraw(NodeId node) override {
    leaves_.remove(node);
    ends_.remove(node);
  }
  NodeId victim() override {
    while (ends_.size() > 0 && ends_.smallest_rank(0).first <= 16 * now()) {
      const NodeId node = ends_.smallest(0);
      leaves_.set(node, kExpired, {ends_.smallest_rank(0).second, ends_.smallest_rank(0).third, 0});
      ends_.remove(node);
    }
    return leaves_.smallest(list_to_evict_from());
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  static constexpr std::uint64_t kRequestsPerFit = 64;
  static constexpr std::size_t kExpired = 0, kPinned = 1;  // lists of leaves_
  struct Category {
    std::array<std::uint64_t, kTimeBins> returns{};  // pages, by the time until their return
    std::uint64_t visits = 0;                        // pages
    std::uint64_t tau = 0;                           // in 1/16 of unit_
  };

  std::size_t list_to_evict_from() const { return leaves_.size(kExpired) > 0 ? kExpired : kPinned; }
  void on_first_visit() override {
    if (++requests_ % kRequestsPerFit == 0) find_pins();
  }
  // Second mark: the end of the pin, in 1/16 ns.
  void on_visit(const PolicyNode& node) override {
    Category& category = categories_[last_visit(node).category()];
    category.visits += node.keys.size();
    node.marks.second = 16 * now() + category.tau * unit_;
  }
  void on_reuse(LastVisit last, Pages pages, bool hit) override {
    const std::uint64_t time = now() - last.time();
    if (unit_ == 0) unit_ = time;
    if (unit_ != 0) categories_[last.category()].returns[bin_of(UnsignedWide{time} * 16 / unit_)] += pages;
    if (hit) hits_ += pages;
  }

  void find_pins() {
    if (unit_ == 0) return;
    for (Category& category : categories_) {
      category.tau = 0;
      UnsignedWide best = 0, within = 0, spent = 0;
      for (std::size_t bin = 0; bin < kTimeBins; ++bin) {
        const UnsignedWide pin = UnsignedWide{end_of_bin(bin)} * unit_;
        if (pin > UnsignedWide{now()} * 16) break;
        within += category.returns[bin];
        spent += pin * category.returns[bin];
        const UnsignedWide pinned =
            category.visits - std::min<UnsignedWide>(category.visits, within);  // pinned to the end
        // Both sides are sums over all visits, in 1/1024 of a page.
        const UnsignedWide rent = 1024 * (spent + pinned * pin) * hits_ / (UnsignedWide{now()} * 16 * capacity_);
        if (1024 * within <= rent || 1024 * within - rent <= best) continue;
        best = 1024 * within - rent;
        category.tau = end_of_bin(bin);
      }
      if (category.visits < 64 * capacity_) continue;
      category.visits /= 2;
      for (std::uint64_t& pages : category.returns) pages /= 2;
    }
  }

  const Pages capacity_;
  std::array<Category, 2> categories_;
  LeafLists leaves_{2}, ends_{1};  // ends_: pinned leaves by the end of the pin
  std::uint64_t unit_ = 0, hits_ = 0, requests_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_ttl(const EvictionSetup& setup) { return std::make_unique<TimeToLive>(setup); }

}  // namespace kvtwin
