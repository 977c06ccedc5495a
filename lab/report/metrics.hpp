// What a run amounts to: sums and quantiles over the engine's events, in bounded memory, for report.json.
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

// Counts of durations in buckets of 1/1024 of their size: quantiles within 0.1 %, sums exact, memory bounded
// (a simulation of millions of requests keeps none of them). Integers only.
class DurationHistogram {
 public:
  void add(TimeNs duration);
  std::uint64_t count() const { return count_; }
  // Without a recorded duration these three return nothing.
  std::optional<double> mean_seconds() const;
  // The smallest recorded value (rounded down to its bucket) that at least `per_mille` of them don't exceed.
  std::optional<double> quantile_seconds(std::uint64_t per_mille) const;
  std::optional<double> max_seconds() const;

 private:
  std::vector<std::uint64_t> buckets_;
  std::uint64_t count_ = 0;
  TimeNs max_ = 0;
  std::array<std::uint64_t, 2> sum_{};  // 128 bits, low word first
};

// How long requests wait for their first token, besides computing it, in the course of a run: by the number in which
// they arrived, in at most kMaxGroups groups of equally many, merged by twos when there are more.
class WaitTrend {
 public:
  static constexpr std::size_t kMaxGroups = 768;
  void add(RequestId request, TimeNs wait);
  std::uint64_t count() const { return count_; }
  struct Thirds {
    double first_s = 0, last_s = 0;  // mean waits of the first and the last third of the requests
  };
  // None if either has no request.
  std::optional<Thirds> thirds() const;

 private:
  struct Group {
    std::uint64_t count = 0;
    double wait_s = 0;  // in all
  };
  std::vector<Group> groups_;
  std::uint64_t width_ = 1, count_ = 0;
};

class Metrics final : public Observer {
 public:
  // Each finished or rejected request's record goes to `next` too (requests.csv), if there is one. With `cost`, hits
  // are weighed by it.
  explicit Metrics(Observer* next = nullptr, const CostModel* cost = nullptr) : next_(next), cost_(cost) {}
  void on_event(const Event& event) override;

  struct TierUse {
    Pages evicted = 0, written = 0;
    // By reason: not written, for want of room or a failure; or lost that should have been written.
    std::map<std::string_view, Pages> dropped;
  };

  std::uint64_t arrived = 0, completed = 0;
  std::map<std::string_view, std::uint64_t> rejected;
  std::uint64_t rejected_total = 0;
  std::uint64_t failed() const { return arrived - completed - rejected_total; }
  // `requests` as a share of all that arrived; nothing if none arrived.
  std::optional<double> share_of_arrived(std::uint64_t requests) const;
  // Ledger, summed over admitted requests.
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
    // Each one that is issued ends in one of these ways, or is open yet (policy/prefetch/prefetch.hpp).
    std::uint64_t issued = 0, completed = 0, failed = 0, stopped = 0, revoked = 0, aborted = 0;
    std::set<RequestId> open;
    bool add_up() const { return issued == completed + failed + stopped + revoked + aborted + open.size(); }
    std::map<std::string_view, std::uint64_t> declined, revoked_reasons;
    Pages arrived = 0, used = 0, shortened = 0;
    std::map<std::string_view, Pages> wasted;  // arrived, and not kept
  } prefetches;
  Pages stores_retried = 0;
  std::map<std::string_view, Pages> fell_short;  // of storage operations, by cause
  Pages backups_retried = 0;
  std::uint64_t backups_awaited = 0;  // steps that found a request short of room until a write-back is done
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
