// Chooses the device of a real run, and checks that the device fits into this machine.
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
  DeviceConfig config;    // the part that all devices have in common
  std::function<std::unique_ptr<Device>()> make;
  std::vector<std::string> notes;  // for the report
};

// Chooses by real.device. `ranks`: null if there is only one rank.
// Errors: InputError if there is no such device, or not enough free memory for the pools and weights of all ranks on
// this machine.
RealDevice choose_device(const Experiment& experiment, const Setup& setup, RankGroup* ranks);

}  // namespace kvtwin
