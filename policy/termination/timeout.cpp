#include <algorithm>

#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// HiCache's formula: a prefetch is stopped once it has taken longer than base + slope * tokens / 1024. The tokens are
// those that the prefetch asked L3 for, found or not.
class Timeout final : public Termination {
 public:
  explicit Timeout(const EngineConfig& config)
      : base_(config.prefetch_timeout_base_ns),
        per_ki_token_(config.prefetch_timeout_per_ki_token_ns),
        max_(config.prefetch_timeout_max_ns) {}

  TimeNs stop_at(const PrefetchFacts& facts) const override {
    const auto kilo = static_cast<TimeNs>(facts.asked_tokens / 1024),
               rest = static_cast<TimeNs>(facts.asked_tokens % 1024);
    constexpr TimeNs kLongestWait = kNoStop / 4;  // so that no sum wraps
    TimeNs limit = kLongestWait;
    if (per_ki_token_ == 0 || kilo < (kLongestWait - base_) / per_ki_token_ - 1) {
      limit = base_ + kilo * per_ki_token_ + rest * (per_ki_token_ / 1024) + rest * (per_ki_token_ % 1024) / 1024;
    }
    if (max_ != 0) limit = std::min(limit, max_);
    return facts.issued + limit + 1;  // longer than the limit, not equal
  }

 private:
  TimeNs base_, per_ki_token_, max_;
};

}  // namespace

std::unique_ptr<Termination> make_timeout_termination(const EngineConfig& config) {
  return std::make_unique<Timeout>(config);
}

}  // namespace kvtwin
