#include "impl/runtime/mpi_call.hpp"

#define OMPI_SKIP_MPICXX 1  // leaves out MPI's C++ bindings
#include <mpi.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "impl/runtime/launcher.hpp"

namespace kvtwin {

void abort_mpi(const std::string& sentence) {
  int process = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  std::fprintf(stderr, "kvtwin: rank %d: %s\n", process, sentence.c_str());
  end_launcher();
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

void must_mpi(int result, const char* function) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  abort_mpi(std::string(function) + " failed: " + text.data());
}

}  // namespace kvtwin
