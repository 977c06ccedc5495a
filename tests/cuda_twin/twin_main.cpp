// The tests of ../gpu on the CUDA twin, a machine of its own for each: streams as threads, or seeded if
// KVTWIN_CUDA_TWIN says `seed=N`. A test fails too if it leaves anything behind, or did what a GPU would fail.
#include <gtest/gtest.h>

#include <optional>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace {

// Tokens of a page at most: sanitizers see as much in small ones.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kPageTokens = 2;
#elif defined(__SANITIZE_ADDRESS__) || !defined(NDEBUG)
constexpr std::uint32_t kPageTokens = 16;
#else
constexpr std::uint32_t kPageTokens = 128;
#endif

class AMachineATest : public testing::EmptyTestEventListener {
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
  testing::UnitTest::GetInstance()->listeners().Append(new AMachineATest);
  return RUN_ALL_TESTS();
}
