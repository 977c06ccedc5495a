// The experiments and the trace that are installed with the program.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvtwin {

// Returns the folder `bin` of an installed program, or that of the build.
std::filesystem::path program_folder();

// Returns true for the options and positional arguments that are paths of experiments or traces to read.
bool reads_experiment_or_trace(std::string_view option);

// Returns `path` if the file exists. Otherwise returns the path of the installed file of this name, such as
// experiments/quickstart.toml; `path` if there is none.
std::string shipped_file(const std::string& path);

}  // namespace kvtwin
