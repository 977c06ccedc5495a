// Opens the way between the engines with roles of a real run.
#pragma once

#include <memory>

#include "impl/device/device.hpp"
#include "impl/runtime/hand_over_lane.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/real_engines.hpp"
#include "lab/run/real_ranks.hpp"

namespace kvtwin {

// Errors: InputError if the experiment has engines with roles that only a simulation serves.
void refuse_roles(const Experiment& experiment, const Setup& setup);

// Returns the lane for hand-overs and notices of this process's engine; null if engines have no roles. All processes
// call it. Requires: `engines` outlives the lane. Errors: InputError if the device's memory can't be registered here or
// in another process.
std::unique_ptr<HandOverLane> open_hand_overs(const Experiment& experiment, const Setup& setup, Device& device,
                                              RealEngines* engines, RealRanks* ranks);

}  // namespace kvtwin
