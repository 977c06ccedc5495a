// The simulator finds the bugs of bugs.ptx, and names the kernel, the line and the address; and no bug where there is
// none. In each schedule: the accesses of a race need not collide to be found.
#include "tests/gpu_sim/simulator.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/gpu_memory.hpp"
#include "tests/paths.hpp"

// As the host code of nvcc does.
extern "C" void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*,
                                       dim3*, int*);

namespace kvtwin::gpu_sim {
namespace {

constexpr std::uint32_t kWords = 64, kSeeds = 20;

struct Outcome {
  std::vector<std::string> violations;
  cudaError_t error = cudaSuccess;
  std::vector<std::uint32_t> words;
  void* at = nullptr;
};

Outcome run(const std::string& kernel, std::uint64_t seed, std::uint32_t ctas) {
  static std::map<std::string, char> stubs;
  const char* stub = &stubs[kernel];
  __cudaRegisterFunction(nullptr, stub, nullptr, kernel.c_str(), -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  twin::Machine machine;
  machine.streams = twin::Streams::seeded;
  machine.seed = seed;
  twin::CudaTwin twin(machine);
  Outcome outcome;
  {
    const test::OnGpu<std::uint32_t> out(std::vector<std::uint32_t>(kWords, 0));
    const test::Stream stream;
    outcome.at = out.data();
    void* arguments[] = {&outcome.at};
    EXPECT_EQ(cudaLaunchKernel(stub, dim3(ctas), dim3(64), arguments, 0, stream), cudaSuccess);
    outcome.error = stream.finish();
    if (outcome.error == cudaSuccess) outcome.words = out.read(kWords);
    outcome.violations = twin.violations();
  }
  return outcome;
}

// The lines of bugs.ptx with the comment `// KERNEL`.
std::vector<std::string> marked_lines(const std::string& kernel) {
  std::ifstream file(in_source("tests/gpu_sim/bugs.ptx"));
  std::vector<std::string> lines;
  std::string text;
  for (int line = 1; std::getline(file, text); ++line) {
    if (text.ends_with("// " + kernel)) lines.push_back(kernel + " (bugs.ptx:" + std::to_string(line) + "): ");
  }
  EXPECT_FALSE(lines.empty()) << kernel;
  return lines;
}

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

// In every schedule, the first violation is at a marked line and has all words.
void expect_found(const std::string& kernel, const std::vector<std::string>& words, std::uint32_t ctas = 1) {
  const std::vector<std::string> lines = marked_lines(kernel);
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = run(kernel, seed, ctas);
    ASSERT_FALSE(outcome.violations.empty()) << kernel << ", seed " << seed;
    const std::string& first = outcome.violations[0];
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const auto& line) { return first.starts_with(line); }))
        << first;
    for (std::string word : words) {
      if (word.starts_with("out+"))
        word = hex(reinterpret_cast<std::uintptr_t>(outcome.at) + std::stoul(word.substr(4)));
      EXPECT_NE(first.find(word), std::string::npos) << first << "\nlacks: " << word;
    }
  }
}

void expect_clean(const std::string& kernel, std::uint32_t ctas = 1) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = run(kernel, seed, ctas);
    EXPECT_EQ(outcome.violations, std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(outcome.error, cudaSuccess);
  }
}

TEST(Simulator, FindsRacesInSharedMemory) {
  expect_found("neighbours_without_barrier", {"shared memory race", "4 bytes at 0x", "thread ", "of CTA 0"});
  expect_clean("neighbours");
}

TEST(Simulator, FindsRacesInGlobalMemory) {
  expect_found("all_ctas_write", {"global memory race", "write of 4 bytes at ", "is not ordered after line "}, 2);
  expect_clean("all_ctas_write", 1);
  expect_found("one_adds_and_one_reads", {"global memory race", "out+0"});
  expect_clean("all_add", 3);
  EXPECT_EQ(run("all_add", 1, 3).words[0], 3 * 64u);
}

TEST(Simulator, FindsAccessesOutOfBounds) {
  expect_found("beyond_the_end", {"out of bounds", "4 bytes at ", "out+256"});
  expect_found("beyond_shared_memory", {"out of bounds", "shared memory"});
  expect_found("misaligned", {"misaligned", "out+2"});
  EXPECT_EQ(run("beyond_the_end", 1, 1).error, cudaErrorIllegalAddress);
}

TEST(Simulator, FindsOperationsThatNeverEnd) {
  expect_found("barrier_without_arrival", {"deadlock", "an mbarrier"});
  expect_found("shuffle_of_some", {"warp operation"});
}

TEST(Simulator, FindsMissingOrderOfBulkCopies) {
  expect_found("barrier_before_its_init", {"mbarrier"});
  expect_found("read_of_an_unfinished_load", {"shared memory race", "bulk load"});
  expect_found("store_without_fence_and_wait", {"shared memory race", "bulk copy"});
  expect_clean("store");
  EXPECT_EQ(run("store", 1, 1).words[0], 77u);
}

TEST(Simulator, CountsWarpInstructionsAndSectors) {
  reset_counts();
  {
    const Counting counting;
    run("all_ctas_write", 1, 1);
    run("all_add", 1, 1);
  }
  const auto found = counts();
  // Two warps. Six instructions, each of 32 words: 4 sectors of 32 bytes.
  EXPECT_EQ(found.at("all_ctas_write"), (Counts{1, 12, 0, 8}));
  EXPECT_EQ(found.at("all_add"), (Counts{1, 6, 0, 2}));
  reset_counts();
}

// The results that the PTX ISA gives, for lane 0.
TEST(Simulator, ComputesAsThePtxIsaSays) {
  const std::vector<std::uint32_t> expected = {
      0x0, 0x0,        0xFFFFFFFF, 0xF8000000, 0x80000003, 0xFFFFFFFE, 0x80000003, 0x1,  0x7, 0x1,        0xFFFFFFF0,
      0x0, 0x80000001, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFE, 0xB,        0x16,       0x21, 0x7, 0x80000001, 0xCCCCCCC,
      0x9, 0x12345678, 0x12345678, 0x9ABCDEF0, 0x30,       0xFFABCDFF, 0x40E00000, 0x9,  0x0, 0x1F,       0x1};
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = run("arithmetic", seed, 1);
    ASSERT_EQ(outcome.violations, std::vector<std::string>{});
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(outcome.words[i], expected[i]) << "word " << i;
  }
}

TEST(Simulator, RefusesLaunchesThatAGpuRefuses) {
  const twin::CudaTwin twin;
  const test::Stream stream;
  static const char unknown = 0;
  EXPECT_EQ(cudaLaunchKernel(&unknown, dim3(1), dim3(1), nullptr, 0, stream), cudaErrorInvalidDeviceFunction);
  run("store", 1, 1);
}

}  // namespace
}  // namespace kvtwin::gpu_sim
