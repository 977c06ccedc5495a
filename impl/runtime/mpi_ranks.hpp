// Ranks as the processes that one mpirun started. A call that waits tests now and then and naps in between, because
// there may be fewer cores than ranks; one that waits for very long ends the run, as ranks that don't come have either
// hung or decided otherwise.
#pragma once

#include <memory>

#include "impl/runtime/ranks.hpp"

namespace kvtwin {

// Once a process, from the thread that later lets it go; a process without mpirun is a group of one. What MPI refuses
// then, and later, ends the run on all ranks with a sentence on stderr. The group ends when all ranks let it go.
// std::runtime_error if this MPI doesn't serve several threads.
std::unique_ptr<RankGroup> join_mpi_ranks();

}  // namespace kvtwin
