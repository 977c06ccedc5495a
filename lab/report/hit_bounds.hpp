// Bounds of a run's hits: the hits that an optimal cache and LRU have on the same prompts in the same order of
// admission, and the time that these hits save. Observes the run, and computes the bounds at the end.
//
// Bound of the hits: opt_hits (sim/bounds/opt.hpp) for one cache as large as all tiers of all engines together. This
// cache holds each page once, and needs no room for generated pages, second copies or transfers. No simulated run hits
// more. The LRU figure is for the same cache. Generated pages are private to their requests, so no request hits them,
// unless the trace has the keys of an answer: its pages count as used by the request.
//
// Models with recurrent states also have a bound by the number of states that all tiers of all engines hold
// (sim/bounds/states.hpp). It bounds a run in which every hit ends at a state, that is SGLang's form of the pools. The
// smaller one of both holds.
//
// Saved time is computed by the cost model and not measured, so that a run and its bound are comparable: the time of
// the prompt computed alone, minus the time of the prompt without its hits, minus the load of the hits at the rate of
// their tier (TierWorth). The bound of the saved time is opt_tiers (sim/bounds/tiers.hpp) for the tiers of all engines
// together. A prefetch may move pages nearer before its request is admitted, and another request may hit these pages.
// In this case the prefetch counts as a use of the pages.
//
// Only hits and saved time of the requests that count are bounded, for example of the warm part of a run. The caches of
// the bounds also serve all other requests.
//
// Cost: about 80 bytes of memory per distinct full page of the prompts, and 120 bytes per request.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "lab/experiment/setup.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"
#include "sim/bounds/opt.hpp"

namespace kvtwin {

// A tier, for all engines together.
struct TierWorth {
  Tier tier = Tier::device;
  Pages pages = 0;
  std::uint64_t load_ps = 0;  // time to load one token if nothing else uses the tier; at most that of the next tier
};

// Returns the tiers of the experiment, nearest first. The load time of the host is the link's. The load time of a
// storage tier is the read of one batch, plus the link's unless cache.path bypasses the host.
std::vector<TierWorth> tier_worths(const Setup& setup);
// Returns the states that the pools of all engines hold on L1 and L2; 0 if hits need no state, and with storage tiers,
// which hold as many as fit.
Pages states_of(const Setup& setup);

class HitBounds final : public InputHandler, public DecisionSink, public Observer {
 public:
  // With more admissions there is no bound of the saved time. Its cost is quadratic: about 10 s per tier for this
  // number of admissions.
  static constexpr std::size_t kMaxAdmissionsForSaved = 50'000;

  // Requires: handle(), decided() and on_event() receive the inputs, decisions and events of every engine; of several
  // ranks, those of one rank. `cost` outlives this object. Events go on to `next`, which may be null.
  // `states`: of all tiers of all engines; 0: hits need no state.
  HitBounds(Tokens page_tokens, std::vector<TierWorth> tiers, Pages states, const CostModel& cost,
            Observer* next = nullptr);

  void handle(const Input& input) override;
  void decided(const Decision& decision) override;
  void on_event(const Event& event) override;

  struct Found {
    Tokens opt = 0, lru = 0;              // hits
    std::optional<Tokens> with_states;    // at most `opt`; empty if hits need no state
    TimeNs opt_saved = 0, lru_saved = 0;  // prefill time that these hits save. No bound: other hits may save more
    TimeNs saved = 0;                     // by the run, minus loads; of requests that finished
    std::optional<TimeNs> saved_most;     // upper bound of `saved`
  };
  // `counted`: the requests that count; null: all. Requires: the run has ended.
  Found reckon(const std::vector<RequestId>* counted = nullptr) const;

 private:
  struct Prompt {
    std::uint32_t logged = 0;     // number in log_, if the prompt has a full page
    std::uint32_t countable = 0;  // pages that can be hit: the last token of a prompt is always computed
    std::uint32_t prefetched_from = 0;
    bool has_pages = false, admitted = false;
  };

  struct Saved {
    RequestId request = 0;
    __extension__ __int128 ps = 0;
  };

  void admitted(RequestId request);
  // Returns the turns; those of requests that do not count have no counted page. `counts`: by request; empty: all do.
  std::vector<Turn> counted(const std::vector<Turn>& turns, const std::vector<bool>& counts) const;
  TimeNs saved_most(const Future& all, const Future& near) const;

  Tokens page_tokens_;
  std::vector<TierWorth> tiers_;
  const Pages states_;
  const CostModel& cost_;
  Observer* next_;
  RequestLog log_;
  std::vector<Prompt> prompts_;        // by request
  std::vector<Tokens> logged_tokens_;  // by number in log_
  std::vector<RequestId> requests_;    // by number in log_
  std::vector<std::uint32_t> ends_;    // by number in log_: the last turn before the request ended
  std::vector<Turn> turns_;
  std::vector<Turn> near_turns_;     // also prefetches whose pages another request may have hit
  std::set<RequestId> brought_for_;  // waiting requests with prefetched pages
  std::vector<Saved> saved_;         // by requests that finished
};

}  // namespace kvtwin
