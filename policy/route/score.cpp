// llm-d's weighted score (llm-d-router 0.9): the engine with the largest sum of weight * score. Each score is from 0 to
// 1. The names and weights are those of llm-d's default configuration (pkg/epp/config/loader/defaults.go,
// loadDefaultConfig: 2, 2 and 3):
//
// - queue-scorer: (longest queue - queue) / (longest - shortest queue); 1 if all are equal. The queue has the requests
//   that the engine has not admitted (pkg/epp/framework/plugins/scheduling/scorer/queuedepth/queue.go, Score).
// - kv-cache-utilization-scorer: 1 - KV use (scorer/kvcacheutilization/kvcache_utilization.go, Score). KV use here: the
//   pages of the prompts of admitted requests. llm-d reads the engine's metric, which counts answers too.
// - prefix-cache-scorer: the pages of the longest cached prefix / the pages of the prompt (scorer/prefix/plugin.go,
//   Score), as the precise producer counts them: a page on the host counts less than one on the device
//   (pkg/kvcache/kvblock_scorer.go, LongestPrefixScorer.Score; pkg/kvcache/backend.go, DefaultKVCacheBackendConfig: gpu
//   1.0, cpu 0.8).
//
// Ties go to the engine with the fewest open requests, then to the first; llm-d's max-score-picker draws one. Here the
// router knows the engines' state at once; llm-d polls metrics.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "policy/route.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kScoreOne = std::uint64_t{1} << 32;

// Returns part / whole, at most 1, in units of 1/kScoreOne.
std::uint64_t score_share(std::uint64_t part, std::uint64_t whole) {
  return static_cast<std::uint64_t>((UnsignedWide{std::min(part, whole)} * kScoreOne) / whole);
}

class Score final : public Router {
 public:
  explicit Score(const RouterSetup& setup) : setup_(setup), engines_(setup.engines) {}

  std::size_t route(const Arrival& arrival) override {
    const auto queue = [](const EngineState& state) { return state.open - state.running; };
    const auto [shortest, longest] = std::ranges::minmax(engines_, {}, queue);
    const std::uint64_t least = queue(shortest), most = queue(longest);
    std::size_t best = 0;
    UnsignedWide best_score = 0;
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      const EngineState& state = engines_[i];
      const std::uint64_t queue_score = most == least ? kScoreOne : score_share(most - queue(state), most - least);
      const Pages device = std::max<Pages>(1, setup_.device_pages);
      const std::uint64_t kv_score = kScoreOne - score_share(state.running_pages, device);
      const std::uint64_t prompt = 1024 * std::max<Pages>(1, arrival.keys.size());
      const std::uint64_t prefix_score = score_share(prefix_x1024(state, arrival.keys), prompt);
      const UnsignedWide score = UnsignedWide{queue_score} * setup_.queue_weight_x1024 +
                                 UnsignedWide{kv_score} * setup_.kv_weight_x1024 +
                                 UnsignedWide{prefix_score} * setup_.prefix_weight_x1024;
      if (i != 0 && (score < best_score || (score == best_score && state.open >= engines_[best].open))) continue;
      best = i;
      best_score = score;
    }
    ++engines_[best].open;
    return best;
  }

  void ended(std::size_t engine) override {
    KV_CHECK(engines_[engine].open > engines_[engine].running, "a request ends once, after it has left");
    --engines_[engine].open;
  }
  void admitted(std::size_t engine, Tokens prompt) override {
    ++engines_[engine].running;
    engines_[engine].running_pages += pages_for(prompt);
  }
  void left(std::size_t engine, Tokens prompt) override {
    --engines_[engine].running;
    engines_[engine].running_pages -= pages_for(prompt);
  }

  bool follows_pages() const override { return true; }
  void stored(std::size_t engine, Tier tier, std::span<const PageKey> keys) override {
    for (const PageKey& key : keys) engines_[engine].tiers_of[key] |= bit(tier);
  }
  void removed(std::size_t engine, Tier tier, std::span<const PageKey> keys) override {
    for (const PageKey& key : keys) {
      const auto at = engines_[engine].tiers_of.find(key);
      if (at == engines_[engine].tiers_of.end()) continue;
      at->second = static_cast<std::uint8_t>(at->second & ~bit(tier));
      if (at->second == 0) engines_[engine].tiers_of.erase(at);
    }
  }

 private:
  struct EngineState {
    std::uint64_t open = 0, running = 0;  // requests
    Pages running_pages = 0;
    std::unordered_map<PageKey, std::uint8_t, PageKeyHash> tiers_of;  // looked up only, never iterated
  };

  static std::uint8_t bit(Tier tier) { return static_cast<std::uint8_t>(1U << static_cast<unsigned>(tier)); }
  Pages pages_for(Tokens tokens) const { return (tokens + setup_.page_tokens - 1) / setup_.page_tokens; }

  // Returns the worth of the longest cached prefix, in 1/1024 pages.
  std::uint64_t prefix_x1024(const EngineState& state, std::span<const PageKey> keys) const {
    std::uint64_t worth = 0;
    for (const PageKey& key : keys) {
      const auto at = state.tiers_of.find(key);
      if (at == state.tiers_of.end()) break;
      const std::uint32_t host = setup_.host_share_x1024;
      worth += (at->second & bit(Tier::device)) != 0 ? std::max(1024U, host) : host;
    }
    return worth;
  }

  const RouterSetup setup_;
  std::vector<EngineState> engines_;
};

}  // namespace

std::unique_ptr<Router> make_score_router(const RouterSetup& setup) { return std::make_unique<Score>(setup); }

}  // namespace kvtwin
