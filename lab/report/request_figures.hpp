// Figures of requests that have ended, and the choice of the requests that the figures count.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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

// Limits for a good request (slo.*). 0 = no limit.
struct ServiceLevel {
  TimeNs ttft = 0, tpot = 0, e2e = 0;
  bool set() const { return ttft != 0 || tpot != 0 || e2e != 0; }
  // Returns whether a completed request is within all limits. A request of one output token has no TPOT.
  bool met_by(const RequestRecord& record) const;
};

// Counts, sums and quantiles of requests that have ended.
struct RequestFigures {
  void finished(const RequestRecord& record, const CostModel* cost, const ServiceLevel& level = {});
  void rejected_for(Reason reason);

  std::uint64_t arrived = 0, completed = 0;
  std::uint64_t good = 0;  // of the completed requests: within all limits of the service level
  std::map<std::string_view, std::uint64_t> rejected;
  std::uint64_t rejected_total = 0, aborted = 0;
  std::uint64_t failed() const { return arrived - completed - rejected_total; }
  // Returns `requests` as a share of all arrived requests; nothing if no request arrived.
  std::optional<double> share_of_arrived(std::uint64_t requests) const;
  // Sums over finished requests.
  Tokens prompt = 0, recomputed_after_stop = 0, miss = 0;
  PerTier<Tokens> hit;
  Tokens reused_without_draft = 0;     // of the hits
  Tokens unusable = 0;                 // of the misses: in memory without their window or state
  std::optional<Tokens> infinite_hit;  // that an infinite cache has of these prompts; nothing: not known
  Tokens output = 0, retracted_recompute = 0;
  TimeNs saved_ns = 0;  // prefill time that the hits saved (lab/report/saved_time.hpp); 0 without a cost model
  DurationHistogram ttft, tpot, e2e, queue, prefetch_wait, load_wait, compute, hand_over;
  // Of requests whose session has given hints, and of the others.
  struct ByHint {
    Tokens prompt = 0, hit = 0;
    DurationHistogram ttft;
  } hinted, not_hinted;
};

// The work that ends within a window. Rates, prices and the wear of drives are this work divided by `span`.
struct Rates {
  void add(const RequestRecord& finished, const ServiceLevel& level);
  void add(const Rates& other);
  // Returns `count` per second; nothing if no request completed, or for an empty window.
  std::optional<double> per_second(std::uint64_t count) const;

  TimeNs span = 0;                        // length of the window
  std::uint64_t completed = 0, good = 0;  // requests that completed, and those of them within the service level
  Tokens prompt = 0, output = 0;          // of the completed requests
  PerTier<Pages> written{};               // to storage tiers
};

// The requests that the figures count: those that end within the window of their stage.
//
//   | the first `warmup_requests` ends |            window            | requests without a successor |
//   start of the stage                 the last of these ends         the last arrival   end of the stage
//
// A window begins when the last request of the warm-up ends; without a warm-up, at the first arrival of the stage. The
// window ends with the stage, or with the last arrival of the stage if the drain is left out.
//
// Rates of a closed loop never count the drain, because its load falls: their window ends with the last arrival in all
// cases. If the traffic of users is cut, it ends with the cut: the first time at which a user has nothing to send.
// Requests and written pages count if they end within this window. Rates of an open loop have the window of the
// figures.
struct CountingTerms {
  std::uint64_t warmup_requests = 0;  // of each stage
  bool counts_drain = true;           // false: in a closed loop only
  bool closed = false;                // the answers set the rate
  std::function<TimeNs()> cut_at;     // closed loops: the time of the cut, or a later time than now; empty: no cut
  std::vector<std::uint64_t> stages;  // requests of each stage, in the order of arrival; empty: one stage
  ServiceLevel level;
  // Returns whether all requests count, without stages.
  bool counts_all() const { return warmup_requests == 0 && counts_drain && stages.empty(); }
  // Returns whether the window of the rates is the whole run.
  bool rates_whole_run() const { return counts_all() && !closed; }
};

// The figures of a stage.
struct StageFigures {
  RequestFigures figures;
  std::uint64_t sent = 0;               // requests that arrived, also those that do not count
  Rates rates;                          // its span is known after finish()
  std::uint64_t warmup = 0, drain = 0;  // requests that ended outside the window
  TimeNs begin = 0, end = 0;            // of the window
  TimeNs loaded_until = 0;              // closed loops: end of the window of the rates
  TimeNs window_ns() const { return end > begin ? end - begin : 0; }
};

// Adds the requests that count to the figures of their stage and to the figures of all stages.
// Memory: in a closed loop, 100 bytes for each request or write that has ended since the last arrival; without the
// drain, also the records of these requests.
class RequestCounter {
 public:
  // `finished` receives the record of each completed request that counts; may be empty.
  // Requires: `all` and `cost` outlive this object; `cost` may be null.
  RequestCounter(CountingTerms terms, RequestFigures& all, const CostModel* cost,
                 std::function<void(const RequestRecord&)> finished = {});

  // `event`: arrived. With stages, the requests have their numbers in the order of arrival.
  void arrived(const Event& event);
  // `event`: finished, rejected or aborted.
  void ended(const Event& event);
  // `event`: store_done.
  void stored(const Event& event);
  // Closes the window of the last stage. Call this after the last event, before the figures are read.
  void finish();

  const CountingTerms& terms() const { return terms_; }
  // One entry for each stage that has begun; one entry without stages. If all requests count, the entry is empty.
  const std::vector<StageFigures>& stages() const { return stages_; }
  TimeNs window_ns() const;  // sum over the stages
  Rates rates() const;       // sum over the stages
  std::uint64_t left_out_as_warmup() const;
  std::uint64_t left_out_as_drain() const;

 private:
  struct End {
    EventKind kind = EventKind::finished;
    Reason reason = Reason::none;
    TimeNs time = 0;
    RequestRecord record;
  };
  struct Work {
    TimeNs time = 0;  // of its end
    Rates done;
  };
  void count(const End& end);
  void rate(TimeNs time, const Rates& done);

  CountingTerms terms_;
  RequestFigures& all_;
  const CostModel* cost_;
  std::function<void(const RequestRecord&)> finished_;
  std::vector<StageFigures> stages_{1};
  std::uint64_t first_of_next_stage_ = 0;  // request number; 0 = no further stage
  bool has_arrival_ = false;               // a request of the stage has arrived
  std::uint64_t ended_ = 0;                // requests of the stage
  std::vector<End> held_;                  // without the drain: ended since the last arrival
  std::vector<Work> held_work_;            // closed loops: ended since the end of the window so far
};

}  // namespace kvtwin
