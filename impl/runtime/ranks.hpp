// The tensor-parallel ranks of one engine. Each rank is a process with a device and a policy of its own. Ranks exchange
// minima over a few integers, and short reports to rank 0. mpi_ranks.hpp implements the interface with MPI; tests use
// threads.
//
// Channels are independent: a rank may be in one call per channel at the same time, with one thread per channel. The
// k-th calls of all ranks on a channel belong together. Each returns after all ranks have entered.
// Requires: the k-th calls of all ranks have equally many values. barrier(), gather() and share() are calls on the
// channel `run`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvtwin {

enum class RankChannel : std::uint8_t {
  run,         // progress of each rank; the serving thread calls
  reductions,  // the policy's reductions, one per scheduler step
  passes,      // steps of forward passes; the compute thread calls
};
constexpr std::size_t kRankChannels = 3;

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t size() const = 0;
  // Returns the number of ranks on this machine, this one included.
  virtual std::size_t size_here() const = 0;
  // Returns this rank's number among the ranks on this machine.
  virtual std::size_t rank_here() const = 0;

  // Replaces `values` by the elementwise minimum over all ranks. Returns false if a rank has left; `values` are then
  // undefined.
  virtual bool minimum(RankChannel channel, std::span<std::int64_t> values) = 0;
  // Returns the bytes of all ranks, by rank, on rank 0, and an empty list on the other ranks. If a rank has left, also
  // rank 0 gets an empty list.
  virtual std::vector<std::string> gather(const std::string& bytes) = 0;
  // Returns the bytes of all ranks, by rank, on every rank; an empty list if a rank has left.
  virtual std::vector<std::string> share(const std::string& bytes) = 0;
  // This rank leaves the group, even in the middle of a call: no rank waits for this rank any more, and this rank waits
  // for no other. Processes end all ranks at once with exit code `code`, unless mpirun goes on without processes that
  // have failed (--enable-recovery); the call does not return then.
  // Thread: any thread, any number of times.
  virtual void leave(int code) = 0;

  // From now on, calls `ended` once for each other process of this machine that ends or has ended, on a thread of its
  // own; empty: no more. Returns after a call that is in progress. All processes call it first with a function.
  virtual void watch(std::function<void(std::size_t process)> /*ended*/) {}
  // Ends this process at once, like a kill.
  virtual void end_self() { leave(1); }
  // Ends all processes, as leave() does, but also if mpirun shall go on without processes that have failed.
  virtual void end_run(int code) { leave(code); }

  // These processes have ended. From now on, the channel `run` has the others only; gather() returns empty bytes in
  // their place. Requires: rank 0 lives; all other processes call it with the same list.
  virtual void go_on_without(const std::vector<bool>& /*ended*/) {}

  bool barrier() {
    std::int64_t here = 0;
    return minimum(RankChannel::run, std::span(&here, 1));
  }
};

}  // namespace kvtwin
