#include "cli/hit_bounds.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "cli/saved_time.hpp"
#include "policy/check.hpp"

namespace kvtwin {

void HitBounds::handle(const Input& input) {
  const auto* const arrival = std::get_if<Arrival>(&input.what);
  if (arrival == nullptr) return;
  if (arrival->request >= prompts_.size()) prompts_.resize(arrival->request + 1);
  Prompt& prompt = prompts_[arrival->request];
  const auto pages = arrival->keys.first(std::min<Pages>(arrival->keys.size(), arrival->prompt_tokens / page_tokens_));
  if (!pages.empty()) {
    prompt.has_pages = true;
    prompt.tokens = arrival->prompt_tokens;
    prompt.logged = static_cast<std::uint32_t>(log_.requests());
    prompt.countable =
        static_cast<std::uint32_t>(std::min<Pages>(pages.size(), (arrival->prompt_tokens - 1) / page_tokens_));
    log_.add(pages);
  }
}

void HitBounds::decided(const Decision& decision) {
  if (decision.kind != DecisionKind::admit) return;
  Prompt& prompt = prompts_[decision.request];
  // After a retraction it is at work again, and what it finds then is no hit in the report.
  if (prompt.has_pages) {
    turns_.push_back({prompt.logged, prompt.admitted ? 0 : prompt.countable});
    requests_.push_back(decision.request);
  }
  prompt.admitted = true;
}

HitBounds::HitTokens HitBounds::hit_tokens(Pages capacity, const CostModel* cost) {
  const Future future(std::move(log_), turns_);
  HitTokens sums;
  const auto add = [&](const std::vector<std::uint32_t>& hits, Tokens& tokens, TimeNs& saved_ns) {
    for (std::size_t turn = 0; turn < hits.size(); ++turn) {
      const Tokens hit = hits[turn] * page_tokens_;
      tokens += hit;
      if (cost != nullptr) saved_ns += prefill_saved_ns(*cost, prompts_[requests_[turn]].tokens, hit);
    }
  };
  add(opt_hits(future, capacity), sums.opt, sums.opt_saved_ns);
  add(lru_hits(future, capacity), sums.lru, sums.lru_saved_ns);
  return sums;
}

}  // namespace kvtwin
