// SGLang's tlru (0.5.23), a tail-optimised LRU (Zhang et al., 2025). If the prefix of a conversation is cached up to
// history + next_prompt - threshold, the next turn has to compute at most the threshold. Deeper pages are evicted
// first, least recently used first; then the other pages in the same order. With a threshold of 0, which is the
// default, this is lru. tail_lru learns the length of the next prompt instead.
//
// On the tree: the history of a page is the length of the longest path that led through the page since the page
// entered. If whole nodes are evicted, a node counts as deep from its first page on, else from its last page on.
#include "policy/eviction/ranked_leaves.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kMaxTokens = 1'000'000'000'000;

class Tlru final : public LeafOrder {
 public:
  explicit Tlru(const EvictionSetup& setup)
      : setup_(setup),
        threshold_(setup.parameters.whole(
            "threshold",
            {.most = kMaxTokens,
             .help = "tokens that the next turn of a conversation may have to compute; 0 = evict as lru"})),
        next_prompt_(setup.parameters.whole(
            "next_prompt", {.most = kMaxTokens, .help = "tokens that the next turn is expected to add"})) {
    if (threshold_ <= next_prompt_) {
      setup.parameters.note("evicts as lru, because threshold is not above next_prompt; tail_lru needs no parameter");
    }
  }

  void visit(const Visit& visit) override { path_pages_ = setup_.follows_visits ? visit.keys.size() : 0; }
  void entered(const PolicyNode& node) override { raise_history(node); }
  void copied(const PolicyNode& node, const PolicyMarks& elsewhere) override {
    node.marks = elsewhere;
    raise_history(node);
  }
  void touched(const PolicyNode& node) override { raise_history(node); }

 private:
  // First mark: the history, in pages.
  void raise_history(const PolicyNode& node) {
    node.marks.first = std::max<std::uint64_t>({node.marks.first, node.facts.depth_pages, path_pages_});
  }
  LeafRank rank(const PolicyNode& node) const override {
    const Tokens wanted = node.marks.first * setup_.page_tokens + next_prompt_;
    const Tokens kept = wanted - std::min(wanted, threshold_);
    const Pages evicted = setup_.whole_nodes ? node.facts.pages : 1;
    const bool deep = (node.facts.depth_pages - evicted) * setup_.page_tokens >= kept;
    return {deep ? 0U : 1U, node.facts.last_access, node.facts.inserted};
  }

  const EvictionSetup setup_;
  const Tokens threshold_, next_prompt_;
  Pages path_pages_ = 0;  // of the request at work
};

}  // namespace

std::unique_ptr<EvictionPolicy> make_tlru(const EvictionSetup& setup) { return std::make_unique<Tlru>(setup); }

}  // namespace kvtwin
