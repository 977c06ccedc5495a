// Runs the GPU tests on a GPU:
//   gpu_tests [--seeds N] [--draws N] [--first-seed N] [--small] [--big] [GoogleTest's arguments]
// --seeds: number of graphs (default 1,000). --draws: number of geometries per row size and page size (default 2);
// takes most of the time of the kernel tests. --small: few and small cases, for tools that watch every memory access.
// --big: also pools of more than 2^31 bytes, which take 11 GB of GPU memory and 11 GB of page-locked memory.
#include <charconv>
#include <cstdio>
#include <string_view>

#include "tests/gpu/gpu_memory.hpp"

namespace {

bool number(std::string_view text, std::uint64_t& value) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  kvtwin::test::Scale& scale = kvtwin::test::scale();
  scale = {.pool_bytes = 48u << 20, .page_tokens = 128, .draws = 2, .graphs = 1000, .spins = 2000};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string_view value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--small") {
      const std::uint64_t first_seed = scale.first_seed;
      scale = kvtwin::test::small_scale();
      scale.first_seed = first_seed;
    } else if (argument == "--big") {
      scale.big = true;
    } else if (argument == "--seeds" && number(value, scale.graphs)) {
      ++i;
    } else if (argument == "--draws" && number(value, scale.draws) && scale.draws > 0) {
      ++i;
    } else if (argument == "--first-seed" && number(value, scale.first_seed)) {
      ++i;
    } else {
      std::fprintf(stderr, "gpu_tests: `%s` isn't --seeds N, --draws N, --first-seed N, --small or --big\n", argv[i]);
      return 2;
    }
  }
  int gpus = 0;
  const cudaError_t error = cudaGetDeviceCount(&gpus);
  if (error != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "gpu_tests needs an NVIDIA GPU, and this machine shows none: %s\n", cudaGetErrorString(error));
    return 1;
  }
  return RUN_ALL_TESTS();
}
