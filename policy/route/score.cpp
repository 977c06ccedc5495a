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
//   1.0, cpu 0.8). The pages of the prompt behind the engine's prefix that are in shared storage count
//   storage_share each (0 as in llm-d: they are not counted).
//
// What an engine has cached is exact, by its KV events, or an estimate by the prompts that were sent to it
// (prefix_from; llm-d's precise and approximate producers). Shared storage reports no evictions, so its
// pages are an estimate: the last ones that any engine wrote, at most the capacity.
//
// Ties go to the engine with the fewest open requests, then to the first; llm-d's max-score-picker draws one. Here the
// router knows the engines' state at once; llm-d polls metrics.
#include <algorithm>
#include <utility>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "policy/route.hpp"
#include "policy/route/page_holders.hpp"
#include "policy/route/recent.hpp"
#include "policy/route/sent_pages.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kScoreOne = std::uint64_t{1} << 32;

// Returns part / whole, at most 1, in units of 1/kScoreOne.
std::uint64_t score_share(std::uint64_t part, std::uint64_t whole) {
  part = std::min(part, whole);
  if (part < kScoreOne) return part * kScoreOne / whole;  // the same quotient, without a division of 128 bits
  return static_cast<std::uint64_t>((UnsignedWide{part} * kScoreOne) / whole);
}

constexpr std::string_view kPrefixFrom[] = {"events", "prompts"};
constexpr std::size_t kFromPrompts = 1;

// Weights and shares are in 1/1024.
struct ScoreParameters {
  explicit ScoreParameters(const Parameters& of)
      : queue(weight(of, "queue", "2", "weight of a short queue (llm-d's queue-scorer)")),
        kv(weight(of, "kv", "2", "weight of a small KV use (llm-d's kv-cache-utilization-scorer)")),
        prefix(weight(of, "prefix", "3",
                      "weight of the share of the prompt that the engine has cached (llm-d's prefix-cache-scorer)")),
        host_share(
            share(of, "host_share", "0.8", "worth of a cached page on the host, as a share of one on the device")),
        storage_share(share(of, "storage_share", "0",
                            "worth of a page in the shared file system or the remote tier, behind the engine's cached "
                            "prefix, as a share of one on the device")),
        from_prompts(of.word("prefix_from", kPrefixFrom,
                             "how the router knows the cached pages of an engine: events (exact, by the KV events of "
                             "the engine) or prompts (an estimate: the last pages sent to the engine are on its "
                             "device, earlier pages on its host)") == kFromPrompts) {}

  std::uint32_t queue, kv, prefix, host_share, storage_share;
  bool from_prompts;

 private:
  static std::uint32_t weight(const Parameters& of, std::string_view name, std::string_view fallback,
                              std::string_view help) {
    return of.per_1024(name, {.fallback = fallback, .most = "1000", .help = help});
  }
  static std::uint32_t share(const Parameters& of, std::string_view name, std::string_view fallback,
                             std::string_view help) {
    return of.per_1024(name, {.fallback = fallback, .most = "1", .help = help});
  }
};

class Score final : public Router {
 public:
  explicit Score(const RouterSetup& setup)
      : setup_(setup),
        of_(setup.parameters),
        engines_(setup.engines),
        sent_(setup),
        shared_(std::max<Pages>(1, setup.shared_pages / 2)) {}

  std::size_t route(const Arrival& arrival) override {
    find_prefixes(arrival.keys);
    const auto queue = [](const EngineState& state) { return state.open - state.running; };
    std::uint64_t least = ~std::uint64_t{0}, most = 0;
    for (const EngineState& state : engines_) {
      if (state.gone) continue;
      least = std::min(least, queue(state));
      most = std::max(most, queue(state));
    }
    const std::uint64_t prompt = 1024 * std::max<Pages>(1, arrival.keys.size());
    const std::uint64_t stored = stored_behind(0);
    const auto score_of_queue = [&](std::uint64_t length) {
      return most == least ? kScoreOne : score_share(most - length, most - least);
    };
    // Most engines have the same queue and the same prefix as the engine before them: one division for all of these.
    std::uint64_t length = least, queue_score = score_of_queue(least), cached = stored,
                  prefix_score = score_share(stored, prompt);
    std::size_t best = engines_.size();
    std::uint64_t best_score = 0;  // weights are below 2^20, so a sum is below 2^54
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      const EngineState& state = engines_[i];
      if (state.gone) continue;
      if (queue(state) != length) queue_score = score_of_queue(length = queue(state));
      const std::uint64_t of_engine = state.prefix_x1024 + stored_behind(state.prefix_pages);
      if (of_engine != cached) prefix_score = score_share(cached = of_engine, prompt);
      const std::uint64_t score = queue_score * of_.queue + state.kv_score * of_.kv + prefix_score * of_.prefix;
      const bool first = best == engines_.size();
      if (!first && (score < best_score || (score == best_score && state.open >= engines_[best].open))) continue;
      best = i;
      best_score = score;
    }
    KV_CHECK(best < engines_.size(), "one engine lives");
    ++engines_[best].open;
    if (of_.from_prompts && uses_prefixes()) sent_.sent(best, arrival.keys, holders_);
    return best;
  }

  void ended(std::size_t engine) override {
    KV_CHECK(engines_[engine].open > engines_[engine].running, "a request ends once, after it has left");
    --engines_[engine].open;
  }
  void gone(std::size_t engine) override { engines_[engine].gone = true; }
  void admitted(std::size_t engine, Tokens prompt) override {
    ++engines_[engine].running;
    set_running_pages(engines_[engine], engines_[engine].running_pages + pages_for(prompt));
  }
  void left(std::size_t engine, Tokens prompt) override {
    --engines_[engine].running;
    set_running_pages(engines_[engine], engines_[engine].running_pages - pages_for(prompt));
  }

  bool follows_pages() const override { return uses_prefixes() && (!of_.from_prompts || of_.storage_share != 0); }
  void stored(std::size_t engine, Tier tier, std::span<const PageKey> keys) override {
    if (of_.from_prompts) return;
    for (const PageKey& key : keys) holders_.add(engine, tier, key);
  }
  void removed(std::size_t engine, Tier tier, std::span<const PageKey> keys) override {
    if (of_.from_prompts) return;
    for (const PageKey& key : keys) holders_.remove(engine, tier, key);
  }
  void stored_for_all(std::span<const PageKey> keys) override {
    if (of_.storage_share == 0) return;
    for (const PageKey& key : keys) {
      shared_.reserve(1);
      shared_.put(key, true);
    }
  }

 private:
  struct EngineState {
    std::uint64_t open = 0, running = 0;  // requests
    bool gone = false;
    Pages running_pages = 0;
    std::uint64_t kv_score = kScoreOne;
    // Of the current arrival: the longest cached prefix, and its worth in 1/1024 pages.
    Pages prefix_pages = 0;
    std::uint64_t prefix_x1024 = 0;
  };

  bool uses_prefixes() const { return of_.prefix != 0; }
  Pages pages_for(Tokens tokens) const { return (tokens + setup_.page_tokens - 1) / setup_.page_tokens; }
  void set_running_pages(EngineState& state, Pages pages) const {
    state.running_pages = pages;
    state.kv_score = kScoreOne - score_share(pages, std::max<Pages>(1, setup_.device_pages));
  }

  // Sets prefix_pages and prefix_x1024 of every engine.
  void find_prefixes(std::span<const PageKey> keys) {
    for (const std::size_t engine : with_prefix_) engines_[engine].prefix_pages = engines_[engine].prefix_x1024 = 0;
    with_prefix_.clear();
    if (!uses_prefixes()) return;
    const std::uint32_t host = of_.host_share;
    for (Pages page = 0; page < keys.size(); ++page) {
      bool any = false;
      holders_.each_holder(keys[page], [&](std::size_t engine, std::uint8_t tiers) {
        EngineState& state = engines_[engine];
        if (state.prefix_pages != page) return;
        if (page == 0) with_prefix_.push_back(engine);
        ++state.prefix_pages;
        state.prefix_x1024 += (tiers & PageHolders::bit(Tier::device)) != 0 ? std::max(1024U, host) : host;
        any = true;
      });
      if (!any) break;
    }
    find_stored_runs(keys);
  }

  // Sets stored_runs_: by page, the number of pages from there on that are in shared storage without a gap.
  void find_stored_runs(std::span<const PageKey> keys) {
    if (of_.storage_share == 0) return;
    stored_runs_.assign(keys.size() + 1, 0);
    for (std::size_t page = keys.size(); page-- > 0;) {
      stored_runs_[page] = shared_.find(keys[page]) != nullptr ? stored_runs_[page + 1] + 1 : 0;
    }
  }

  // Returns the worth of the pages behind a prefix that are in shared storage, in 1/1024 pages.
  std::uint64_t stored_behind(Pages prefix) const {
    return prefix < stored_runs_.size() ? stored_runs_[prefix] * of_.storage_share : 0;
  }

  const RouterSetup setup_;
  const ScoreParameters of_;
  std::vector<EngineState> engines_;
  PageHolders holders_;
  SentPages sent_;
  Recent<PageKey, bool, PageKeyHash> shared_;  // written to shared storage
  std::vector<std::size_t> with_prefix_;       // engines that have the first page of the current arrival
  std::vector<Pages> stored_runs_;             // of the current arrival; empty if shared storage is not counted
};

}  // namespace

std::unique_ptr<Router> make_score_router(const RouterSetup& setup) { return std::make_unique<Score>(setup); }

}  // namespace kvtwin
