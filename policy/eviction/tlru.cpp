// Tail-optimised LRU (Zhang et al., 2025): the next turn of a conversation of L tokens will bring about q more; with
// the first L + q - xi in the tier at most xi are left to compute, which is soon enough. So what lies deeper goes
// first, least recently used first, then the rest in that order. xi is 4,096 tokens; q is a moving average (1/16) of
// what later turns (turns.hpp) added to the turn before. On the tree: L is that of the request that visited the node
// last. A parent lies less deep than its child, and counts as a tail no sooner unless a shorter conversation visited it
// last; it then waits for the child.
#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/turns.hpp"

namespace kvtwin {
namespace {

class TailLru final : public LeafOrder {
 public:
  explicit TailLru(const EvictionSetup& setup) : page_tokens_(setup.page_tokens) {}

  void visit(const Visit& visit) override {
    turns_.visit(visit, none_);
    prompt_ = visit.prompt_tokens;
    length_ = visit.prompt_tokens + visit.output_tokens;
    seek_growth_ = !visit.further;
  }
  void entered(const PolicyNode& node) override { node.marks = {length_, kept()}; }
  void touched(const PolicyNode& node) override {
    turns_.touched(node.facts);
    if (seek_growth_ && turns_.later() && prompt_ > node.marks.first) {
      growth_ = growth_ - growth_ / 16 + (prompt_ - node.marks.first);
    }
    seek_growth_ = false;  // the last node's length is the turn before's; those above may be others'
    node.marks = {length_, kept()};
  }

 private:
  static constexpr Tokens kSoonEnough = 4'096;

  // Marks: the conversation's length, and how much of it is to be kept.
  Tokens kept() const {
    const Tokens next = length_ + growth_ / 16;
    return next < kSoonEnough ? 0 : next - kSoonEnough;
  }
  LeafRank rank(const PolicyNode& node) const override {
    const bool tail = last_page_depth(node.facts, page_tokens_) >= node.marks.second;
    return {tail ? 0U : 1U, node.facts.last_access, node.facts.inserted};
  }

  const Tokens page_tokens_;
  Turns turns_;
  Ghosts none_{0, {}};
  Tokens prompt_ = 0, length_ = 0;
  Tokens growth_ = 0;  // 16 q
  bool seek_growth_ = false;
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_tlru(const EvictionSetup& setup) { return std::make_unique<TailLru>(setup); }

}  // namespace kvtwin
