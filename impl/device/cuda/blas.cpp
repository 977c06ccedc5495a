#include "impl/device/cuda/blas.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <vector>

// What we use of cuBLAS's binary interface is declared here; where its header is at hand, its numbers are compared.
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
using Gemm = int (*)(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
                     int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c,
                     int ldc, int compute, int algorithm);
using StatusText = const char* (*)(int status);

std::string last_dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown" : text;
}

// The linker's search path, then where the toolkit puts itself.
std::vector<std::string> usual_places() {
  const std::string name = "libcublas.so." + std::to_string(CUDART_VERSION / 1000);
  return {name, "/usr/local/cuda/lib64/" + name};
}

}  // namespace

struct Blas::Library {
  std::string name;
  void* file = nullptr;
  void* handle = nullptr;
  Create create = nullptr;
  Destroy destroy = nullptr;
  SetStream set_stream = nullptr;
  Gemm gemm = nullptr;
  StatusText text = nullptr;
  cudaStream_t stream = nullptr;  // that the handle works on

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle != nullptr) destroy(handle);
    if (file != nullptr) dlclose(file);
  }

  void open(const std::vector<std::string>& places) {
    std::string tried;
    for (const std::string& place : places) {
      // Never unloaded: libraries of CUDA have threads and exit handlers of their own.
      file = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (file != nullptr) {
        name = place;
        return;
      }
      tried += (tried.empty() ? "" : "; ") + last_dl_error();
    }
    throw std::runtime_error("cuBLAS can't be loaded (" + tried +
                             "); install the CUDA toolkit's libcublas, or put it " + "into LD_LIBRARY_PATH");
  }
  template <typename Function>
  void find(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(file, symbol));
    if (function == nullptr) throw std::runtime_error(name + " has no " + symbol + ": it isn't the cuBLAS we know");
  }
  void must(int status, const char* what) const {
    if (status != 0) throw std::runtime_error(std::string(what) + " of " + name + " failed: " + text(status));
  }
};

Blas::Blas(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Blas::~Blas() = default;

std::unique_ptr<Blas> Blas::load(const std::string& library) {
  auto loaded = std::make_unique<Library>();
  loaded->open(library.empty() ? usual_places() : std::vector<std::string>{library});
  loaded->find(loaded->create, "cublasCreate_v2");
  loaded->find(loaded->destroy, "cublasDestroy_v2");
  loaded->find(loaded->set_stream, "cublasSetStream_v2");
  loaded->find(loaded->gemm, "cublasGemmEx");
  loaded->find(loaded->text, "cublasGetStatusString");
  loaded->must(loaded->create(&loaded->handle), "cublasCreate");
  return std::unique_ptr<Blas>(new Blas(std::move(loaded)));
}

void Blas::product(void* c, const void* a, const void* b, int m, int n, int k, cudaStream_t stream) {
  Library& l = *library_;
  if (stream != l.stream) {
    l.must(l.set_stream(l.handle, stream), "cublasSetStream");
    l.stream = stream;
  }
  const float one = 1, zero = 0;
  // cuBLAS thinks in columns: to it these are the transposed matrices, and c' = b' * a'.
  l.must(l.gemm(l.handle, kNoTranspose, kNoTranspose, n, m, k, &one, b, kBf16, n, a, kBf16, k, &zero, c, kBf16, n,
                kSumInFloat, kAnyAlgorithm),
         "cublasGemmEx");
}

}  // namespace kvtwin
