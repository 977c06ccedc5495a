// Environment variables: the KVTWIN_* names below, and NO_COLOR. No other file reads the environment.
#pragma once

#include <string>

#include "lab/run/storage_secrets.hpp"

namespace kvtwin {

// Errors: InputError for an unknown KVTWIN_* name, and for an invalid value of KVTWIN_PROGRESS.
void check_environment();
// Returns the help text of all variables.
std::string environment_help();

// KVTWIN_PYTHON: the Python that `figures` and `report` run; empty = not set.
std::string environment_python();
// KVTWIN_REDIS_PASSWORD and KVTWIN_PAGE_KEY.
StorageSecrets environment_secrets();
// KVTWIN_PROGRESS: false, 0 and off switch the progress line off; so does TERM=dumb, a terminal that cannot rewrite a
// line. Errors: InputError for any other word.
bool environment_progress();
// NO_COLOR (any text) and TERM=dumb: no colour on terminals.
bool environment_colour();

}  // namespace kvtwin
