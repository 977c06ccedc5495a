// Tail-optimised LRU (Zhang et al., 2025) that learns its parameter; tlru is SGLang's version. The next turn of a
// conversation of L tokens will add about q tokens. If the first L + q - xi tokens are in the tier, at most xi are left
// to compute, which is soon enough. So deeper pages are evicted first, least recently used first; then the other pages
// in the same order. xi is 4,096 tokens. q is a moving average (1/16) of the tokens that later turns (turns.hpp) added
// to the turn before.
//
// On the tree: L is the length of the request that visited the node last. A parent is less deep than its child, so it
// becomes a tail no earlier, unless a shorter conversation visited the parent last. In that case it waits for the
// child.
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
    // The path's last node has the length of the turn before; a node above may have another conversation's.
    seek_growth_ = false;
    node.marks = {length_, kept()};
  }

 private:
  static constexpr Tokens kMaxUncachedTokens = 4'096;

  // Marks: the conversation's length in tokens; how much of it to keep.
  Tokens kept() const {
    const Tokens next = length_ + growth_ / 16;
    return next < kMaxUncachedTokens ? 0 : next - kMaxUncachedTokens;
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

std::unique_ptr<EvictionPolicy> make_tail_lru(const EvictionSetup& setup) { return std::make_unique<TailLru>(setup); }

}  // namespace kvtwin
