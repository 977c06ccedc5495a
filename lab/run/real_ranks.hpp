// A real run of several processes, seen from one of them: the ranks of one engine, or the ranks of several engines
// (real_engines.hpp), which are numbered through and all called ranks here. All ranks continue together, or end
// together with one exit code, and with one sentence if possible.
//
// Before and after the requests are served, the ranks meet and exchange their errors. If a rank has an error, rank 0
// prints the errors, and all ranks end with the same exit code. An error that all ranks have is printed once. While
// requests are served, the ranks do not meet: a rank with an error prints the error itself and ends the other ranks.
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
  // `say` receives the error sentences; may be empty. Requires: `group` outlives this object.
  RealRanks(RankGroup& group, std::function<void(const std::string& sentence)> say)
      : group_(group), say_(std::move(say)) {}

  // For a run of several engines: each has so many ranks.
  void set_ranks_per_engine(std::size_t ranks) { per_engine_ = ranks; }

  // Returns the number of ranks of one engine.
  std::size_t ranks_per_engine() const { return per_engine_ == 0 ? group_.size() : per_engine_; }

  RankGroup& group() { return group_; }
  std::size_t rank() const { return group_.rank(); }
  bool leads() const { return rank() == 0; }
  // Returns the name of a process for sentences: "rank 1"; of several engines "engine 1" or "engine 1, rank 0".
  std::string name_of(std::size_t process) const;

  // Runs all work of this rank. Requires: all ranks call meet() and serve() in the same order within `work`.
  // Errors: AlreadySaid if the work fails on any rank.
  void run(const std::function<void()>& work);
  // Waits for all ranks. Errors: AlreadySaid if a rank has an error.
  void meet() { settle({}); }
  // Meets, then runs `work`, in which the ranks do not meet. Errors: AlreadySaid.
  void serve(const std::function<void()>& work);
  // Returns the bytes of all ranks, in their order, on rank 0; an empty vector on the other ranks.
  std::vector<std::string> gather(const std::string& bytes) { return group_.gather(bytes); }
  // Prints a sentence of this rank.
  void say(const std::string& sentence) const {
    if (say_) say_(sentence);
  }

 private:
  void settle(const Ending& ours);

  RankGroup& group_;
  std::function<void(const std::string&)> say_;
  std::size_t per_engine_ = 0;  // 0: one engine
};

}  // namespace kvtwin
