// Makes the CUDA device the one that this program's tests are about. Each test has a machine of its own; whatever the
// test is about, a GPU would have found nothing wrong, nothing waited that needn't, and all was given back.
#include <gtest/gtest.h>

#include <optional>
#include <string_view>

#include "device_on_twin.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/device_under_test.hpp"

namespace kvtwin::test {
namespace {

std::unique_ptr<Device> make_on_twin(const HostDeviceConfig& config) {
  return make_cuda_device(cuda_device_of(config));
}

class MachinePerTest final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { machine_.emplace(); }
  void OnTestEnd(const testing::TestInfo& test) override {
    EXPECT_EQ(machine_->violations(), std::vector<std::string>{});
    // Ranks are processes; here, what one frees at its end another may wait for.
    if (!std::string_view(test.test_suite_name()).ends_with("Ranks")) {
      EXPECT_EQ(machine_->hidden_syncs(), std::vector<std::string>{});
    }
    EXPECT_EQ(machine_->live(), twin::Live{}) << "something wasn't given back";
    machine_.reset();
  }
  std::optional<twin::CudaTwin> machine_;
};

const bool in_place = [] {
  make_test_device = &make_on_twin;
  test_device_acquires = 8;                                                  // direct storage, too
  test_device_slowness = 4;                                                  // each call of CUDA's is a thread's turn
  testing::UnitTest::GetInstance()->listeners().Append(new MachinePerTest);  // owned by it
  return true;
}();

}  // namespace
}  // namespace kvtwin::test
