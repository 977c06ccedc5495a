// The figures of a run for report.json: sums and quantiles over the engine's events, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "lab/report/request_figures.hpp"
#include "lab/report/server_metrics.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

// Engines, by their numbers. All, unless given.
struct EngineRange {
  std::size_t first = 0, end = SIZE_MAX;
  bool contains(std::size_t engine) const { return first <= engine && engine < end; }
};

// The members of RequestFigures count the requests that the terms select; all other members are of the whole run.
class Metrics final : public Observer, public RequestFigures {
 public:
  // Events go on to `next`, which may be null. `cost` (may be null) gives the time that hits save. `counted`, which may
  // be empty, receives the record of each completed request that counts.
  explicit Metrics(Observer* next = nullptr, const CostModel* cost = nullptr, CountingTerms terms = {},
                   std::function<void(const RequestRecord&)> counted = {})
      : next_(next), cost_(cost), counter_(std::move(terms), *this, cost, std::move(counted)) {}
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  void on_event(const Event& event) override;
  // The engine has died: its open prefetches end here, because it sends no event any more.
  void engine_lost(std::size_t engine);
  // Call this after the last event, before the figures are read.
  void finish() { counter_.finish(); }
  const RequestCounter& counter() const { return counter_; }
  // Returns the rates of the window that counter() gives them, or of the whole run of `run` nanoseconds.
  // Requires: finish() was called.
  Rates rates(TimeNs run) const;

  struct TierUse {
    Pages evicted = 0, written = 0;
    // By reason: pages that were not written for lack of room or after a failure, and evicted pages without a copy.
    std::map<std::string_view, Pages> dropped;
  };

  std::uint64_t sent = 0, served = 0;  // requests that arrived and that completed, of the whole run
  Tokens hits_of_run = 0;              // prompt tokens of all completed requests that were hit
  bool weighs_hits() const { return cost_ != nullptr; }
  std::uint64_t retractions = 0, prefill_passes = 0, decode_passes = 0, decode_steps = 0;
  Tokens prefill_tokens = 0;
  PerTier<TierUse> tiers;
  // Slots, by Event::pool and engine; of pool 0 also in `tiers`.
  std::map<std::tuple<Tier, std::uint8_t, std::size_t>, Pages> evicted_of_pools;
  Pages evicted_slots(Tier tier, std::uint8_t pool, EngineRange engines = {}) const;
  std::map<std::pair<Tier, std::uint8_t>, Pages> stored_of_pools;  // objects, by Event::pool
  TierUse& tier(Tier which) { return tiers[which]; }
  const TierUse& tier(Tier which) const { return tiers[which]; }
  struct Prefetches {
    // An issued prefetch ends in one of the ways below, or is still open (policy/prefetch/prefetch.hpp). The death of
    // its engine is an end too.
    std::uint64_t issued = 0, completed = 0, failed = 0, stopped = 0, revoked = 0, aborted = 0, engine_lost = 0;
    std::set<std::pair<std::size_t, RequestId>> open;  // with the engine: a request that is sent again may have several
    bool add_up() const {
      return issued == completed + failed + stopped + revoked + aborted + engine_lost + open.size();
    }
    std::map<std::string_view, std::uint64_t> declined, revoked_reasons;
    Pages arrived = 0, used = 0, shortened = 0;
    std::map<std::string_view, Pages> wasted;  // arrived pages that were not kept
    // Pages that arrived, without the ones that came after a stop and were dropped: SGLang's count.
    Pages arrived_in_time() const {
      const auto late = wasted.find(name_of(Reason::stopped));
      return arrived - (late == wasted.end() ? 0 : late->second);
    }
  } prefetches;
  // Hints that the cache obeys (policy/cache/holds.hpp).
  struct Holds {
    std::uint64_t begun = 0, refused = 0;                     // moves of a hold with its session count
    std::map<std::string_view, std::uint64_t> ended;          // by reason; none: by a hint
    std::map<std::pair<std::size_t, Tier>, Pages> pages_max;  // by engine
    Pages most(Tier tier) const;                              // of all engines
  } holds;
  Pages stores_retried = 0;
  TimeNs stores_awaited_ns = 0;  // time in which writes to storage kept requests from being admitted, of all engines
  struct Shortfall {
    Pages pages = 0;
    TimeNs longest_ns = 0;  // the longest of these operations
  };
  // Pages that storage operations did not move, by cause.
  PerTier<std::map<std::string_view, Shortfall>> fell_short;
  std::map<std::string_view, Pages> fell_short_of_all() const;
  Pages backups_retried = 0;
  // Of requests that were rejected because they are too long; most_kv: KV with the answer.
  struct RejectedPrompts {
    Tokens shortest = 0, longest = 0, most_kv = 0;
  } rejected_prompts;
  std::uint64_t backups_awaited = 0;  // steps in which a request waited for a write-back to make room
  struct Loads {
    Pages done = 0, failed = 0;
    std::map<std::string_view, Pages> declined;
  } loads;
  TimeNs first_arrival = 0, last_arrival = 0;
  WaitTrend waits;  // of the whole run
  ServerMetrics server;

 private:
  void evicted(const Event& event);
  void count_storage(const Event& event);
  void count_prefetch(const Event& event);
  void end_prefetch(const Event& event, std::uint64_t& way);

  std::map<std::size_t, TimeNs> awaits_since_;  // by engine
  Observer* next_;
  const CostModel* cost_;
  RequestCounter counter_;
};

}  // namespace kvtwin
