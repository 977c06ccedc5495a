// Matrix products on a GPU with cuBLAS. The library is loaded at its first use, so the program also starts on machines
// without a GPU. The build needs no header of cuBLAS.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

namespace kvtwin {

class Blas {
 public:
  // Loads cuBLAS of the CUDA version of this build, or the file `library`, and creates a handle on the current device.
  // cuBLAS allocates GPU memory for the handle.
  // Errors: std::runtime_error, one sentence: the attempts and the reason.
  static std::unique_ptr<Blas> load(const std::string& library = "");
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Products use this GPU memory (256-byte aligned) in place of memory of the handle. It outlives this object.
  void use_workspace(void* memory, std::size_t bytes);

  // Computes c[m][n] = a[m][k] * b[k][n]: row-major bf16 in GPU memory, 16-byte aligned, sums in float. Queues the work
  // on `stream` and returns at once. Thread: one at a time. Errors: std::runtime_error with cuBLAS's text.
  void product(void* c, const void* a, const void* b, int m, int n, int k, cudaStream_t stream);

 private:
  struct Library;
  explicit Blas(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace kvtwin
