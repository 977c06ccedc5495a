// A real run of several processes, seen from one of them: the ranks of one engine, or the ranks of several engines
// (real_engines.hpp), which are numbered through and all called ranks here. All ranks continue together, or end
// together with one exit code, and with one sentence if possible.
//
// Before and after the requests are served, the ranks meet and exchange their errors. If a rank has an error, rank 0
// prints the errors, and all ranks end with the same exit code. An error that all ranks have is printed once. While
// requests are served, the ranks do not meet: a rank with an error prints the error itself and ends the other ranks.
//
// A rank of this machine that dies ends the run: the first of the others prints who has died. Only while several
// engines serve, the others may go on (on_death). A death after the last exchange of errors changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "impl/runtime/ranks.hpp"
#include "lab/error.hpp"

namespace kvtwin {

// What a rank does after the death of another one.
enum class AfterDeath : std::uint8_t { goes_on, ends_itself, ends_run };

class RealRanks {
 public:
  // `say` receives the error sentences; may be empty. Requires: `group` outlives this object.
  RealRanks(RankGroup& group, std::function<void(const std::string& sentence)> say);
  ~RealRanks();
  RealRanks(const RealRanks&) = delete;
  RealRanks& operator=(const RealRanks&) = delete;

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
  // From now on, `died` is called with each rank that dies, on a thread of its own.
  void on_death(std::function<AfterDeath(std::size_t rank)> died);
  // on_death() ends. These ranks have died, and take no part in what follows. All others call it with the same list.
  void go_on_without(const std::vector<bool>& dead);
  // Returns the bytes of all ranks, in their order, on rank 0; an empty vector on the other ranks.
  std::vector<std::string> gather(const std::string& bytes) { return group_.gather(bytes); }
  // Prints a sentence of this rank.
  void say(const std::string& sentence) const {
    if (say_) say_(sentence);
  }

 private:
  enum class Phase : std::uint8_t { serves, reports, over };
  void settle(const Ending& ours);
  void enter(Phase phase);
  void died(std::size_t rank);
  void end_run_without(std::size_t rank);

  RankGroup& group_;
  std::function<void(const std::string&)> say_;
  std::size_t per_engine_ = 0;  // 0: one engine

  std::mutex mutex_;  // of the members below
  Phase phase_ = Phase::serves;
  std::function<AfterDeath(std::size_t)> on_death_;
  std::vector<bool> dead_, expected_;  // died; may be dead, because the run goes on without them
};

}  // namespace kvtwin
