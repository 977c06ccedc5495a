// Matrix products on a GPU by cuBLAS, which is loaded when it is first wanted: the program starts, and runs without a
// GPU, where there is none. No header of cuBLAS is needed to build this.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

namespace kvtwin {

class Blas {
 public:
  // The library of the CUDA version that this was compiled for, unless `library` names another file. A handle on the
  // current device: cuBLAS takes GPU memory for it. std::runtime_error, one sentence: what was tried, and why it
  // failed.
  static std::unique_ptr<Blas> load(const std::string& library = "");
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // c[m][n] = a[m][k] * b[k][n]: row-major bf16 in GPU memory, 16-byte aligned, summed up as floats. Queued on
  // `stream`; returns at once. Not for two threads at once. std::runtime_error with cuBLAS's text if it says no.
  void product(void* c, const void* a, const void* b, int m, int n, int k, cudaStream_t stream);

 private:
  struct Library;
  explicit Blas(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace kvtwin
