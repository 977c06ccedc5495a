// Reads tables of tools/gpu-check (tests/gpu/bench) as measurements: the copies of link.csv, in one direction and in
// both at once, and the paths of matrix.csv with one descriptor per piece. The other paths of matrix.csv (staged,
// copies in a loop) are left out, because they cut the bytes differently.
#pragma once

#include <string>
#include <string_view>

#include "models/calibration_samples.hpp"

namespace kvtwin {

// `csv`: the text of the table. `file`: its name for error texts.
// Errors: ModelError with the line, for another table and for an incomplete row.
Measurements measurements_of_table(std::string_view csv, const std::string& file);

}  // namespace kvtwin
