// Folders of the build. CMake writes them into a source of its own for each program, so that no other object contains
// a path, and a compiler cache serves every clone of the repository. The source has the program that is tested, too.
#pragma once

#include <string>
#include <string_view>

namespace kvtwin {

extern const char* const kSourceFolder;  // of the repository
extern const char* const kBuildFolder;   // of the preset
extern const char* const kBuiltProgram;  // the program that the tests start

// The main function of the same program; null in tests that are not linked with its library.
using Main = int (*)(int argc, char** argv);
extern const Main kBuiltMain;

// Returns the path of a file of the repository. `file`: relative to its folder.
inline std::string in_source(std::string_view file) { return std::string(kSourceFolder) + "/" + std::string(file); }

// Returns the path of a library or program that the build made for tests.
inline std::string built(std::string_view file) { return std::string(kBuildFolder) + "/tests/" + std::string(file); }

}  // namespace kvtwin
