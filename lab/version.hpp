// Version and source of this build. cmake/Version.cmake writes the definitions into one file, so a new commit compiles
// only that file.
#pragma once

namespace kvtwin {

extern const char* const kVersion;
extern const char* const kGitCommit;  // 40 hex digits, and "-dirty" if files were changed; "unknown" without git
extern const char* const kSourceDir;  // folder with .venv and notebooks/; empty in packages

}  // namespace kvtwin
