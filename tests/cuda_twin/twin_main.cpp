// Runs the tests of ../gpu on the CUDA twin, with a new machine for each test. Streams are threads, or seeded if
// KVTWIN_CUDA_TWIN has `seed=N`. A test also fails if it does not free a resource, or if a call would fail on a GPU.
// With the PTX of the kernels (KVTWIN_TEST_PTX), the program prints which kernels the tests have launched, and fails if
// all tests ran and one kernel was not launched. Arguments: those of GoogleTest, and
//   --small           the scale of gpu_tests --small
//   --kernels FILE    a shared library with kernels in place of those of the program (tests/gpu_sim/mutants.py)
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string_view>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/gpu_memory.hpp"
#if defined(KVTWIN_TEST_PTX)
#include "tests/gpu_sim/simulator.hpp"
#endif

namespace {

// The largest number of tokens per page. With sanitizers, small pages find the same errors.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kPageTokens = 2;
#elif defined(__SANITIZE_ADDRESS__) || !defined(NDEBUG)
constexpr std::uint32_t kPageTokens = 16;
#elif defined(KVTWIN_TEST_PTX)
constexpr std::uint32_t kPageTokens = 32;  // each thread of a kernel runs
#else
constexpr std::uint32_t kPageTokens = 128;
#endif

#if defined(KVTWIN_TEST_PTX)
constexpr std::uint64_t kPoolBytes = 64 << 10;
constexpr std::uint32_t kSpins = 3;
#else
constexpr std::uint64_t kPoolBytes = 128 << 10;
constexpr std::uint32_t kSpins = 0;
#endif

class MachinePerTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { twin_.emplace(kvtwin::twin::machine_of_environment()); }
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_EQ(twin_->violations(), std::vector<std::string>{});
    EXPECT_EQ(twin_->hidden_syncs(), std::vector<std::string>{});
    EXPECT_EQ(twin_->live(), kvtwin::twin::Live{});
    twin_.reset();
  }
  std::optional<kvtwin::twin::CudaTwin> twin_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool seeded = kvtwin::twin::machine_of_environment().streams == kvtwin::twin::Streams::seeded;
  kvtwin::test::scale() = {.pool_bytes = kPoolBytes,
                           .page_tokens = kPageTokens,
                           .draws = 1,
                           .graphs = kPageTokens < 128 ? 60u
                                     : seeded          ? 1000u
                                                       : 200u,
                           .spins = kSpins,
                           .big = true};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--small") {
      kvtwin::test::scale() = kvtwin::test::small_scale();
#if defined(KVTWIN_TEST_PTX)
    } else if (argument == "--kernels" && i + 1 < argc) {
      kvtwin::gpu_sim::load_kernels(argv[++i]);
#endif
    } else {
      std::fprintf(stderr, "gpu_tests_on_twin: `%s` isn't --small or --kernels FILE\n", argv[i]);
      return 2;
    }
  }
  testing::UnitTest::GetInstance()->listeners().Append(new MachinePerTest);
  const int failed = RUN_ALL_TESTS();
  if (testing::GTEST_FLAG(list_tests)) return failed;
#if defined(KVTWIN_TEST_PTX)
  const kvtwin::twin::Machine machine = kvtwin::twin::machine_of_environment();
  const auto& tests = *testing::UnitTest::GetInstance();
  const bool whole = tests.test_to_run_count() == tests.total_test_count();
  const bool executed =
      kvtwin::gpu_sim::print_executed(static_cast<std::uint32_t>(machine.compute_major * 10 + machine.compute_minor));
  if (whole && !executed) return 1;
#endif
  return failed;
}
