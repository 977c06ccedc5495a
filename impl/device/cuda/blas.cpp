#include "impl/device/cuda/blas.hpp"

#include <stdexcept>
#include <vector>

#include "impl/runtime/shared_library.hpp"

// Declares the used part of cuBLAS's binary interface. If cuBLAS's header is present, the build compares the constants.
#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define KV_CUBLAS_HEADER 1
#endif

namespace kvtwin {
namespace {

constexpr int kNoTranspose = 0;  // CUBLAS_OP_N
constexpr int kBf16 = 14;        // CUDA_R_16BF
constexpr int kSumInFloat = 68;  // CUBLAS_COMPUTE_32F
constexpr int kAnyAlgorithm = -1;
#ifdef KV_CUBLAS_HEADER
static_assert(kNoTranspose == CUBLAS_OP_N && kBf16 == CUDA_R_16BF && kSumInFloat == CUBLAS_COMPUTE_32F &&
              kAnyAlgorithm == CUBLAS_GEMM_DEFAULT && CUBLAS_STATUS_SUCCESS == 0);
#endif

using Create = int (*)(void** handle);
using Destroy = int (*)(void* handle);
using SetStream = int (*)(void* handle, cudaStream_t stream);
using SetWorkspace = int (*)(void* handle, void* memory, std::size_t bytes);
using Gemm = int (*)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
                     int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c,
                     int ldc, int compute, int algorithm);
using StatusText = const char* (*)(int status);

// The linker's search path, then the toolkit's folder.
std::vector<std::string> blas_places() {
  const std::string name = "libcublas.so." + std::to_string(CUDART_VERSION / 1000);
  return {name, "/usr/local/cuda/lib64/" + name};
}

}  // namespace

struct Blas::Library {
  explicit Library(const std::vector<std::string>& places)
      : file("cuBLAS", places, "install the CUDA toolkit's libcublas, or put it into LD_LIBRARY_PATH") {
    must(create(&handle), "cublasCreate");
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { destroy(handle); }

  void must(int status, const char* what) const {
    if (status != 0) throw std::runtime_error(std::string(what) + " of " + file.name() + " failed: " + text(status));
  }

  const SharedLibrary file;
  const Create create = file.find<Create>("cublasCreate_v2");
  const Destroy destroy = file.find<Destroy>("cublasDestroy_v2");
  const SetStream set_stream = file.find<SetStream>("cublasSetStream_v2");
  const SetWorkspace set_workspace = file.find<SetWorkspace>("cublasSetWorkspace_v2");
  const Gemm gemm = file.find<Gemm>("cublasGemmEx");
  const StatusText text = file.find<StatusText>("cublasGetStatusString");
  void* handle = nullptr;
  cudaStream_t stream = nullptr;  // stream of the handle
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

Blas::Blas(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Blas::~Blas() = default;

std::unique_ptr<Blas> Blas::load(const std::string& library) {
  const auto places = library.empty() ? blas_places() : std::vector<std::string>{library};
  return std::unique_ptr<Blas>(new Blas(std::make_unique<Library>(places)));
}

void Blas::use_workspace(void* memory, std::size_t bytes) {
  library_->workspace = memory;
  library_->workspace_bytes = bytes;
  library_->stream = nullptr;
}

void Blas::product(void* c, const void* a, const void* b, int m, int n, int k, cudaStream_t stream) {
  Library& l = *library_;
  if (stream != l.stream) {
    l.must(l.set_stream(l.handle, stream), "cublasSetStream");
    // A change of the stream makes cuBLAS forget the workspace.
    if (l.workspace != nullptr) {
      l.must(l.set_workspace(l.handle, l.workspace, l.workspace_bytes), "cublasSetWorkspace");
    }
    l.stream = stream;
  }
  const float one = 1, zero = 0;
  // cuBLAS uses column-major matrices. For cuBLAS these are the transposed matrices, and c' = b' * a'.
  l.must(l.gemm(l.handle, kNoTranspose, kNoTranspose, n, m, k, &one, b, kBf16, n, a, kBf16, k, &zero, c, kBf16, n,
                kSumInFloat, kAnyAlgorithm),
         "cublasGemmEx");
}

}  // namespace kvtwin
