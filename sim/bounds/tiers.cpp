#include "sim/bounds/tiers.hpp"

#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

// The cost that a request's first blocks save on the farthest tier of one level, minus the cost that they save on the
// farthest tier of the next level. Callers mostly ask for growing prefixes of one request, so `of` continues from the
// last result.
class Gain {
 public:
  // `next`: the next farther level, or null.
  Gain(const TierLevel& level, const TierLevel* next, const OfPrefix& computing, const OfPrefix& tokens)
      : level_(level), next_(next), computing_(computing), tokens_(tokens) {}

  std::uint64_t of(std::uint32_t request, std::uint32_t blocks) {
    if (request != request_ || blocks < blocks_) {
      request_ = request;
      blocks_ = 0;
      gained_ = computed_ = tokens_before_ = 0;
    }
    while (blocks_ < blocks) add_block();
    return gained_;
  }

 private:
  void add_block() {
    ++blocks_;
    const std::uint64_t computed = computing_(request_, blocks_), tokens = tokens_(request_, blocks_);
    const std::uint64_t worth = computed > computed_ ? computed - computed_ : 0;
    const std::uint64_t length = tokens - tokens_before_;
    gained_ += saved(worth, length, level_.load_milli);
    if (next_ != nullptr) gained_ -= saved(worth, length, next_->load_milli);
    computed_ = computed;
    tokens_before_ = tokens;
  }

  static std::uint64_t saved(std::uint64_t worth, std::uint64_t tokens, std::uint64_t load_milli) {
    const UnsignedWide load = UnsignedWide{tokens} * load_milli / 1000;
    return worth > load ? worth - static_cast<std::uint64_t>(load) : 0;
  }

  const TierLevel& level_;
  const TierLevel* next_;
  const OfPrefix& computing_;
  const OfPrefix& tokens_;
  std::uint32_t request_ = ~std::uint32_t{0}, blocks_ = 0;
  std::uint64_t gained_ = 0, computed_ = 0, tokens_before_ = 0;
};

}  // namespace

TierBound opt_tiers(std::span<const TierLevel> levels, const OfPrefix& computing, const OfPrefix& tokens) {
  TierBound bound;
  for (std::size_t k = 0; k < levels.size(); ++k) {
    const TierLevel* const next = k + 1 < levels.size() ? &levels[k + 1] : nullptr;
    KV_CHECK(next == nullptr || (next->room >= levels[k].room && next->load_milli >= levels[k].load_milli),
             "levels hold more and load slower, one after another");
    Gain gain(levels[k], next, computing, tokens);
    const Future& future = *levels[k].future;
    CostBound level = opt_cost(future, levels[k].room, [&](std::size_t turn, std::uint32_t blocks) {
      return gain.of(future.request(turn), blocks);
    });
    bound.saved += level.saved;
    bound.kept = std::move(level.kept);
  }
  return bound;
}

}  // namespace kvtwin
