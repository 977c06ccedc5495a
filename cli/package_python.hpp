// Runs modules of the Python package (python/kvtwin) in a Python that has the packages of notebooks/requirements.txt.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace kvtwin {

// Checks that each folder holds at least one of the files. `writers` names the commands that write such folders.
// Errors: InputError.
void check_result_folders(const std::vector<std::string>& folders, std::initializer_list<const char*> files,
                          const std::string& writers);

// Runs the module kvtwin.`module` with the arguments, for the subcommand `command`, and waits for its end. The Python
// is KVTWIN_PYTHON, or .venv of the source folder. The package is the one that the program is part of (a wheel), or
// that was installed with it (share/kvtwin/python), or python/ of the source folder. Errors: InputError if there is no
// such Python; AlreadySaid(2) if a sentence about bad input or an absent package was printed; WorkError if the module
// fails.
void run_package_module(const std::string& command, const std::string& module,
                        const std::vector<std::string>& arguments);

}  // namespace kvtwin
