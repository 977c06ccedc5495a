// The figures of a run for report.json: sums and quantiles over the engine's events, in bounded memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "policy/seam/cost.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

// A histogram of durations. A bucket is 1/1024 of its value wide, so quantiles are within 0.1 %. Sums are exact.
// Cost: bounded memory, also for millions of durations. Integer arithmetic only.
class DurationHistogram {
 public:
  void add(TimeNs duration);
  std::uint64_t count() const { return count_; }
  // The next three functions return nothing if no duration is recorded.
  std::optional<double> mean_seconds() const;
  // Returns the smallest recorded value, rounded down to its bucket, such that at least `per_mille` of the values are
  // not larger.
  std::optional<double> quantile_seconds(std::uint64_t per_mille) const;
  std::optional<double> max_seconds() const;

 private:
  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  TimeNs max_ = 0;
  std::array<std::uint64_t, 2> sum_{};  // 128 bits, low word first
};

// The trend of the wait for the first token (TTFT without compute) over a run. Requests are grouped by number, which is
// the order of arrival. There are at most kMaxGroups groups of equal size; when more are needed, neighbours are merged.
class WaitTrend {
 public:
  static constexpr std::size_t kMaxGroups = 768;
  void add(RequestId request, TimeNs wait);
  std::uint64_t count() const { return count_; }
  struct Thirds {
    double first_s = 0, last_s = 0;  // mean wait of the first and of the last third of the groups
  };
  // Returns nothing if a third has no request.
  std::optional<Thirds> thirds() const;

 private:
  struct Group {
    std::uint64_t count = 0;
    double wait_s = 0;  // sum
  };
  std::vector<Group> groups_;
  std::uint64_t width_ = 1, count_ = 0;
};

class Metrics final : public Observer {
 public:
  // Events go on to `next`, which may be null. `cost` (may be null) gives the time that hits save.
  explicit Metrics(Observer* next = nullptr, const CostModel* cost = nullptr) : next_(next), cost_(cost) {}
  void on_event(const Event& event) override;

  struct TierUse {
    Pages evicted = 0, written = 0;
    // By reason: pages that were not written for lack of room or after a failure, and evicted pages without a copy.
    std::map<std::string_view, Pages> dropped;
  };

  std::uint64_t arrived = 0, completed = 0;
  std::map<std::string_view, std::uint64_t> rejected;
  std::uint64_t rejected_total = 0;
  std::uint64_t failed() const { return arrived - completed - rejected_total; }
  // Returns `requests` as a share of all arrived requests; nothing if no request arrived.
  std::optional<double> share_of_arrived(std::uint64_t requests) const;
  // Sums over finished requests.
  Tokens prompt = 0, recomputed_after_stop = 0, miss = 0;
  PerTier<Tokens> hit;
  Tokens reused_without_draft = 0;  // of the hits
  Tokens output = 0, retracted_recompute = 0;
  TimeNs saved_ns = 0;  // prefill time that the hits saved (lab/report/saved_time.hpp); 0 without a cost model
  bool weighs_hits() const { return cost_ != nullptr; }
  std::uint64_t retractions = 0, prefill_passes = 0, decode_passes = 0, decode_steps = 0;
  Tokens prefill_tokens = 0;
  DurationHistogram ttft, tpot, e2e, queue, prefetch_wait, load_wait, compute;
  PerTier<TierUse> tiers;
  TierUse& tier(Tier which) { return tiers[which]; }
  const TierUse& tier(Tier which) const { return tiers[which]; }
  std::uint64_t aborted = 0;
  struct Prefetches {
    // An issued prefetch ends in one of the ways below, or is still open (policy/prefetch/prefetch.hpp).
    std::uint64_t issued = 0, completed = 0, failed = 0, stopped = 0, revoked = 0, aborted = 0;
    std::set<RequestId> open;
    bool add_up() const { return issued == completed + failed + stopped + revoked + aborted + open.size(); }
    std::map<std::string_view, std::uint64_t> declined, revoked_reasons;
    Pages arrived = 0, used = 0, shortened = 0;
    std::map<std::string_view, Pages> wasted;  // arrived pages that were not kept
  } prefetches;
  Pages stores_retried = 0;
  std::map<std::string_view, Pages> fell_short;  // pages that storage operations did not move, by cause
  Pages backups_retried = 0;
  std::uint64_t backups_awaited = 0;  // steps in which a request waited for a write-back to make room
  struct Loads {
    Pages done = 0, failed = 0;
    std::map<std::string_view, Pages> declined;
  } loads;
  TimeNs last_finish = 0;
  TimeNs first_arrival = 0, last_arrival = 0;
  WaitTrend waits;

 private:
  void finished(const RequestRecord& record);
  void evicted(const Event& event);
  void count_storage(const Event& event);
  void count_prefetch(const Event& event);
  void end_prefetch(const Event& event, std::uint64_t& way);

  Observer* next_;
  const CostModel* cost_;
};

}  // namespace kvtwin
