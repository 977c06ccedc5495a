// What a recorded run's operations took: its journal is decided again without a world, by a substrate that notes what
// was submitted when, and each completion ends one. Lanes are queues: an operation begins when it was submitted, or
// when the one before it on its lane has ended.
#pragma once

#include <filesystem>

#include "models/calibration_samples.hpp"

namespace kvtwin {

// Of a run folder, or a journal; of passes, transfers and storage operations that were done. InputError for what
// can't be read, or was decided otherwise than this program decides, as far as to where it ends.
Measurements measurements_of_run(const std::filesystem::path& path);

}  // namespace kvtwin
