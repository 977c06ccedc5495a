// The environment, read here and nowhere else: the KVTWIN_* names below, junk refused.
#pragma once

#include <string>

namespace kvtwin {

// InputError for a KVTWIN_* name that isn't known, or a value that isn't valid.
void check_environment();
std::string environment_help();

// KVTWIN_PYTHON: the Python with matplotlib that `figures` runs; empty = not set.
std::string environment_python();
// KVTWIN_REDIS_PASSWORD: of the remote tier's servers; empty = none.
std::string environment_redis_password();
// KVTWIN_PAGE_KEY: the secret of stored pages' checks (impl/storage/page_seal.hpp); empty = none.
std::string environment_page_key();
// KVTWIN_PROGRESS: false/0/off silence progress on a terminal.
bool environment_progress();

}  // namespace kvtwin
