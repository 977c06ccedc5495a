// The device that a test program's tests are about: the host's, unless the program puts another in its place before
// main (unit/cuda/device_on_twin.cpp: the CUDA device on the CUDA twin).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "impl/device/host_device.hpp"

namespace kvtwin::test {

inline std::unique_ptr<Device> (*make_test_device)(const HostDeviceConfig& config) = &make_host_device;

// How often it acquires something: DeviceConfig::before is called.
inline std::uint64_t test_device_acquires = 7;

// Of a device that takes several times as long, fewer seeds are run, but not fewer than show all that may happen.
inline std::uint64_t test_device_slowness = 1;
inline std::uint64_t seeds_for(std::uint64_t most, std::uint64_t least) {
  return std::max(least, most / test_device_slowness);
}

}  // namespace kvtwin::test
