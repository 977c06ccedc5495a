// Reads the planned failures of an experiment (faults.*).
#pragma once

#include "lab/experiment/experiment.hpp"
#include "sim/world.hpp"

namespace kvtwin {

// Sets the planned failures of `world`. Requires: `world` has its network and its storage tiers. Errors: InputError for
// a failure in another form, of a part that is not there, or of two that overlap.
void read_planned_faults(const Experiment& experiment, WorldConfig& world);

}  // namespace kvtwin
