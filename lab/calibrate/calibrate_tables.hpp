// Tables of tools/gpu-check (tests/gpu/bench) as measurements: link.csv's copies, one way and both at once;
// matrix.csv's paths that have one descriptor a piece. What another cuts up in its own way (staged, copies in a loop)
// is left out.
#pragma once

#include <string>
#include <string_view>

#include "models/calibration_samples.hpp"

namespace kvtwin {

// ModelError, with the line, for a table that is neither, and a row that isn't whole.
Measurements measurements_of_table(std::string_view csv, const std::string& file);

}  // namespace kvtwin
