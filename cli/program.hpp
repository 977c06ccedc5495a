// The program kvtwin, without what belongs to its process (main.cpp).
#pragma once

namespace kvtwin {

// Parses the arguments, runs one subcommand and returns its exit code. Prints errors itself.
int run_program(int argc, char** argv);

}  // namespace kvtwin
