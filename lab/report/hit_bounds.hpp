// How far from optimal a run's hits are: it looks on while the run is served, and then reckons what could have been
// hit of the same prompts, in the order in which they were admitted, and what that could have saved.
//
// The bound of hits is opt_hits (sim/bounds/opt.hpp) for one cache of all tiers of all engines together, that holds a
// page once and needs no room for anything else: generated pages, copies, what is on its way. No run of the simulator
// hits more. LRU is that of the same cache. Generated pages are private to their requests, so they are hit by none.
//
// What a hit saves is reckoned, not measured, so that a run and its bound are comparable: the time in which the cost
// model computes the prompt alone, less that for what is left of it, less what loading the hits takes at their tier's
// rate (TierWorth). The bound is opt_tiers (sim/bounds/tiers.hpp) for the engines' tiers together. Prefetches bring
// pages nearer before their request is admitted, and others may hit them there: where one does, the prefetch counts as
// a use of those pages.
//
// Memory: about 80 bytes a distinct full page of the prompts, 80 a request.
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

// A tier of all engines together.
struct TierWorth {
  Tier tier = Tier::device;
  Pages pages = 0;
  std::uint64_t load_ps = 0;  // loading a token from it when nothing else does, never more than from a farther one
};

// Those that there are, nearest first: the host's by the link's rate; storage's by reading a batch, and by the host's
// unless it is read past that.
std::vector<TierWorth> tier_worths(const Setup& setup);

class HitBounds final : public InputHandler, public DecisionSink, public Observer {
 public:
  // Above so many admissions no bound of what is saved is reckoned. So many take about 10 s a tier, twice as many four
  // times as long.
  static constexpr std::size_t kSavedMost = 50'000;

  // To be told every engine's inputs, decisions and events, or those of one rank of ranks that decide alike. `cost`
  // outlives it; events go on to `next`, which may be null.
  HitBounds(Tokens page_tokens, std::vector<TierWorth> tiers, const CostModel& cost, Observer* next = nullptr);

  void handle(const Input& input) override;
  void decided(const Decision& decision) override;
  void on_event(const Event& event) override;

  struct Found {
    Tokens opt = 0, lru = 0;              // hits
    TimeNs opt_saved = 0, lru_saved = 0;  // computing, by these very hits: no bound, as others may save more
    TimeNs saved = 0;                     // less loading; by the run, of requests that finished
    std::optional<TimeNs> saved_most;     // likewise; nothing saves more
  };
  // When the run is over.
  Found reckon() const;

 private:
  struct Prompt {
    std::uint32_t logged = 0;     // number in the log, if it has a page
    std::uint32_t countable = 0;  // a prompt's last token is always computed
    std::uint32_t prefetched_from = 0;
    bool has_pages = false, admitted = false;
  };

  void admitted(RequestId request);
  TimeNs saved_most(const Future& all) const;

  Tokens page_tokens_;
  std::vector<TierWorth> tiers_;
  const CostModel& cost_;
  Observer* next_;
  RequestLog log_;
  std::vector<Prompt> prompts_;        // by request
  std::vector<Tokens> logged_tokens_;  // by number in the log
  std::vector<Turn> turns_;
  std::vector<Turn> near_turns_;     // and prefetches that others may have hit what they brought
  std::set<RequestId> brought_for_;  // waiting requests that a prefetch has brought pages for
  __extension__ __int128 saved_ps_ = 0;
};

}  // namespace kvtwin
