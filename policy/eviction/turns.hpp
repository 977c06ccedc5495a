// Is the request at work the first turn of a conversation or a later one? Traces need not say (a session number is no
// promise that the prompt goes on), so it is taken for a later one if at least half of its path was known before: is in
// the tier, or remembered of what was.
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
  // Of a path the last node is told first: by then it is decided.
  void touched(const NodeFacts& facts) {
    if (2 * Pages{facts.depth_pages} >= path_) at_->second = true;
  }
  bool later() const { return at_->second; }

 private:
  std::array<std::pair<RequestId, bool>, 1024> requests_{};  // some are forgotten between their visits
  std::pair<RequestId, bool>* at_ = requests_.data();
  Pages path_ = 0;
};

}  // namespace kvtwin
