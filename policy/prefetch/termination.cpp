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
    constexpr TimeNs kLongestWait = kNoStop / 4;  // so that no sum wraps
    TimeNs limit = kLongestWait;
    if (per_ki_token_ == 0 || kilo < (kLongestWait - base_) / per_ki_token_ - 1) {
      limit = base_ + kilo * per_ki_token_ + rest * (per_ki_token_ / 1024) + rest * (per_ki_token_ % 1024) / 1024;
    }
    if (most_ != 0) limit = std::min(limit, most_);
    return facts.issued + limit + 1;  // longer, not as long
  }

 private:
  TimeNs base_, per_ki_token_, most_;
};

// Waiting for the next token costs as much as for any other, computing deep ones costs more than the first: so the best
// is to stop now or to wait for all, weighed anew with each batch, and while one is late. Those in a queue behind
// another's batch count on him to give it up when that is best for him.
class CostStop final : public Termination {
 public:
  TimeNs stop_at(const PrefetchFacts& facts) const override {
    if (facts.medium == nullptr) {
      return facts.rest_ns >= facts.saves_ns ? facts.issued : facts.progress + facts.saves_ns;
    }
    if (facts.ahead.give_up < 0) {
      const Lateness::Outlook own = weigh(facts);
      return own.cost >= facts.saves_ns ? facts.issued : facts.began + own.give_up;
    }
    if (facts.ahead.wait + facts.rest_ns >= facts.saves_ns) return facts.issued;
    const TimeNs given_up = facts.began + facts.ahead.give_up;
    // It should have been and isn't, as nobody asks him. What it has taken so far it may take again.
    return given_up > facts.now ? given_up : facts.began + facts.saves_ns - facts.rest_ns;
  }
};

}  // namespace

Lateness::Outlook weigh(const PrefetchFacts& facts) {
  return facts.medium->weigh({facts.unit_ns, facts.now - facts.began, facts.bearers, facts.rest_ns, facts.saves_ns});
}

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
