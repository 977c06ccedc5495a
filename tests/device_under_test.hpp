// The device that a test program's tests are about: the host's, unless the program puts another in its place before
// main (cuda_twin_device.cpp: the CUDA device on the CUDA twin).
#pragma once

#include <memory>

#include "impl/device/host_device.hpp"

namespace kvtwin::test {

inline std::unique_ptr<Device> (*make_test_device)(const HostDeviceConfig& config) = &make_host_device;

}  // namespace kvtwin::test
