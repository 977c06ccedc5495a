// The tensor-parallel ranks of one engine, each a process of its own with a device and a policy, and what they say to
// each other: minima over a few integers, and short reports to rank 0. By MPI in mpi_ranks.hpp; tests have threads.
//
// Channels are independent of each other: a rank may be in one call on each at the same time, from one thread each.
// The k-th call of each rank on a channel belong together, and have equally many values; each returns when all ranks
// have entered. barrier() and gather() are calls on the channel `run`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvtwin {

enum class RankChannel : std::uint8_t {
  run,         // how far each has come: the thread that serves
  reductions,  // the policy's, one a scheduler step
  passes,      // the steps of forward passes: the compute thread
};
constexpr std::size_t kRankChannels = 3;

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual std::size_t rank() const = 0;
  virtual std::size_t size() const = 0;
  // How many of them share this machine, this one too.
  virtual std::size_t size_here() const = 0;
  // Its place among those.
  virtual std::size_t rank_here() const = 0;

  // Puts the elementwise minimum over all ranks into `values`. False: a rank has left; `values` hold anything.
  virtual bool minimum(RankChannel channel, std::span<std::int64_t> values) = 0;
  // Rank 0 gets everyone's, by rank; the others nothing. So does rank 0 when a rank has left.
  virtual std::vector<std::string> gather(const std::string& bytes) = 0;
  // This rank leaves, whatever it was in: nobody waits for it any more, or for anybody. Any thread; more than once too.
  // Processes end all of them at once with exit code `code`, and this doesn't return.
  virtual void leave(int code) = 0;

  bool barrier() {
    std::int64_t here = 0;
    return minimum(RankChannel::run, std::span(&here, 1));
  }
};

}  // namespace kvtwin
