// The tests of ../gpu on the CUDA twin, a machine of its own for each: streams as threads, or seeded if
// KVTWIN_CUDA_TWIN says `seed=N`. A test fails too if it leaves anything behind, or did what a GPU would fail.
#include <gtest/gtest.h>

#include <optional>

#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || !defined(NDEBUG)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
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
                           .page_tokens = kSlow ? 16u : 128u,
                           .draws = 1,
                           .graphs = kSlow    ? 60u
                                     : seeded ? 1000u
                                              : 200u,
                           .big = true};
  testing::UnitTest::GetInstance()->listeners().Append(new AMachineATest);
  return RUN_ALL_TESTS();
}
