// States where prompts have been seen to part, and at the prompt's end. After "Sparse prefix caching" (arXiv
// 2605.05219): of all sets of `states` points, dynamic programming finds the set with the largest expected reuse, under
// the distribution of the lengths that prompts share with the cache (overlap depths).
//
// Each admitted request with a cached prefix adds its length to the distribution: at most kDepths lengths; a new one
// takes the place of the rarest, and of these of the oldest. All counts are halved every kMemory requests, so old
// traffic is forgotten. Lengths that few prompts share count as chance. A branch that a match has shown counts as all
// others together. If a later prompt parts at depth d, it can continue from the
// deepest point at or above d, so the points c of a prefill that begins at `from` save sum over d of count(d) * (c(d) -
// from) tokens. The last point of the prompt is always one of them.
//
// A pass ends at each point. Its state is the running one, so an engine needs no new kernel for it: SGLang would cut
// its chunks there (init_next_round_input), and copy the running state into a tracking slot when the pass ends. The
// price is the time of the further passes.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "policy/state_points/tracked_grid.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kDepths = 64;
constexpr std::uint64_t kMemory = 512;  // requests
constexpr std::uint64_t kLeast = 2;     // a length seen once is chance

class Overlap final : public TrackedGrid {
 public:
  Overlap(const EngineConfig& config, const Parameters& parameters)
      : TrackedGrid(config, parameters),
        states_(parameters.whole("states", {.fallback = 2,
                                            .least = 1,
                                            .most = 16,
                                            .help = "states that a prefill leaves at most, beside those at the ends of "
                                                    "its chunks"})),
        apart_(parameters.whole("apart", {.fallback = 1024,
                                          .least = 1,
                                          .most = 1'000'000'000,
                                          .help = "tokens between two states of a prefill, at least"})),
        share_(
            parameters.per_1024("share", {.fallback = "0.03",
                                          .most = "1",
                                          .help = "share of the requests with a cached prefix that must have had one "
                                                  "of the same length"})) {}

  Tokens after_prefill(Tokens from, Tokens to, Tokens branch) const override {
    const bool has_branch = from < branch && branch < to;
    return to % grid() == 0 && !has_branch ? to : TrackedGrid::after_prefill(from, to, branch);
  }

  void learn(Tokens present) override {
    if (present == 0) return;
    ++seen_;
    ++all_;
    const auto at = std::ranges::lower_bound(depths_, present, {}, &Depth::tokens);
    if (at != depths_.end() && at->tokens == present) {
      ++at->count;
      at->seen = seen_;
    } else {
      if (depths_.size() == kDepths) {
        depths_.erase(std::ranges::min_element(depths_, {},
                                               [](const Depth& depth) { return std::pair(depth.count, depth.seen); }));
      }
      depths_.insert(std::ranges::lower_bound(depths_, present, {}, &Depth::tokens), {present, 1, seen_});
    }
    if (seen_ % kMemory != 0) return;
    all_ /= 2;
    for (Depth& depth : depths_) depth.count /= 2;
    std::erase_if(depths_, [](const Depth& depth) { return depth.count == 0; });
  }

  std::vector<Tokens> pass_ends(Tokens from, Tokens to, Tokens branch) const override {
    std::vector<Depth> parts;
    for (const Depth& depth : depths_) {
      if (depth.count < kLeast || depth.count * 1024 < share_ * all_) continue;
      add(depth.tokens, depth.count, from, to, parts);
    }
    add(branch, all_ + 1, from, to, parts);
    return best(parts, from);
  }

 private:
  struct Depth {
    Tokens tokens = 0;
    std::uint64_t count = 0, seen = 0;  // `seen`: the number of the last such request
  };

  // Adds a length at which prompts may part, if a point there is of use.
  void add(Tokens tokens, std::uint64_t count, Tokens from, Tokens to, std::vector<Depth>& parts) const {
    tokens = tokens / grid() * grid();
    if (tokens < from + apart_ || tokens + apart_ > to) return;
    const auto at = std::ranges::lower_bound(parts, tokens, {}, &Depth::tokens);
    if (at != parts.end() && at->tokens == tokens) {
      at->count += count;
    } else {
      parts.insert(at, {tokens, count, 0});
    }
  }

  // Returns the states_ - 1 points, or fewer, that save most. saved[k][i]: by k + 1 points of which the last one is i,
  // with the prompts that part at i or behind it.
  std::vector<Tokens> best(const std::vector<Depth>& parts, Tokens from) const {
    struct Choice {
      std::uint64_t saved = 0;
      std::size_t before = 0;
      bool possible = false;
    };
    std::vector<std::uint64_t> behind(parts.size() + 1, 0);
    for (std::size_t i = parts.size(); i-- > 0;) behind[i] = behind[i + 1] + parts[i].count;
    std::vector<std::vector<Choice>> rounds;
    std::pair<std::size_t, std::size_t> last;
    std::uint64_t most = 0;
    for (std::size_t k = 0; k + 1 < states_; ++k) {
      rounds.emplace_back(parts.size());
      for (std::size_t i = 0; i < parts.size(); ++i) {
        Choice& here = rounds[k][i];
        if (k == 0) here = {(parts[i].tokens - from) * behind[i], 0, true};
        for (std::size_t j = 0; k > 0 && j < i; ++j) {
          if (!rounds[k - 1][j].possible || parts[j].tokens + apart_ > parts[i].tokens) continue;
          const std::uint64_t saved = rounds[k - 1][j].saved + (parts[i].tokens - parts[j].tokens) * behind[i];
          if (saved > here.saved) here = {saved, j, true};
        }
        if (here.saved <= most) continue;
        most = here.saved;
        last = {k, i};
      }
    }
    std::vector<Tokens> points;
    if (most == 0) return points;
    for (auto [k, i] = last;; --k) {
      points.insert(points.begin(), parts[i].tokens);
      if (k == 0) return points;
      i = rounds[k][i].before;
    }
  }

  const std::uint64_t states_;
  const Tokens apart_;
  const std::uint64_t share_;         // in 1/1024
  std::vector<Depth> depths_;         // by length
  std::uint64_t seen_ = 0, all_ = 0;  // `all_`: with the memory of the counts
};

}  // namespace

std::unique_ptr<StatePoints> make_overlap_state_points(const EngineConfig& config, const Parameters& parameters) {
  return std::make_unique<Overlap>(config, parameters);
}

}  // namespace kvtwin
