// The environment, read here and nowhere else: the KVTWIN_* names below, junk refused.
#pragma once

#include <string>

#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

// InputError for a KVTWIN_* name that isn't known, or a value that isn't valid.
void check_environment();
std::string environment_help();

// KVTWIN_PYTHON: the Python with matplotlib that `figures` runs; empty = not set.
std::string environment_python();
// KVTWIN_REDIS_PASSWORD and KVTWIN_PAGE_KEY.
StorageSecrets environment_secrets();
// KVTWIN_PROGRESS: false/0/off silence progress on a terminal.
bool environment_progress();

}  // namespace kvtwin
