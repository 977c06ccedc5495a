// What this program was built from. cmake/Version.cmake writes the definitions, which are all that a new commit
// compiles.
#pragma once

namespace kvtwin {

extern const char* const kVersion;
extern const char* const
    kGitCommit;  // 40 hex digits, "-dirty" behind them if files were changed; "unknown" without git
extern const char* const kSourceDir;  // .venv and notebooks/ are there

}  // namespace kvtwin
