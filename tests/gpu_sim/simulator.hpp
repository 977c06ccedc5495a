// The GPU simulator: executes the PTX of the kernels on the CUDA twin (docs/internals/gpu.md). A program that links
// kvtwin_gpu_sim has the launchers of kernels/*.cu, and each launch runs the translated PTX of the twin's architecture
// as an item of the stream. A wrong kernel is a violation of the twin (CudaTwin::violations), with the kernel, the line
// in the PTX and the address.
//
// By default, a launch is adversarial: the seed draws the order of CTAs, warps and lanes, how far the lanes of a warp
// diverge, and how late a bulk copy reads and writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtwin::gpu_sim {

struct Counts {
  std::uint64_t launches = 0;
  // Only while an object of class Counting exists:
  std::uint64_t instructions = 0;   // executed by warps; also those that a condition turns off
  std::uint64_t load_sectors = 0;   // sectors of 32 bytes in global memory: for each instruction of a warp, the
  std::uint64_t store_sectors = 0;  // different sectors of its lanes; for each bulk copy, the sectors of its range

  friend bool operator==(const Counts&, const Counts&) = default;
};

// Runs each launch in the same orderly way while the object exists: the lanes of a warp stay together as far as the
// branches allow, warps and CTAs run in sequence, and copies end at once. So counts depend on the kernel only.
class Counting {
 public:
  Counting();
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
};

// Of all launches of this process, by kernel, for example `gather_scatter<16u, 4u, true, 0>`.
std::map<std::string, Counts> counts();
void reset_counts();

// The names of the kernels that are translated for the architecture (80, 90, 100).
std::vector<std::string> kernels_of(std::uint32_t architecture);

// Prints the kernels of the architecture, and which of them this process has launched. Returns false if one was not.
bool print_executed(std::uint32_t architecture);

// Replaces kernels by those of a shared library. Errors: std::runtime_error.
void load_kernels(const std::string& library);

}  // namespace kvtwin::gpu_sim
