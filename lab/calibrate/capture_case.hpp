// The simulation of a capture: the times of its requests, and what of the prompts hits.
#pragma once

#include <cstddef>
#include <string>

#include "lab/calibrate/capture.hpp"
#include "lab/calibrate/simulated_fit.hpp"

namespace kvtwin {

// A simulation returns, behind the times: prompt tokens, hits on device, host and storage; requests, and those that
// looked storage up again.
inline constexpr std::size_t kHitFigures = 6;

// Returns the case of a capture. Half of the conversations is held out; if that leaves a quarter of the requests or
// less to one half, half of the requests. `name`: for errors; `number`: the group of its scales; `halved`: receives
// what was halved, "conversation" or "request".
FitCase case_of_capture(Capture& capture, const std::string& name, std::size_t number, std::string& halved);

}  // namespace kvtwin
