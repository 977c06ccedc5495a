// How far from optimal a run's hits are: it looks on while the run is served, and then reckons what could have been
// hit of the same prompts, in the order in which they were admitted.
//
// The bound is opt_hits (sim/bound_opt.hpp) for one cache of all tiers of all engines together, that holds a page once
// and needs no room for anything else: generated pages, copies, what is on its way. No run of the simulator hits more.
// LRU is that of the same cache. What their hits would have saved is of these very hits: no bound, as hits of the same
// number elsewhere may save more. Generated pages are private to their requests, so they are hit by none.
//
// Memory: about 80 bytes a distinct full page of the prompts.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/cost.hpp"
#include "policy/decision.hpp"
#include "policy/substrate.hpp"
#include "sim/bound_opt.hpp"

namespace kvtwin {

class HitBounds final : public InputHandler, public DecisionSink {
 public:
  // To be told every engine's inputs and decisions, or those of one rank of ranks that decide alike.
  explicit HitBounds(Tokens page_tokens) : page_tokens_(page_tokens) {}

  void handle(const Input& input) override;
  void decided(const Decision& decision) override;

  struct HitTokens {
    Tokens opt = 0, lru = 0;
    TimeNs opt_saved_ns = 0, lru_saved_ns = 0;  // cli/saved_time.hpp; 0 without a cost model
  };
  // Once, when the run is over.
  HitTokens hit_tokens(Pages capacity, const CostModel* cost = nullptr);

 private:
  struct Prompt {
    std::uint32_t logged = 0;     // number in the log, if it has a page
    std::uint32_t countable = 0;  // a prompt's last token is always computed
    Tokens tokens = 0;
    bool has_pages = false, admitted = false;
  };

  Tokens page_tokens_;
  RequestLog log_;
  std::vector<Prompt> prompts_;  // by request
  std::vector<Turn> turns_;
  std::vector<RequestId> requests_;  // by turn
};

}  // namespace kvtwin
