// The program kvtwin.
#include "cli/program.hpp"

#if KVTWIN_SERVES_CUDA
#include "lab/run/cuda_devices.hpp"
#endif

int main(int argc, char** argv) {
  using namespace kvtwin;
#if KVTWIN_SERVES_CUDA
  serve_cuda_devices({&cuda_presence, &cuda_device_bytes, &cuda_bytes_free, &make_cuda_device,
                      [](const std::string& library) { return CuFile::load(library); }});
#endif
  return run_in_own_process(argc, argv);
}
