// Replaces cuBLAS in tests without a GPU: has the functions that Blas looks up. They count calls, and do not multiply.
#include <atomic>

namespace {
std::atomic<int> handles = 0, products = 0;
std::atomic<int> fail_in = 0;  // n: the nth product from now on fails
}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = new int(++handles);
  return 0;
}
int cublasDestroy_v2(void* handle) {
  delete static_cast<int*>(handle);
  --handles;
  return 0;
}
int cublasSetStream_v2(void* handle, void* stream) { return handle == nullptr || stream == nullptr ? 7 : 0; }
int cublasSetWorkspace_v2(void* handle, void* memory, unsigned long bytes) {
  return handle == nullptr || memory == nullptr || bytes == 0 ? 7 : 0;
}
int cublasGemmEx(void* handle, int, int, int m, int n, int k, const void*, const void* a, int, int lda, const void* b,
                 int, int ldb, const void*, void* c, int, int ldc, int, int) {
  const bool sound = handle != nullptr && a != nullptr && b != nullptr && c != nullptr && m > 0 && n > 0 && k > 0 &&
                     lda == m && ldb == k && ldc == m;
  if (!sound) return 7;
  if (fail_in > 0 && --fail_in == 0) return 13;
  ++products;
  return 0;
}
const char* cublasGetStatusString(int status) { return status == 7 ? "an invalid value" : "the execution failed"; }

// Functions that tests call.
int stand_in_handles() { return handles; }
int stand_in_products() { return products; }
void stand_in_fail_in(int products_from_now) { fail_in = products_from_now; }
}
