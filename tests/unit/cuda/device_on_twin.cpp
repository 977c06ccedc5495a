// Makes the CUDA device the one that this program's tests are about. Each test has a machine of its own; whatever the
// test is about, a GPU would have found nothing wrong, nothing waited that needn't, and all was given back.
#include <gtest/gtest.h>

#include <optional>

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
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_EQ(machine_->violations(), std::vector<std::string>{});
    EXPECT_EQ(machine_->hidden_syncs(), std::vector<std::string>{});
    EXPECT_EQ(machine_->live(), twin::Live{}) << "something wasn't given back";
    machine_.reset();
  }
  std::optional<twin::CudaTwin> machine_;
};

const bool in_place = [] {
  make_test_device = &make_on_twin;
  testing::UnitTest::GetInstance()->listeners().Append(new MachinePerTest);  // owned by it
  return true;
}();

}  // namespace
}  // namespace kvtwin::test
