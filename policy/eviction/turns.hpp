// Decides whether the request at work is the first turn of a conversation or a later turn. Traces may not say so, and
// an equal session number does not promise that the prompt continues. So a request counts as a later turn if at least
// half of its path was known before: is in the tier, or is remembered after its eviction.
#pragma once

#include <array>
#include <utility>

#include "policy/eviction.hpp"
#include "policy/eviction/ghosts.hpp"

namespace kvtwin {

class Turns {
 public:
  void visit(const Visit& visit, const Ghosts& gone) {
    at_ = &requests_[visit.request % requests_.size()];
    path_ = visit.keys.size();
    if (visit.further && at_->first == visit.request) return;
    const bool known = path_ > 0 && gone.remembers_last(visit.keys.first((path_ + 1) / 2));
    *at_ = {visit.request, known};
  }
  // The first call for a path has the path's last node, so the answer of later() is final after that call.
  void touched(const NodeFacts& facts) {
    if (2 * Pages{facts.depth_pages} >= path_) at_->second = true;
  }
  bool later() const { return at_->second; }

 private:
  // By number modulo 1024; an entry may be overwritten between two visits.
  std::array<std::pair<RequestId, bool>, 1024> requests_{};
  std::pair<RequestId, bool>* at_ = requests_.data();
  Pages path_ = 0;
};

}  // namespace kvtwin
