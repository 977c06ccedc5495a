// The uncertainty of a simulation because of the hardware's figures: the same work on hardware variants drawn from the
// intervals of the figures (models/hardware_draws.hpp), and with one figure at a time at each end of its interval.
#pragma once

#include <cstddef>

#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"
#include "lab/report/draws_text.hpp"

namespace kvtwin {

// Simulates `draws` variants and both ends of each interval, each in a child process. `jobs`: processes at the same
// time; 0 = one per core. Errors: InputError if no figure has an interval.
Draws simulate_draws(const Experiment& experiment, std::size_t draws, int jobs, const Listener& listener);

}  // namespace kvtwin
