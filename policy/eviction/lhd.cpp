// Least hit density (Beckmann et al., 2018): of each class and age the expected hits for the room and time that a page
// will still take, from histograms of the ages at which pages were hit and evicted; the least dense goes, among equals
// the least recently used. Ages are counted in requests, in quarter octaves; a class is how often the page was used, 1,
// 2-3, 4-7, more. Nothing is remembered of evicted pages.
// The paper looks at 64 pages drawn at random. Here it is the oldest leaf of each class and span of ages, a factor of
// four each: as few, at no matter whose names, and the oldest is the only one that can have outgrown its span.
// On the tree: a parent is of its child's age or younger, and no age is always denser than another; it waits for the
// child.
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
      : round_(std::max<Pages>(1024, setup.capacity)), leaves_(kBuckets, 1) {
    for (std::size_t bin = 0; bin < kAges; ++bin) {  // until there are data: as lru
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
    look_again(node.id);
    const std::size_t span = span_of(now_ - node.marks.first), bucket = class_of(node) * kSpans + span;
    leaves_.set(node.id, bucket, {node.marks.first, node.facts.inserted, 0});
    has_joined(bucket, node.id, {node.marks.first, node.facts.inserted, 0});
  }
  void withdraw(NodeId node) override {
    look_again(node);
    leaves_.remove(node);
  }
  NodeId victim() override {
    if (leaves_.size() == 0) return NodeId::none;
    for (std::size_t bucket = kBuckets; bucket-- > 0;) {  // the oldest move on first
      if (buckets_[bucket].until <= now_) look_at(bucket);
    }
    gives_ = 0;
    for (std::size_t bucket = 1; bucket < kBuckets; ++bucket) {
      if (buckets_[bucket].rank < buckets_[gives_].rank) gives_ = bucket;
    }
    return buckets_[gives_].oldest;
  }
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  struct Class {
    std::array<std::uint64_t, kAges> hits{}, evictions{};  // pages, in 1/256
    std::array<std::uint64_t, kAges> density{};            // hits for a page and request, in 1/2^32
  };

  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  struct Bucket {
    NodeId oldest = NodeId::none;
    LeafRank rank{kNever, kNever, kNever};  // of that: how dense it is, when it was used last, when inserted
    std::uint64_t until = 0;  // before which request that holds, if nothing happens to it; 0: not even now
  };

  // Marks: the request that used it last, how many have.
  static std::size_t class_of(const PolicyNode& node) {
    const auto uses = std::max<std::uint64_t>(1, node.marks.second);
    return std::min<std::size_t>(kClasses, static_cast<std::size_t>(std::bit_width(uses))) - 1;
  }
  // If it is its bucket's oldest, that isn't known any more.
  void look_again(NodeId node) {
    if (const auto bucket = leaves_.list_of(node); bucket && buckets_[*bucket].oldest == node) {
      buckets_[*bucket].until = 0;
    }
  }
  void has_joined(std::size_t bucket, NodeId node, const LeafRank& rank) {
    const Bucket& of = buckets_[bucket];
    if (of.until == 0 || LeafRank{of.rank.second, of.rank.third, 0} < rank) return;
    is_oldest(bucket, node, rank);
  }
  // Until its age gets to the next bin. The last one has no end, but spans go on; all others' ends are those of bins.
  void is_oldest(std::size_t bucket, NodeId node, const LeafRank& rank) {
    const std::size_t bin = bin_of(now_ - rank.first);
    const std::uint64_t age = bin + 1 < kAges ? quarter_octave_start(bin + 1) : end_of_span(bucket % kSpans);
    const std::uint64_t density = classes_[bucket / kSpans].density[bin];
    buckets_[bucket] = {node, {density, rank.first, rank.second}, rank.first + age};
  }
  // Who is its oldest, after those whose age has left the bucket's span have moved on?
  void look_at(std::size_t bucket) {
    buckets_[bucket] = {};
    buckets_[bucket].until = kNever;
    while (leaves_.size(bucket) > 0) {
      const NodeId node = leaves_.smallest(bucket);
      const LeafRank rank = leaves_.smallest_rank(bucket);
      const std::size_t to = bucket - bucket % kSpans + span_of(now_ - rank.first);
      if (to == bucket) return is_oldest(bucket, node, rank);
      leaves_.set(node, to, rank);
      has_joined(to, node, rank);
    }
  }

  void count(const PolicyNode& node, bool hit, Pages pages) {
    Class& one = classes_[class_of(node)];
    (hit ? one.hits : one.evictions)[bin_of(now_ - node.marks.first)] += 256 * pages;
    events_ += pages;
    if (events_ < round_) return;
    events_ = 0;
    for (Class& each : classes_) learn(each);
    for (Bucket& each : buckets_) each.until = 0;
  }

  // From the oldest age down: what will still be hit, and the room times the time it will take until all are gone. What
  // ends in a bin ends in its middle. Then all counts fade by an eighth.
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

  const Pages round_;  // events from one learning to the next
  std::array<Class, kClasses> classes_;
  LeafLists leaves_;
  std::array<Bucket, kBuckets> buckets_;  // leaves_' lists, by class and span
  std::size_t gives_ = 0;                 // the last victim's bucket
  std::uint64_t now_ = 0, events_ = 0;
  bool further_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_lhd(const EvictionSetup& setup) { return std::make_unique<HitDensity>(setup); }

}  // namespace kvtwin
