// Makes the tests of this program use the CUDA device on the CUDA twin. Each test has its own twin. After every test
// this file checks that the twin found no violation of CUDA's rules and no unnecessary wait, and that everything was
// released.
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
    // Ranks normally are processes. Here they are threads, so one rank may wait for memory that another frees at its
    // end.
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
  test_device_acquires = 8;                                                  // one more than by default: direct storage
  test_device_slowness = 4;                                                  // each CUDA call switches threads
  testing::UnitTest::GetInstance()->listeners().Append(new MachinePerTest);  // takes ownership
  return true;
}();

}  // namespace
}  // namespace kvtwin::test
