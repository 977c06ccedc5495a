#include <algorithm>

#include "policy/termination.hpp"

namespace kvtwin {
namespace {

constexpr const char* kMost = "1000000s";

// HiCache's formula: a prefetch is stopped once it has taken longer than base + slope * tokens / 1024. TimeoutFrom says
// since when, and which tokens count (cache.rules.prefetch_timeout_from).
class Timeout final : public Termination {
 public:
  Timeout(const EngineConfig& config, const Parameters& parameters)
      : base_(parameters.time("base", {.fallback = "1s", .most = kMost, .help = "fixed part of the time limit"})),
        per_ki_token_(parameters.time(
            "per_ki_token", {.fallback = "0.25s", .most = kMost, .help = "part of the time limit per 1,024 tokens"})),
        max_(parameters.time("most",
                             {.fallback = "0s", .most = kMost, .help = "upper bound of the time limit; 0 = no bound"})),
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

std::unique_ptr<Termination> make_timeout_termination(const EngineConfig& config, const Parameters& parameters) {
  return std::make_unique<Timeout>(config, parameters);
}

}  // namespace kvtwin
