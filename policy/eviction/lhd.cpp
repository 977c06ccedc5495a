// Least hit density (Beckmann et al., 2018). For each class and age, histograms of the ages at which pages were hit or
// evicted give the expected hits per page and time that a page will still take. The page with the least density is
// evicted; among equals the least recently used. Ages are counted in requests, in quarter octaves. The class is the
// number of uses: 1, 2 to 3, 4 to 7, more. Evicted pages are not remembered.
//
// The paper compares 64 pages drawn at random. This code compares the oldest leaf of each class and span of ages, where
// each span is a factor of four. These are as few leaves, and independent of node numbers. Only the oldest leaf can
// have outgrown its span.
//
// On the tree: a parent has its child's age or is younger. No age is always denser than another, so a parent may have
// to wait for its child.
#include <algorithm>
#include <array>
#include <bit>
#include <memory>

#include "policy/base/wide.hpp"
#include "policy/eviction/means.hpp"
#include "policy/eviction/quarter_octaves.hpp"
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kClasses = 4, kAges = 96, kSpans = 16, kBuckets = kClasses * kSpans;

std::size_t bin_of(std::uint64_t age) { return std::min(kAges - 1, quarter_octave_of(age)); }

// Spans of ages: 0, 1 to 3, 4 to 15 ...
std::size_t span_of(std::uint64_t age) {
  return std::min<std::size_t>(kSpans - 1, (static_cast<std::size_t>(std::bit_width(age)) + 1) / 2);
}
std::uint64_t end_of_span(std::size_t span) { return std::uint64_t{1} << 2 * span; }

class HitDensity final : public EvictionPolicy, public LearnsFromVisits {
 public:
  explicit HitDensity(const EvictionSetup& setup)
      : events_per_round_(std::max<Pages>(1024, setup.capacity)), leaves_(kBuckets, 1) {
    for (std::size_t bin = 0; bin < kAges; ++bin) {  // lru's order until there are data
      for (Class& one : classes_) one.density[bin] = (std::uint64_t{1} << 32) / (quarter_octave_start(bin) + 1);
    }
  }

  void visit(const Visit& visit) override {
    further_ = visit.further;
    if (!further_) ++now_;
  }
  void entered(const PolicyNode& node) override { node.marks = {now_, 1}; }
  void touched(const PolicyNode& node) override {
    if (further_) return;
    count(node, true, node.keys.size());
    node.marks = {now_, node.marks.second + 1};
  }
  void evicted(const PolicyNode& node, Pages pages) override { count(node, false, pages); }

  void offer(const PolicyNode& node) override {
    invalidate_bucket_of(node.id);
    const std::size_t span = span_of(now_ - node.marks.first), bucket = class_of(node) * kSpans + span;
    leaves_.set(node.id, bucket, {node.marks.first, node.facts.inserted, 0});
    update_oldest(bucket, node.id, {node.marks.first, node.facts.inserted, 0});
  }
  void withdraw(NodeId node) override {
    invalidate_bucket_of(node);
    leaves_.remove(node);
  }
  NodeId victim() override {
    if (leaves_.size() == 0) return NodeId::none;
    for (std::size_t bucket = kBuckets; bucket-- > 0;) {  // from the oldest, so that a leaf moves on within one pass
      if (buckets_[bucket].valid_until <= now_) find_oldest(bucket);
    }
    victim_bucket_ = 0;
    for (std::size_t bucket = 1; bucket < kBuckets; ++bucket) {
      if (buckets_[bucket].rank < buckets_[victim_bucket_].rank) victim_bucket_ = bucket;
    }
    return buckets_[victim_bucket_].oldest;
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  struct Class {
    std::array<std::uint64_t, kAges> hits{}, evictions{};  // pages, in 1/256
    std::array<std::uint64_t, kAges> density{};            // hits per page and request, in 1/2^32
  };

  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  struct Bucket {
    NodeId oldest = NodeId::none;
    LeafRank rank{kNever, kNever, kNever};  // of the oldest leaf: density, last use, insertion number
    std::uint64_t valid_until = 0;          // number of the request from which on the entry is out of date; 0 = now
  };

  // Marks: the number of the request that used the node last; the number of uses.
  static std::size_t class_of(const PolicyNode& node) {
    const auto uses = std::max<std::uint64_t>(1, node.marks.second);
    return std::min<std::size_t>(kClasses, static_cast<std::size_t>(std::bit_width(uses))) - 1;
  }
  // If the node is the oldest of its bucket, the bucket has to be looked at again.
  void invalidate_bucket_of(NodeId node) {
    if (const auto bucket = leaves_.list_of(node); bucket && buckets_[*bucket].oldest == node) {
      buckets_[*bucket].valid_until = 0;
    }
  }
  void update_oldest(std::size_t bucket, NodeId node, const LeafRank& rank) {
    const Bucket& of = buckets_[bucket];
    if (of.valid_until == 0 || LeafRank{of.rank.second, of.rank.third, 0} < rank) return;
    set_oldest(bucket, node, rank);
  }
  // Valid until the leaf's age reaches the next bin. The last bin has no end, but spans have; all other span ends
  // are ends of bins.
  void set_oldest(std::size_t bucket, NodeId node, const LeafRank& rank) {
    const std::size_t bin = bin_of(now_ - rank.first);
    const std::uint64_t age = bin + 1 < kAges ? quarter_octave_start(bin + 1) : end_of_span(bucket % kSpans);
    const std::uint64_t density = classes_[bucket / kSpans].density[bin];
    buckets_[bucket] = {node, {density, rank.first, rank.second}, rank.first + age};
  }
  // Moves leaves whose age has left the bucket's span to their next bucket. Then stores the oldest leaf.
  void find_oldest(std::size_t bucket) {
    buckets_[bucket] = {};
    buckets_[bucket].valid_until = kNever;
    while (leaves_.size(bucket) > 0) {
      const NodeId node = leaves_.smallest(bucket);
      const LeafRank rank = leaves_.smallest_rank(bucket);
      const std::size_t to = bucket - bucket % kSpans + span_of(now_ - rank.first);
      if (to == bucket) return set_oldest(bucket, node, rank);
      leaves_.set(node, to, rank);
      update_oldest(to, node, rank);
    }
  }

  void count(const PolicyNode& node, bool hit, Pages pages) {
    Class& one = classes_[class_of(node)];
    (hit ? one.hits : one.evictions)[bin_of(now_ - node.marks.first)] += 256 * pages;
    events_ += pages;
    if (events_ < events_per_round_) return;
    events_ = 0;
    for (Class& each : classes_) learn(each);
    for (Bucket& each : buckets_) each.valid_until = 0;
  }

  // From the oldest age down: density = hits still to come / (pages * time until they are hit or evicted). An
  // event counts in the middle of its bin. Then all counts fade by an eighth.
  static void learn(Class& one) {
    UnsignedWide hits = 0, ends = 0, room = 0;
    for (std::size_t bin = kAges; bin-- > 0;) {
      const std::uint64_t here = one.hits[bin] + one.evictions[bin];
      const std::uint64_t width = quarter_octave_start(bin + 1) - quarter_octave_start(bin);
      room += ends * width + UnsignedWide{here} * width / 2;
      hits += one.hits[bin];
      ends += here;
      one.density[bin] = room == 0 ? 0 : static_cast<std::uint64_t>((hits << 32) / room);
      one.hits[bin] -= one.hits[bin] / 8;
      one.evictions[bin] -= one.evictions[bin] / 8;
    }
  }

  const Pages events_per_round_;  // pages hit or evicted between two calls of learn()
  std::array<Class, kClasses> classes_;
  LeafLists leaves_;
  std::array<Bucket, kBuckets> buckets_;  // the lists of leaves_, by class and span
  std::size_t victim_bucket_ = 0;         // bucket of the last victim
  std::uint64_t now_ = 0, events_ = 0;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lhd(const EvictionSetup& setup) { return std::make_unique<HitDensity>(setup); }

}  // namespace kvtwin
