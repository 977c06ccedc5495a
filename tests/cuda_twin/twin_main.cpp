// Runs the tests of ../gpu on the CUDA twin, with a new machine for each test. Streams are threads, or seeded if
// KVTWIN_CUDA_TWIN has `seed=N`. A test also fails if it does not free a resource, or if a call would fail on a GPU.
#include <gtest/gtest.h>

#include <optional>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace {

// The largest number of tokens per page. With sanitizers, small pages find the same errors.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kPageTokens = 2;
#elif defined(__SANITIZE_ADDRESS__) || !defined(NDEBUG)
constexpr std::uint32_t kPageTokens = 16;
#else
constexpr std::uint32_t kPageTokens = 128;
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
  kvtwin::test::scale() = {.pool_bytes = 128 << 10,
                           .page_tokens = kPageTokens,
                           .draws = 1,
                           .graphs = kPageTokens < 128 ? 60u
                                     : seeded          ? 1000u
                                                       : 200u,
                           .big = true};
  testing::UnitTest::GetInstance()->listeners().Append(new MachinePerTest);
  return RUN_ALL_TESTS();
}
