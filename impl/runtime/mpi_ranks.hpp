// Ranks as the processes of one mpirun.
//
// A waiting call polls and sleeps in turn, because the machine may have fewer cores than ranks. A call that waits for
// more than ten minutes ends the run: a missing rank has hung, or has taken a different decision.
#pragma once

#include <memory>

#include "impl/runtime/ranks.hpp"

namespace kvtwin {

// Returns this process's rank. A process without mpirun is a group of one. Requires: once per process; the same thread
// later deletes the group. The group ends when all ranks have deleted it.
// Errors: std::runtime_error if this MPI does not support several threads. Any other MPI error, now or later, prints a
// sentence on stderr and ends all ranks.
std::unique_ptr<RankGroup> join_mpi_ranks();

}  // namespace kvtwin
