// Calls of MPI that must succeed. A failed one ends all processes of the run.
#pragma once

#include <string>

namespace kvtwin {

// Prints one sentence with the number of this process, and ends all processes.
[[noreturn]] void abort_mpi(const std::string& sentence);
// `result`: of the MPI function that is named. Ends all processes unless it is MPI_SUCCESS.
void must_mpi(int result, const char* function);

}  // namespace kvtwin
