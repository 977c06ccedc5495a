#include <algorithm>

#include "policy/termination.hpp"

namespace kvtwin {
namespace {

// HiCache's formula: a prefetch is stopped once it has taken longer than base + slope * tokens / 1024. TimeoutFrom says
// since when, and which tokens count.
class Timeout final : public Termination {
 public:
  explicit Timeout(const EngineConfig& config)
      : base_(config.prefetch_timeout_base_ns),
        per_ki_token_(config.prefetch_timeout_per_ki_token_ns),
        max_(config.prefetch_timeout_max_ns),
        from_issue_(config.prefetch_timeout_from == TimeoutFrom::issue) {}

  TimeNs stop_at(const PrefetchFacts& facts) const override {
    const Tokens tokens = from_issue_ ? facts.read_tokens : facts.asked_tokens;
    const auto kilo = static_cast<TimeNs>(tokens / 1024), rest = static_cast<TimeNs>(tokens % 1024);
    constexpr TimeNs kLongestWait = kNoStop / 4;  // so that no sum wraps
    TimeNs limit = kLongestWait;
    if (per_ki_token_ == 0 || kilo < (kLongestWait - base_) / per_ki_token_ - 1) {
      limit = base_ + kilo * per_ki_token_ + rest * (per_ki_token_ / 1024) + rest * (per_ki_token_ % 1024) / 1024;
    }
    if (max_ != 0) limit = std::min(limit, max_);
    return (from_issue_ ? facts.issued : facts.waits_since) + limit + 1;  // longer than the limit, not equal
  }
  // A limit from the issue on is of each prefetch. A limit of the wait is of all the request's prefetches together.
  bool stop_is_final() const override { return !from_issue_; }

 private:
  TimeNs base_, per_ki_token_, max_;
  bool from_issue_;
};

}  // namespace

std::unique_ptr<Termination> make_timeout_termination(const EngineConfig& config) {
  return std::make_unique<Timeout>(config);
}

}  // namespace kvtwin
