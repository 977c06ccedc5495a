// The duration of each operation of a recorded run, from its journal. A fresh engine decides the journal again on a
// substrate that records when each operation is submitted. The journal's completions give the ends. A lane is a queue:
// an operation begins when it is submitted, or when the operation before it on the lane ends, whichever is later.
#pragma once

#include <filesystem>

#include "models/calibration_samples.hpp"

namespace kvtwin {

// Returns one measurement per pass, transfer and storage operation that was done. `path`: a run folder or a journal. A
// journal that is cut short gives the measurements up to the cut.
// Errors: InputError if the journal cannot be read, or if this program decides differently.
Measurements measurements_of_run(const std::filesystem::path& path);

}  // namespace kvtwin
