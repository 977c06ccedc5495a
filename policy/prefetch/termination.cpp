#include "policy/prefetch/termination.hpp"

#include <algorithm>

namespace kvtwin {
namespace {

class BestEffort final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts& facts) const override { return facts.issued; }
};

class WaitComplete final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts&) const override { return kNoStop; }
};

// HiCache's formula: a prefetch is stopped once it has taken longer than base + slope * tokens / 1024.
class Timeout final : public Termination {
 public:
  explicit Timeout(const EngineConfig& config)
      : base_(config.prefetch_timeout_base_ns),
        per_ki_token_(config.prefetch_timeout_per_ki_token_ns),
        most_(config.prefetch_timeout_most_ns) {}

  TimeNs stop_at(const PrefetchFacts& facts) const override {
    const auto kilo = static_cast<TimeNs>(facts.hit_tokens / 1024), rest = static_cast<TimeNs>(facts.hit_tokens % 1024);
    constexpr TimeNs kLongest = kNoStop / 4;  // so that no sum wraps
    TimeNs limit = kLongest;
    if (per_ki_token_ == 0 || kilo < (kLongest - base_) / per_ki_token_ - 1) {
      limit = base_ + kilo * per_ki_token_ + rest * (per_ki_token_ / 1024) + rest * (per_ki_token_ % 1024) / 1024;
    }
    if (most_ != 0) limit = std::min(limit, most_);
    return facts.issued + limit + 1;  // longer, not as long
  }

 private:
  TimeNs base_, per_ki_token_, most_;
};

// Waiting for the next token costs as much as for any other, computing deep ones costs more than the first: so the best
// is to stop now or to wait for all, weighed anew with each arrival. Of a medium that has fallen silent it is believed
// that it will speak again after as long as usual, or an eighth more; and once that is over, that as much is still to
// come (heavy tails), so that a dead one is left after about what it would save.
class CostStop final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts& facts) const override {
    if (facts.takes_ns >= facts.saves_ns) return facts.issued;
    const TimeNs won = facts.saves_alone_ns - facts.takes_alone_ns;  // if the rest came at once
    const TimeNs silence = facts.silence_ns + facts.silence_ns / 8;
    if (silence - facts.patience_ns >= won) return facts.progress + facts.patience_ns;
    return facts.progress + std::max({facts.patience_ns, silence, won});
  }
};

}  // namespace

std::unique_ptr<Termination> make_termination(const EngineConfig& config) {
  switch (config.prefetch_policy) {
    case PrefetchPolicy::best_effort: return std::make_unique<BestEffort>();
    case PrefetchPolicy::wait_complete: return std::make_unique<WaitComplete>();
    case PrefetchPolicy::cost_stop: return std::make_unique<CostStop>();
    case PrefetchPolicy::timeout: break;
  }
  return std::make_unique<Timeout>(config);
}

}  // namespace kvtwin
