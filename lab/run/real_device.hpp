// The device of a real run: which one, of what size, and whether it fits this machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"

namespace kvtwin {

struct RealDevice {
  const char* name = "";  // host or cuda
  DeviceConfig config;    // what all devices have
  std::function<std::unique_ptr<Device>()> make;
  std::vector<std::string> notes;  // what to say of it
};

// By real.device; `ranks`: null if there is one only. InputError if there is no such device, or no room for its pools
// and weights, those of the other ranks on this machine included.
RealDevice choose_device(const Experiment& experiment, const Setup& setup, RankGroup* ranks);

}  // namespace kvtwin
