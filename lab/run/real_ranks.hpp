// A real run of several ranks, from the side of one of its processes: how they go on together, or end together with
// one exit code and, where that can be, one sentence.
//
// Until the requests are served, and after that, the ranks meet: each brings what has gone wrong on it. If anything
// has, rank 0 says it and all end alike; what every rank complains of is said once. While requests are served nobody
// meets: who fails there says so itself and ends the others.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "impl/runtime/ranks.hpp"
#include "lab/error.hpp"

namespace kvtwin {

class RealRanks {
 public:
  // `say` gets the sentences of what went wrong; may be empty.
  RealRanks(RankGroup& group, std::function<void(const std::string& sentence)> say)
      : group_(group), say_(std::move(say)) {}

  RankGroup& group() { return group_; }
  std::size_t rank() const { return group_.rank(); }
  bool leads() const { return rank() == 0; }

  // All of this rank's work; within it the rank meets the others as often as each of them does. AlreadySaid when it
  // fails on any rank.
  void run(const std::function<void()>& work);
  // All have come this far without a fault; else AlreadySaid.
  void meet() { settle({}); }
  // All meet, then serve. Meetings come after it on all ranks, or never.
  void serve(const std::function<void()>& work);
  // Everyone's, by rank, on rank 0; nothing elsewhere.
  std::vector<std::string> gather(const std::string& bytes) { return group_.gather(bytes); }

 private:
  void settle(const Ending& ours);
  void say(const std::string& sentence) const {
    if (say_) say_(sentence);
  }

  RankGroup& group_;
  std::function<void(const std::string&)> say_;
};

}  // namespace kvtwin
