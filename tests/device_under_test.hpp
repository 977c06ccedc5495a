// The device that the tests of a program use. The default is the host device. A program can replace it before main()
// (unit/cuda/device_on_twin.cpp: the CUDA device on the CUDA twin).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "impl/device/host_device.hpp"

namespace kvtwin::test {

inline std::unique_ptr<Device> (*make_test_device)(const HostDeviceConfig& config) = &make_host_device;

// The number of resources that the device acquires. It calls DeviceConfig::before for each of them.
inline std::uint64_t test_device_acquires = 7;

// A device that is several times slower gets fewer seeds. shows_all() returns true if the seeds are enough to see every
// case: on a fast device, or with KVTWIN_DEEP set. A test that expects a rare case must check shows_all() first.
inline std::uint64_t test_device_slowness = 1;
inline bool shows_all() { return test_device_slowness == 1 || std::getenv("KVTWIN_DEEP") != nullptr; }
inline std::uint64_t seeds_for(std::uint64_t most, std::uint64_t least) {
  return std::max(shows_all() ? least : 4, most / test_device_slowness / (shows_all() ? 1 : 4));
}

}  // namespace kvtwin::test
