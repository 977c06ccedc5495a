// Pins with a time to live (after Continuum, 2025): after a visit a page is pinned for tau, the tau that maximises
// P(T <= tau) - E[min(T, tau)] * rent, T the time until it is used again, when the pin ends, and the rent what room is
// worth elsewhere: the tier's hits for a page and second. What has expired goes first, least recently used first; then
// the rest in that order. One histogram of T, in quarter octaves, for first turns and one for later ones (turns.hpp);
// returns of evicted pages count, for 4 times as many as the tier holds. tau is found anew every 64 requests, for later
// visits. On the tree: a parent's pin ends no earlier than its child's unless tau fell meanwhile; it then waits for the
// child.
#include <array>

#include "policy/base/wide.hpp"
#include "policy/eviction/means.hpp"
#include "policy/eviction/quarter_octaves.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/timed_visits.hpp"

namespace kvtwin {
namespace {

// Times in 1/16 of the first one that was seen, so that nothing depends on the unit of time, in quarter octaves.
constexpr std::size_t kTimeBins = 160;
std::size_t bin_of(UnsignedWide time) {
  constexpr UnsignedWide kMost = UnsignedWide{1} << 40;
  return quarter_octave_of(static_cast<std::uint64_t>(std::min(time, kMost)));
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
    return leaves_.smallest(gives());
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  static constexpr std::uint64_t kRound = 64;
  static constexpr std::size_t kExpired = 0, kPinned = 1;  // lists
  struct Kind {
    std::array<std::uint64_t, kTimeBins> returns{};  // pages, by the time it took them
    std::uint64_t visits = 0;                        // pages
    std::uint64_t pin = 0;                           // tau, in 1/16
  };

  std::size_t gives() const { return leaves_.size(kExpired) > 0 ? kExpired : kPinned; }
  void begun() override {
    if (++requests_ % kRound == 0) find_pins();
  }
  // The second mark: when the pin ends, in 1/16 ns.
  void visited(const PolicyNode& node) override {
    Kind& kind = kinds_[last_visit(node).kind()];
    kind.visits += node.keys.size();
    node.marks.second = 16 * now() + kind.pin * unit_;
  }
  void returned(Last last, Pages pages, bool hit) override {
    const std::uint64_t time = now() - last.time();
    if (unit_ == 0) unit_ = time;
    if (unit_ != 0) kinds_[last.kind()].returns[bin_of(UnsignedWide{time} * 16 / unit_)] += pages;
    if (hit) hits_ += pages;
  }

  void find_pins() {
    if (unit_ == 0) return;
    for (Kind& kind : kinds_) {
      kind.pin = 0;
      UnsignedWide best = 0, within = 0, spent = 0;
      for (std::size_t bin = 0; bin < kTimeBins; ++bin) {
        const UnsignedWide pin = UnsignedWide{end_of_bin(bin)} * unit_;
        if (pin > UnsignedWide{now()} * 16) break;
        within += kind.returns[bin];
        spent += pin * kind.returns[bin];
        const UnsignedWide pinned = kind.visits - std::min<UnsignedWide>(kind.visits, within);  // to the end
        // Both sides for all visits at once, in 1/1024 of a page.
        const UnsignedWide rent = 1024 * (spent + pinned * pin) * hits_ / (UnsignedWide{now()} * 16 * capacity_);
        if (1024 * within <= rent || 1024 * within - rent <= best) continue;
        best = 1024 * within - rent;
        kind.pin = end_of_bin(bin);
      }
      if (kind.visits < 64 * capacity_) continue;
      kind.visits /= 2;
      for (std::uint64_t& pages : kind.returns) pages /= 2;
    }
  }

  const Pages capacity_;
  std::array<Kind, 2> kinds_;
  LeafLists leaves_{2}, ends_{1};  // ends_: of the pinned ones, by when their pins end
  std::uint64_t unit_ = 0, hits_ = 0, requests_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_ttl(const EvictionSetup& setup) { return std::make_unique<TimeToLive>(setup); }

}  // namespace kvtwin
