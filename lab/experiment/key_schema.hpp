// A JSON schema of experiment files, for editors that complete and check TOML.
#pragma once

#include "models/json.hpp"

namespace kvtwin {

// Draft 7: nested tables as the dots of the keys, with type, range, choices, default and help of each key. A number may
// be a text with a unit. Keys of earlier versions are marked as deprecated.
Json experiment_schema();

}  // namespace kvtwin
