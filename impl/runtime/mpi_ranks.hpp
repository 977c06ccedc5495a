// Ranks as the processes of one mpirun.
//
// A waiting call polls and sleeps in turn, because the machine may have fewer cores than ranks. A call that waits for
// more than ten minutes ends the run: a missing rank has hung, or has taken a different decision. A process of this
// machine that dies is known at once (RankGroup::watch); until the processes know each other, StartWatch ends the run
// (launcher.hpp).
#pragma once

#include <cstddef>
#include <memory>

#include "impl/runtime/mail.hpp"
#include "impl/runtime/ranks.hpp"

namespace kvtwin {

// Returns this process's rank. A process without mpirun is a group of one. `all`: the processes that the run needs; the
// group may have another size. Requires: once per process; the same thread later deletes the group, when all work of
// all ranks is done. The group ends when all ranks have deleted it; a rank that dies before that is not waited for.
// Errors: std::runtime_error if this MPI does not support several threads. Any other MPI error, now or later, prints a
// sentence on stderr and ends all ranks.
std::unique_ptr<RankGroup> join_mpi_ranks(std::size_t all);

// Returns the group of this process's engine, for a run of several engines: process e * ranks + r is rank r of engine
// e. size_here() and rank_here() count the processes of all engines. All processes call it, after join_mpi_ranks(), and
// delete their group before that one's. Requires: the number of processes is a multiple of `ranks`.
std::unique_ptr<RankGroup> join_engine_ranks(std::size_t ranks);

// Returns the mail of all processes of mpirun. All processes call it, after join_mpi_ranks(), and delete it before the
// group. An error of MPI prints a sentence on stderr and ends all processes.
std::unique_ptr<Mail> open_mpi_mail();

}  // namespace kvtwin
