// The device that a test program's tests are about: the host's, unless the program puts another in its place before
// main (unit/cuda/device_on_twin.cpp: the CUDA device on the CUDA twin).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "impl/device/host_device.hpp"

namespace kvtwin::test {

inline std::unique_ptr<Device> (*make_test_device)(const HostDeviceConfig& config) = &make_host_device;

// How often it acquires something: DeviceConfig::before is called.
inline std::uint64_t test_device_acquires = 7;

// Of a device that takes several times as long fewer seeds are run: with KVTWIN_DEEP=1 enough to see all that may
// happen, else a few, and who asks what has happened asks shows_all() first.
inline std::uint64_t test_device_slowness = 1;
inline bool shows_all() { return test_device_slowness == 1 || std::getenv("KVTWIN_DEEP") != nullptr; }
inline std::uint64_t seeds_for(std::uint64_t most, std::uint64_t least) {
  return std::max(shows_all() ? least : 4, most / test_device_slowness / (shows_all() ? 1 : 4));
}

}  // namespace kvtwin::test
